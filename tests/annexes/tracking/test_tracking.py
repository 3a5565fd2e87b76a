"""Trackers: the curves and results of a real run, nothing without being asked, never at a run's cost."""

from __future__ import annotations

import csv
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from forked import called
from run_doubles import new_plan
from tiny_profiles import tiny_profile

from v8.base.errors import ProfileError
from v8.data.market.series import Series
from v8.model.evaluation.evaluation import Evaluation
from v8.model.training.trainer import EpochRecord
from v8.profile.profile import load_profile
from v8.runs.events import (
    TRACKERS,
    EpochEnded,
    Event,
    Follower,
    Note,
    RunContext,
    SeriesOutcome,
    TrackerError,
    TrackerKind,
    check_trackers,
    followers,
)

REPOSITORY = Path(__file__).parents[3]
SERIES = Series("BTCUSDT", "15m")


def epoch_ended(epoch: int = 1) -> EpochEnded:
    return EpochEnded(SERIES, EpochRecord(epoch, 0.5, 0.25, 1e-3, 2.0, 100.0, is_best=True), 3)


class FullDisk:
    """A tracker that cannot keep anything."""

    def finish(self, series: str) -> None:
        raise AssertionError("a tracker that failed is left alone")


def context(path: Path, notify: Callable[[Event], None] = lambda event: None) -> RunContext:
    return RunContext(new_plan(load_profile("range_paths"), (), path), "demo", notify)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("http://me:s3cret@host answers 503"), "http://***@host answers 503"),
        (TrackerError("https://host/api?token=s3cret: 503"), "https://host/api?token=*** 503"),
        (KeyError("scheme"), "unexpected KeyError: 'scheme'"),
    ],
)
@pytest.mark.parametrize("moment", ["open", "log"])
def test_whatever_a_tracker_raises_is_one_note_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, error: Exception, told: str
) -> None:
    class Failing(FullDisk):
        def __init__(self, run: Any) -> None:
            if moment == "open":
                raise error

        def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
            asked.append(step)
            raise error

    asked: list[int] = []
    monkeypatch.setitem(TRACKERS, "tensorboard", replace(TRACKERS["tensorboard"], open=Failing))
    notes: list[Event] = []
    follower = Follower("tensorboard")
    follower.on_begin(context(tmp_path, notes.append))
    for event in (epoch_ended(1), epoch_ended(2), SeriesOutcome(SERIES), SeriesOutcome(SERIES, reason="no")):
        follower.on_event(event)
    follower.on_end()
    assert asked == ([1] if moment == "log" else [])  # it is dropped
    assert [type(note) for note in notes] == [Note]
    assert [note.text.partition(": ")[2] for note in notes] == [told]


def test_an_unknown_tracker_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ProfileError, match=r"--track tensorbord: .*got 'tensorbord'.*tensorboard"):
        check_trackers(["tensorbord"])


def test_a_tracker_of_ones_own_is_told_what_happens(tmp_path: Path) -> None:
    class Counter:
        num_asked = 0

        def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
            self.num_asked += 1

        def finish(self, series: str) -> None:
            self.num_asked += 10

    mine = Counter()
    TRACKERS.register(TrackerKind("mine", "counts", "this test", lambda run: mine))
    try:
        check_trackers(["mine"])
        (observer,) = followers(["mine"])
        observer.on_begin(context(tmp_path))
        observer.on_event(epoch_ended())
        observer.on_end()
    finally:
        TRACKERS.pop("mine")
    assert mine.num_asked == 11


@pytest.mark.parametrize("name", list(TRACKERS))
def test_a_tracker_whose_package_is_missing_says_how_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, TRACKERS[name].package, None)  # what Python takes for: not there
    with pytest.raises(
        ProfileError, match=rf"--track {name}: needs the package {name}; .*pip install {name}\."
    ):
        check_trackers([name])


def run_python(code: str, **variables: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout.strip()


@pytest.mark.process
def test_nothing_is_imported_that_was_not_asked_for() -> None:
    code = "import sys, v8.runs.events\nprint({'tensorboard', 'wandb', 'tensorflow'} & set(sys.modules))"
    assert run_python(code) == "set()"


@pytest.mark.process
def test_event_files_are_written_without_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from v8.annexes.tracking import EventFiles\n"
        "from v8.runs.events import TrackedRun\n"
        f"files = EventFiles(TrackedRun(Path({str(tmp_path)!r}), {{}}, 'demo'))\n"
        "files.log('BTCUSDT-15m', 1, {'loss/train': 0.5})\n"
        "files.finish('BTCUSDT-15m')\n"
        "print('tensorflow' in sys.modules)"
    )
    assert run_python(code) == "False"
    assert len(list((tmp_path / "tensorboard" / "BTCUSDT-15m").iterdir())) == 1


