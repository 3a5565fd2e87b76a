"""Ray: shards of series as tasks, on this machine or on the machines of a cluster that is there.

A task gets a shard: one series on a core, or a fleet's worth on a GPU, and that share of a machine. It makes
the artefacts with the engine of `v8.runs.local`, so files are written by the same code and are equal to
the bit on equal machines; they go straight into the run folder, which all machines must share. Only candles
go down through Ray, and events up, gathered for a moment: a task is a generator of what there is to tell.

A worker process keeps TensorFlow and its compiled program from one shard to the next. Ray's own retries are
off: a task that is lost with its worker is given out again by the rules of `JobQueue`, as local workers' jobs
are. Whoever is asked for a shard first compares versions with the asker and looks for the run folder.

The driver is a process between the one that was called and Ray: Ray's own code ends a process whose raylet
has died, or whose cluster, with exit code 1 and without a word. The caller then says what happened. When the
driver ends, however it ends, Ray ends its tasks, on all machines, and it ends with its caller; checkpoints
keep their epochs, and the same call goes on from there. So no task outlives the one who knows what has been
done, and a run folder never has two writers. One driver, and its Ray, serve all runs of a call.
"""

import atexit
import os
import pickle
import platform
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

from v8 import plugins
from v8.errors import ProfileError, SeriesError, StorageError, V8Error, shown
from v8.hardware import num_usable_cores, versions, visible_gpus
from v8.machine.choices import SINGLE_THREADED
from v8.machine.interruption import deferred_interrupts, restored_stop_signals
from v8.machine.resources import resource_scope
from v8.machine.starting import light_start
from v8.runs.engines import Placement
from v8.runs.events import Event, Note, SeriesOutcome
from v8.runs.jobs import Engine, Job
from v8.runs.observers import EventCallback, RunObserver, warnings_as_notes
from v8.runs.workers import POLL_S, JobQueue, Process
from v8.storage import aside_of, digest_bytes, home, passing_folder, sweep
from v8.training.programs import kept_programs

SILENCE_S: Final = 30.0  # how long Ray may take to begin the first task before the user is told, in seconds
KNOCK_S: Final = 5.0  # how long the machine at an address may take to answer, in seconds
STORE_BYTES: Final = 100 << 20  # memory of a Ray of our own for what travels: candles of a few shards
_QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",  # none of these would have a task's environment
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # it would tell of recovering what nobody misses
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # what Ray would print of a lost worker is told by us
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it announces a coming change
}
"""What is said to a Ray of our own; the user's own settings stand."""
_INHERITED: Final = ("TF_", "XLA_", "OMP_", "OPENBLAS_", "KERAS_BACKEND", plugins.PLACE)
"""Beginnings of the variables that a task has from the driver; others may be secrets, and Ray logs them."""
_MOST_PLACE: Final = 18
"""Letters of a folder for Ray's sockets: with what Ray adds, their paths come close to a system's limit."""
_DONE: Final = "done"  # what the driver tells last of some jobs
Told: TypeAlias = tuple[Event | V8Error, ...]
"""What a task yields: events in their order, or why it refuses; nothing is a sign of life."""

_until_exit: Final = ExitStack()
atexit.register(_until_exit.close)


