"""Shards on a Ray of the test's own making: who gets what, what is tried again, and who is refused.

`tests/end_to_end/test_ray.py` does it with the real one, where that is installed.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_profiles import tiny_profile

from v8.annexes import ray as cluster
from v8.base.errors import ProfileError, StorageError, V8Error
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.runs.engines import remote_placement
from v8.runs.events import Event, EventCallback, Note, SeriesOutcome, SeriesStarted
from v8.runs.plan import Job, Recipe
from v8.runs.workers import JobQueue

NAMES = ("BTCUSDT-15m", "ETHUSDT-15m", "BNBUSDT-15m", "XRPUSDT-15m")


class ToyErrors:
    """The errors of Ray that v8 tells apart."""

    class RayError(Exception):
        pass

    class WorkerCrashedError(RayError):
        pass

    class RuntimeEnvSetupError(RayError):
        pass

    class RayTaskError(RayError):
        @property
        def cause(self) -> BaseException:
            return self.args[0]


class ToyRay:
    """A cluster whose tasks begin and then end each series well, or with an error of `fates`.

    Args:
        resources: What it has; a test may change that.
        fates: By series: what each try of it raises, and before or after it began.
    """

    exceptions = ToyErrors

    def __init__(
        self, resources: dict[str, float], fates: Mapping[str, list[Exception]] | None = None
    ) -> None:
        self.resources = resources
        self.fates = {name: list(each) for name, each in (fates or {}).items()}
        self.shards: list[list[str]] = []
        self.folders: list[Path] = []
        self.asked: dict[str, Any] = {}
        self.names: list[str] = []
        self.most_at_once = 0

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, *arguments: Any, **options: Any) -> Any:
        if options:
            self.asked = options
            return lambda function: self
        _, _, jobs, _ = arguments
        self.folders += [job.folder for job in pickle.loads(jobs)]
        shard = [str(job.series) for job in pickle.loads(jobs)]
        self.shards.append(shard)
        return self._told(shard)

    def options(self, name: str) -> ToyRay:
        self.names.append(name)
        return self

    def wait(self, tasks: list[Any], **options: Any) -> tuple[list[Any], list[Any]]:
        self.most_at_once = max(self.most_at_once, len(tasks))
        return tasks, []

    def get(self, told: Any) -> Any:
        if isinstance(told, Exception):
            raise told
        return told

    def _told(self, shard: list[str]) -> Iterator[Any]:
        fates = [self.fates[name].pop(0) for name in shard if self.fates.get(name)]
        if fates and getattr(fates[0], "is_early", False):
            yield fates[0]
            return
        yield ()
        for name in shard:
            yield (SeriesStarted(Series.parse(name)),)
            yield from fates
            yield (SeriesOutcome(Series.parse(name)),)


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    recipe = Recipe(tiny_profile(), is_publishable=False)
    folder = Path("/nowhere")
    candles = [DemoSource().candles(Series.parse(name), 50, None) for name in NAMES]
    return [Job(recipe, each, 1, folder / str(each.series)) for each in candles]


def carried_out(
    ray: ToyRay, jobs: list[Job], *, workers: str = "auto", fleet_size: str = "auto", device: str = "auto"
) -> tuple[dict[str, str | None], list[Event]]:
    """Let the toy do jobs; return each series' reason of failure, and all that was told."""
    events: list[Event] = []
    placement = remote_placement(workers, fleet_size, device, None)
    tasks = cluster._Tasks(ray, placement, jobs, EventCallback(events.append), Path("/nowhere/sign"))
    ended: list[SeriesOutcome] = []
    while tasks.has_unfinished:
        ended += tasks.receive()
    assert len({one.series for one in ended}) == len(ended)
    return {str(one.series): one.reason for one in ended}, events


def test_each_series_is_a_task_on_a_core_and_no_more_run_than_there_are(jobs: list[Job]) -> None:
    ray = ToyRay({"CPU": 3.0})
    outcomes, told = carried_out(ray, jobs)
    assert outcomes == dict.fromkeys(NAMES)
    assert ray.shards == [[name] for name in NAMES]
    assert ray.names == [f"v8 {name}" for name in NAMES]
    assert ray.most_at_once == 3
    assert told == [SeriesStarted(job.series) for job in (*jobs[:3], jobs[3])]
    assert (ray.asked["num_cpus"], ray.asked["max_retries"]) == (1, 0)
    variables = ray.asked["runtime_env"]["env_vars"]
    assert variables["CUDA_VISIBLE_DEVICES"] == "-1"
    assert variables["TF_NUM_INTRAOP_THREADS"] == "1"
    assert carried_out(busy := ToyRay({"CPU": 8.0}), jobs, workers="2")[0] == outcomes
    assert busy.most_at_once == 2
    assert carried_out(empty := ToyRay({}), jobs)[0] == outcomes, "a cluster that grows is asked for one core"
    assert empty.most_at_once == 1


def test_workers_in_other_folders_write_where_the_driver_means(jobs: list[Job]) -> None:
    relative = replace(jobs[0], folder=Path("runs", "tiny", NAMES[0]))
    carried_out(ray := ToyRay({"CPU": 1.0}), [relative])
    assert ray.folders == [Path.cwd() / "runs" / "tiny" / NAMES[0]]