@pytest.mark.process
def test_wandb_without_a_login_is_refused_and_told_of_the_offline_mode(tmp_path: Path) -> None:
    # An address at which nobody listens: the refusal needs no network.
    code = (
        "from v8.runs.events import check_trackers\n"
        "from v8.base.errors import ProfileError\n"
        "try:\n"
        "    check_trackers(['wandb'])\n"
        "except ProfileError as error:\n"
        "    print(error)"
    )
    away = {"HOME": str(tmp_path), "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_MODE": "online"}
    told = run_python(code, **away, WANDB_API_KEY="", NETRC=str(tmp_path / "netrc"))
    assert re.search("--track wandb: .* WANDB_MODE=offline .*; got neither. Run: wandb login.$", told)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs, followed by both trackers."""
    place = tmp_path_factory.mktemp("tracked")
    profile = tiny_profile("dense_newest", training={"epochs": 2})
    (place / "tiny.yaml").write_text(yaml.safe_dump(json.loads(profile.model_dump_json())))
    words = ["--profile", str(place / "tiny.yaml"), "--source", "demo", "--series", "BTCUSDT-15m"]
    words += ["--runs", str(place / "runs"), "--track", "tensorboard", "--track", "wandb"]
    home = {"HOME": str(place), "V8_HOME": str(place / "home"), "WANDB_MODE": "offline"}
    env = {**os.environ, **home, "CUDA_VISIBLE_DEVICES": "-1"}
    process = called("run", *words, cwd=REPOSITORY, env=env, tf=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "--track" not in process.stdout  # no tracker was dropped
    return place / "runs" / "tiny"


def expected(run: Path) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the curves by tag as `history.csv` has them, and results as `metadata.json` has them."""
    rows = list(csv.DictReader((run / "BTCUSDT-15m" / "history.csv").read_text("utf-8").splitlines()))
    columns = {
        "loss/train": "train_loss",
        "loss/validation": "validation_loss",
        "learning_rate": "learning_rate",
    }
    curves = {tag: [float(row[column]) for row in rows] for tag, column in columns.items()}
    metadata = json.loads((run / "BTCUSDT-15m" / "metadata.json").read_text("utf-8"))
    evaluation = Evaluation.from_json(metadata["evaluation"])
    results = {f"test/{task}/error_over_naive": evaluation.relative_error(task) for task in evaluation.tasks}
    return curves, results


@pytest.mark.nightly
@pytest.mark.process
def test_tensorboard_holds_the_history_and_the_results(run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard" / "BTCUSDT-15m")).Reload()
    curves, results = expected(run)
    for tag, values in curves.items():
        assert [event.step for event in events.Scalars(tag)] == [1, 2]
        assert [event.value for event in events.Scalars(tag)] == pytest.approx(values, rel=1e-6)
    assert len(results) == 3  # a task each
    for tag, value in results.items():
        (found,) = events.Scalars(tag)
        assert (found.step, found.value) == (2, pytest.approx(value, rel=1e-6))


@pytest.mark.process
def test_wandb_keeps_the_same_numbers_on_this_machine(run: Path) -> None:
    history = wandb_history(run)
    curves, results = expected(run)
    for tag, values in curves.items():
        assert [row[tag] for row in history if tag in row] == pytest.approx(values)
    assert {tag: history[-1][tag] for tag in results} == pytest.approx(results)


@pytest.mark.process
def test_wandb_is_given_no_code_no_packages_and_no_output(run: Path) -> None:
    (folder,) = (run / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    assert b"BTCUSDT-15m" in file.read_bytes()
    assert b"BTCUSDT-15m: started" not in file.read_bytes()  # what the run printed
    assert b"v8.cli" not in file.read_bytes()
    assert list((folder / "files").rglob("*")) == []


def wandb_history(run: Path) -> list[dict[str, Any]]:
    from wandb.proto import wandb_internal_pb2

    (file,) = (run / "wandb").glob("offline-run-*/*.wandb")
    rows = []
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            rows.append({key: json.loads(value) for key, value in items.items()})
    return rows


def log_records(content: bytes) -> Iterator[bytes]:
    """Read LevelDB's log format: blocks of 32 KiB, records of checksum, length, kind and data.

    https://github.com/google/leveldb/blob/main/doc/log_format.md; wandb puts 7 bytes of its own first.
    """
    at = 7
    whole = b""
    while at + 7 <= len(content):
        left = 32_768 - at % 32_768
        _, length, kind = struct.unpack_from("<IHB", content, at)
        if left < 7 or kind == 0:
            at += left
            continue
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # a whole record, or the last piece of one
            yield whole
            whole = b""