class RayEngine(Engine):
    """Makes artefacts in tasks of Ray."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def train(self, jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        """Make the artefact of every job; yield how each series ended as soon as it is known.

        Jobs are of one profile and one run folder. The observer is called in this process.

        Raises:
            ProfileError: If there is no cluster at the address, or no GPU where one is wanted.
            V8Error: If a worker has other versions than this process.
            StorageError: If a worker cannot see the run folder.
            SeriesError: If Ray is lost.
        """
        with deferred_interrupts("stopping the tasks; once more stops at once\n") as check:
            try:
                for event in _told_by_driver(_driver().pipe, self._placement, jobs):
                    check()
                    if isinstance(event, SeriesOutcome):
                        yield event
                    elif event is not None:
                        observer.on_event(event)
            except BaseException:
                _until_exit.close()  # and with the driver all that is under way
                raise


def _told_by_driver(pipe: Any, placement: Placement, jobs: Sequence[Job]) -> Iterator[Event | None]:
    """Hand over jobs and return what is told of them; None every now and then."""
    try:
        pipe.send((placement, jobs))
        while (told := pipe.recv() if pipe.poll(POLL_S) else None) != _DONE:
            if isinstance(told, V8Error):
                raise told
            yield told
    except (EOFError, ConnectionError) as error:
        raise _without_ray() from error


@cache
def _driver() -> Process:
    driver = Process("v8-ray-driver", _drive)
    _until_exit.callback(_driver.cache_clear)
    _until_exit.callback(driver.end)
    _until_exit.callback(driver.ask_to_stop)
    return driver


def _without_ray() -> SeriesError:
    where = "param:engine ray"
    got = "the end of one of its processes: GCS, raylet or an agent of it"
    fix = "Repeat the same command; it goes on from what is saved"
    return SeriesError(where=where, rule="needs Ray to live until every series is made", got=got, fix=fix)


# From here on: in the driver.


def _drive(pipe: Connection) -> None:
    """Live as the driver: carry out what comes through the pipe until it closes."""
    with suppress(EOFError, ConnectionError, KeyboardInterrupt), deferred_interrupts("") as check:
        try:
            while True:
                while not pipe.poll(POLL_S):
                    check()
                placement, jobs = pipe.recv()
                try:
                    for outcome in _train_all(placement, jobs, EventCallback(pipe.send), check):
                        pipe.send(outcome)
                    pipe.send(_DONE)
                except V8Error as error:
                    pipe.send(error)
        finally:
            _until_exit.close()


def _train_all(
    placement: Placement, jobs: Sequence[Job], observer: RunObserver, check: Callable[[], None]
) -> Iterator[SeriesOutcome]:
    ray = _connected(placement)
    here = ray.get_runtime_context().get_node_id()
    (node,) = (one for one in ray.nodes() if one["NodeID"] == here)
    raylet = node["NodeManagerAddress"], node["NodeManagerPort"]
    with _sign_in(jobs[0].folder.parent) as sign:
        tasks = _Tasks(ray, placement, jobs, observer, sign, partial(_require_raylet, raylet))
        while tasks.are_left:
            check()
            yield from tasks.receive()


def _require_raylet(address: tuple[str, int]) -> None:
    """Refuse to go on without the raylet of this machine: then all tasks are lost, and no series is at fault.

    Raises:
        SeriesError: If nobody listens where it did.
    """
    try:
        socket.create_connection(address, KNOCK_S).close()
    except OSError:
        raise _without_ray() from None


class _Tasks:
    """The tasks of one call and the jobs that are still to be given out."""

    def __init__(  # noqa: PLR0917 - called in one place, in a row
        self,
        ray: Any,
        placement: Placement,
        jobs: Sequence[Job],
        observer: RunObserver,
        sign: Path,
        require_raylet: Callable[[], None] = lambda: None,
    ) -> None:
        self._require_raylet = require_raylet
        self._ray = ray
        self._observer = observer
        self._queue = JobQueue(jobs, observer)
        is_formula = jobs[0].profile.family.is_formula
        self._kind, variables = _share(ray.cluster_resources(), placement, is_formula=is_formula)
        self._most = placement.num_workers
        self._fleet_size = placement.fleet_size
        # A task of a GPU sees by itself how many of an even share fit into one program.
        even_share = -(-len(jobs) // self._capacity()) if self._kind == "GPU" else 1
        self._shard_size = self._fleet_size or even_share
        # A lost task is given out by us, not by Ray.
        options = {"num_cpus": 1, **({"num_gpus": 1} if self._kind == "GPU" else {}), "max_retries": 0}
        self._task = ray.remote(**options, runtime_env={"env_vars": variables})(_serve)
        self._sign = str(sign)
        self._begun: set[Any] = set()
        self._told_silence_s = time.monotonic() + SILENCE_S

    @property
    def are_left(self) -> bool:
        """Whether any series has no outcome."""
        return bool(self._queue or self._queue.held)

    def receive(self) -> list[SeriesOutcome]:
        """Give out what there is room for, and pass on what tasks tell within a moment."""
        while self._queue and len(self._queue.held) < self._capacity():
            self._give_out()
        tasks = [*self._queue.held]
        self._ray.wait(tasks, num_returns=1, timeout=POLL_S, fetch_local=False)
        ready, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0, fetch_local=False)
        self._tell_silence()
        return [outcome for task in ready for outcome in self._receive_from(task)]

    def _give_out(self) -> None:
        shard = self._queue.take(self._shard_size)
        task = self._task.options(name=f"v8 {shard[0].series}")
        # A worker is at work in another folder, and one with other versions shall say so before it unpickles.
        there = pickle.dumps([replace(job, folder=job.folder.absolute()) for job in shard])
        self._queue.held[task.remote(_wanted(), self._sign, there, self._fleet_size)] = shard

    def _capacity(self) -> int:
        """Count the tasks that the cluster has room for, as it is now; at least one lets it grow."""
        return max(1, min(self._most, int(self._ray.cluster_resources().get(self._kind, 0))))

    def _receive_from(self, task: Any) -> list[SeriesOutcome]:
        errors = self._ray.exceptions
        try:
            told: Told = self._ray.get(next(task))
        except StopIteration:
            return self._lost(task, "an early end")
        except errors.RayTaskError as error:
            if task not in self._begun:
                raise _unfit(error.cause) from error
            return self._lost(task, type(error.cause).__name__)
        except errors.RuntimeEnvSetupError as error:
            raise _unfit(error) from error
        except errors.RayError as error:
            return self._lost(task, type(error).__name__)
        self._begun.add(task)
        self._told_silence_s = float("inf")
        outcomes = []
        for event in told:
            if isinstance(event, V8Error):
                raise event
            outcomes += self._queue.receive(task, event)
        if not self._queue.held[task]:
            del self._queue.held[task]
        return outcomes

    def _lost(self, task: Any, cause: str) -> list[SeriesOutcome]:
        self._require_raylet()
        return self._queue.give_back(self._queue.held.pop(task), cause)

    def _tell_silence(self) -> None:
        if time.monotonic() > self._told_silence_s:
            self._told_silence_s = float("inf")
            has = f"{self._ray.cluster_resources().get(self._kind, 0):g} in all, and others may use them"
            text = f"Ray has begun no task for {SILENCE_S:g} s. Each needs a {self._kind}; the cluster has"
            self._observer.on_event(Note(f"{text} {has}. v8 waits."))


def _share(
    resources: dict[str, float], placement: Placement, *, is_formula: bool
) -> tuple[str, dict[str, str]]:
    """Decide what each task gets, "GPU" where there is one and it is of use, else "CPU", and its environment.

    Raises:
        ProfileError: If a GPU is wanted and the cluster has none.
    """
    has_any = resources.get("GPU", 0) >= 1
    if placement.device == "gpu" and not has_any:
        rule = "needs a GPU among the resources of the Ray cluster"
        fix = "Start Ray on a machine with a GPU, or use param:device auto"
        raise ProfileError(where="param:device gpu", rule=rule, got="none", fix=fix)
    ours = SINGLE_THREADED.items()  # which a driver without a GPU has set for itself
    told = {name: value for name, value in os.environ.items() - ours if name.startswith(_INHERITED)}
    told["V8_HOME"] = str(home().absolute())
    told.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if has_any and placement.device != "cpu" and not is_formula:
        return "GPU", told
    return "CPU", {**SINGLE_THREADED, **told, "CUDA_VISIBLE_DEVICES": "-1"}


def _unfit(error: BaseException) -> V8Error:
    (*_, told) = str(error).strip().splitlines() or [type(error).__name__]
    rule = "needs v8 on every machine of the cluster, in the Python that Ray was started with"
    fix = "Install there what is installed here, and start Ray there from that Python"
    return V8Error(where="param:engine ray", rule=rule, got=shown(told, 300), fix=fix)


def _connected(placement: Placement) -> Any:
    """Return Ray, connected to the cluster at the address or to one of our own, until this process ends.

    Raises:
        ProfileError: If there is none that this process can join.
        StorageError: If there is no place for the sockets of our own.
    """
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # else Ray keeps one in ~/.ray
    for name, value in (_QUIET if placement.address else {**_QUIET, **own}).items():
        os.environ.setdefault(name, value)
    import ray  # noqa: PLC0415 - an extra, and slow to import

    if not ray.is_initialized():
        with restored_stop_signals():  # Ray takes SIGTERM for itself
            if placement.address:
                _join(ray, placement.address)
            else:
                _start(ray, placement)
        _until_exit.callback(ray.shutdown)
    return ray


def _join(ray: Any, address: str) -> None:
    try:
        if address != "auto":  # somebody must listen: Ray would ask a wrong address for ever
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        told = shown(" ".join(str(error).split()), 150) or type(error).__name__
        rule = "is auto or HOST:PORT of a Ray cluster that this machine is in, with its Ray and Python"
        fix = "Run here: ray start --address=HOST:PORT; if it asks for a token, set RAY_AUTH_MODE=token"
        raise ProfileError(where="param:address", rule=rule, got=f"{address} ({told})", fix=fix) from error


def _start(ray: Any, placement: Placement) -> None:
    """Start a Ray of our own, which the system ends with this process."""
    place = Path(tempfile.gettempdir())
    if len(os.fsencode(place)) > _MOST_PLACE:
        place = Path("/tmp")  # noqa: S108 - the folder made there is this user's alone
    try:
        # A process of Ray may write its last line; what cannot be removed then goes with the next one.
        _until_exit.enter_context(suppress(OSError))
        folder = _until_exit.enter_context(passing_folder("ray", place))
    except OSError as error:
        raise StorageError.of(place, error) from error
    ray.init(
        address="local",
        num_cpus=num_usable_cores() if placement.is_measured else placement.num_workers,
        num_gpus=0 if placement.device == "cpu" else len(visible_gpus()),
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        _temp_dir=str(folder),
        runtime_env={"env_vars": {"TMPDIR": str(folder)}},  # what workers leave goes with it
    )


@contextmanager
def _sign_in(folder: Path) -> Iterator[Path]:
    """Leave a file in a run folder by which workers know that theirs is the same one.

    Raises:
        StorageError: If it cannot be written.
    """
    sweep(folder)
    sign = aside_of(folder.absolute() / "shared")
    try:
        sign.touch()
        yield sign
    except OSError as error:
        raise StorageError.of(sign, error) from error
    finally:
        sign.unlink(missing_ok=True)


@cache
def _wanted() -> dict[str, str]:
    """Return what must be the same on all machines: versions, the code of v8 itself, and plug-ins."""
    plugins.load_plugins()
    package = Path(__file__).parents[1]
    code = digest_bytes(*(file.read_bytes() for file in sorted(package.rglob("*.py"))))
    return {**versions(), "v8's code": code[:12], "plug-ins": plugins.listed_plugins(plugins.loaded)}


# From here on: in a worker.


def _serve(wanted: dict[str, str], sign: str, shard: bytes, fleet_size: int | None) -> Iterator[Told]:
    """Be a task: make the artefacts of a shard of pickled jobs, and yield what there is to tell on the way.

    The versions that are wanted are the driver's, and the sign is a file that it has left in the run folder.
    Without the most series of one program, what suits the GPU is measured.
    """
    refusal = _refusal(wanted, Path(sign))
    if refusal:
        yield (refusal,)
        return
    yield ()
    told: SimpleQueue[Event] = SimpleQueue()
    jobs = pickle.loads(shard)  # noqa: S301 - our driver's
    is_done = False
    making = _bench().submit(_make, jobs, fleet_size, EventCallback(told.put))
    while not is_done:
        is_done = bool(wait([making], POLL_S).done)
        events = tuple(told.get_nowait() for _ in range(told.qsize()))
        if events:
            yield events
    making.result()


def _refusal(wanted: dict[str, str], sign: Path) -> V8Error | None:
    """Say why this process must not make what the driver asks for."""
    where = f"Ray worker on {platform.node()}"
    try:
        found = _wanted()
    except V8Error as error:
        return error
    different = [name for name in wanted if found.get(name) != wanted[name]]
    if different:
        rule = "must have the versions of the machine that v8 was called on"
        got = ", ".join(f"{name} {found.get(name)} for {wanted[name]}" for name in different)
        fix = "Install the same versions there, or results would differ from machine to machine"
        return V8Error(where=where, rule=rule, got=got, fix=fix)
    if not sign.exists():
        rule = f"must see the run folder {sign.parent}, on a file system that all machines share"
        fix = "Name with param:runs (or param:out) a folder that is at the same path on every machine"
        return StorageError(where=where, rule=rule, got="none there, or another one", fix=fix)
    return None


@cache
def _bench() -> ThreadPoolExecutor:
    """Return the thread in which a worker process makes one shard after another, with what it keeps of each.

    A thread, because Ray's own must hand on what is told; always the same one, because Keras keeps its
    settings in it.
    """
    for resources in (kept_programs(), resource_scope()):
        _until_exit.enter_context(resources)
    return ThreadPoolExecutor(1)


def _make(jobs: Sequence[Job], fleet_size: int | None, observer: RunObserver) -> None:
    """Make the artefacts of a shard; the pipeline of the last one is used, if it had the same settings."""
    with warnings_as_notes(observer):
        with light_start():
            from v8.runs import local  # noqa: PLC0415 - the driver must not start TensorFlow

        size = fleet_size or local.suited_fleet_size(jobs[0].profile, len(jobs))
        for outcome in local.InProcessEngine(size).train(jobs, observer):
            observer.on_event(outcome)