def test_secrets_of_the_environment_do_not_travel(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("V8_VISION_URL", "http://me:secret@mirror")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("V8_HOME", "caches")
    carried_out(ray := ToyRay({"CPU": 1.0}), jobs[:1])
    variables = ray.asked["runtime_env"]["env_vars"]
    assert "secret" not in str(ray.asked)
    assert variables["KERAS_BACKEND"] == "jax"
    assert variables["V8_HOME"] == str(Path("caches").absolute())


def test_a_task_on_a_gpu_gets_an_even_share_or_the_fleet_that_was_asked_for(jobs: list[Job]) -> None:
    carried_out(ray := ToyRay({"CPU": 8.0, "GPU": 2.0}), jobs)
    assert ray.shards == [[*NAMES[:2]], [*NAMES[2:]]]
    assert ray.asked["num_gpus"] == 1
    assert "CUDA_VISIBLE_DEVICES" not in ray.asked["runtime_env"]["env_vars"], "Ray gives each task its own"
    carried_out(ray := ToyRay({"CPU": 8.0, "GPU": 2.0}), jobs, fleet_size="3")
    assert ray.shards == [[*NAMES[:3]], [NAMES[3]]]
    carried_out(ray := ToyRay({"CPU": 8.0, "GPU": 2.0}), jobs, device="cpu")
    assert "num_gpus" not in ray.asked
    with pytest.raises(ProfileError) as refused:
        carried_out(ToyRay({"CPU": 8.0}), jobs, device="gpu")
    assert refused.value.where == "param:device gpu"
    assert refused.value.got == "none"


def test_a_lost_task_is_given_out_again_once_and_then_only_the_guilty_series_fails(jobs: list[Job]) -> None:
    lost = ToyErrors.WorkerCrashedError()
    fates = {NAMES[0]: [lost], NAMES[1]: [lost, lost], NAMES[2]: [ToyErrors.RayTaskError(MemoryError())]}
    outcomes, told = carried_out(ToyRay({"CPU": 2.0}, fates), jobs)
    assert re.search(f"^{NAMES[1]}: .*; got WorkerCrashedError 2 times. ", str(outcomes.pop(NAMES[1])))
    assert outcomes == dict.fromkeys(name for name in NAMES if name != NAMES[1])
    notes = [event.text for event in told if isinstance(event, Note)]
    assert notes == [
        f"{NAMES[0]}: its worker died (WorkerCrashedError); tried once more.",
        f"{NAMES[1]}: its worker died (WorkerCrashedError); tried once more.",
        f"{NAMES[2]}: its worker died (MemoryError); tried once more.",
    ]
    ray = ToyRay({"CPU": 8.0, "GPU": 1.0}, {NAMES[1]: [lost, lost]})
    assert {name: bool(reason) for name, reason in carried_out(ray, jobs)[0].items()} == {
        name: name == NAMES[1] for name in NAMES
    }
    assert ray.shards == [[*NAMES], *([name] for name in NAMES)], "after a death each goes alone"


def test_a_cluster_without_v8_is_refused_in_one_sentence(jobs: list[Job]) -> None:
    error = ToyErrors.RayTaskError(RuntimeError("the function failed to import\nNo module named 'v8'"))
    error.is_early = True
    with pytest.raises(V8Error, match=r"--engine ray: needs v8 on every machine.*; got No module named 'v8'"):
        carried_out(ToyRay({"CPU": 2.0}, {NAMES[0]: [error]}), jobs)


def test_a_worker_of_other_versions_or_without_the_run_folder_refuses(tmp_path: Path) -> None:
    with cluster._marker_file(tmp_path) as sign:
        assert sign.parent == tmp_path
        assert cluster._refusal(cluster._environment(), sign) is None
        other = {**cluster._environment(), "tensorflow": "1.0", "v8's code": "0" * 12}
        with pytest.raises(V8Error, match=r"Ray worker on vm: .*got tensorflow \S+ for 1\.0, v8's co"):
            raise cluster._refusal(other, sign) or AssertionError
        task = cluster._serve(other, str(sign), b"not to be read", 1)
        assert [type(each) for (each,) in task] == [V8Error]
    assert not [*tmp_path.iterdir()]
    with pytest.raises(StorageError, match=rf"run folder {tmp_path}, "):
        raise cluster._refusal(cluster._environment(), sign) or AssertionError


def test_an_address_where_nobody_listens_is_refused_at_once() -> None:
    for address in ("127.0.0.1:1", "nowhere", "127.0.0.1:port"):
        with pytest.raises(
            ProfileError, match=rf"--address: is auto or HOST:PORT of a Ray .*got {address} \("
        ):
            cluster._join(None, address)


def test_jobs_that_come_back_are_taken_first_and_alone(jobs: list[Job]) -> None:
    queue, told = JobQueue(jobs, EventCallback((notes := []).append)), []
    first = queue.take(2)
    assert [job.series for job in first] == [job.series for job in jobs[:2]]
    assert queue.take(3, first[:1]) == [first[0], *jobs[2:]], "a worker's own count among the most it takes"
    assert len(queue) == 0
    assert queue.give_back(first, "SIGKILL") == told
    assert queue.take(4) == first[:1]
    assert queue.take(4) == first[1:]
    (lost,) = queue.give_back(first[:1], "SIGKILL")
    assert lost.series == first[0].series
    assert len(notes) == 2
