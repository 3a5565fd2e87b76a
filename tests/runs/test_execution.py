"""The order of a run: candles of all first, then artefacts one by one, results after each.

The trainer's seat is taken by a stand-in of the same signature, as another engine would take it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from described_models import MACHINE, described_features, described_training
from evaluating import evaluate_arrays
from full_disk import file_limit
from outputs import write_outputs
from run_doubles import EngineOf, Recorder, new_plan
from tiny_profiles import tiny_profile

from v8.base.errors import DataError, StorageError
from v8.base.storage import digest_file, write_json, write_text
from v8.cli.runs import print_newer
from v8.data.market.candles import Candles
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.publish.report import outputs as report_outputs
from v8.publish.report.outputs import ReportWriter
from v8.runs.estimate import known_cost
from v8.runs.events import (
    CandleFinding,
    GettingReady,
    Note,
    ObserverGroup,
    RunObserver,
    RunSummary,
    SeriesOutcome,
    SeriesStarted,
    observed,
    run_isolated,
)
from v8.runs.execution import execute
from v8.runs.machine import FLAGS, TASK_PER_OPERATION
from v8.runs.plan import Engine, Job, Plan
from v8.runs.run_folder import RunFolder, RunRecord

ONE = Series("BTCUSDT", "15m")
TWO = Series("ETHUSDT", "1h")


class Market:
    """The demo market, with series that can go missing, or lose their oldest candle."""

    name = "market"
    is_publishable = True

    def __init__(self, missing: Sequence[Series] = (), shorter: Sequence[Series] = ()) -> None:
        self.missing = list(missing)
        self.shorter = list(shorter)
        self.asked: list[tuple[str, int | None]] = []

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        self.asked.append((str(series), end_s))
        if series in self.missing:
            raise DataError(where=str(series), rule="needs candles", got="none", fix="Bring some")
        return DemoSource().candles(series, num_bars - (series in self.shorter), end_s)


class HollowEngine(Engine):
    """Writes a hollow artefact instead of training."""

    def __init__(self, broken: Sequence[Series] = ()) -> None:
        self.broken = broken
        self.jobs: list[Job] = []
        self.flags: str | None = None  # of XLA, while it trained

    def train(self, jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        self.flags = os.environ.get("XLA_FLAGS")
        for job in jobs:
            self.jobs.append(job)
            observer.on_event(SeriesStarted(job.series))
            _, outcome = run_isolated(job.series, lambda job=job: self._work(job))
            yield outcome

    def _work(self, job: Job) -> None:
        if job.series in self.broken:
            raise ZeroDivisionError("half a\nreason")
        write_text(job.folder / "model.keras", str(job.series))
        write_text(job.folder / "history.csv", "epoch,train_loss,validation_loss\n1,0.5,0.6\n")
        digest = digest_file(job.folder / "model.keras")
        write_json(job.folder / "metadata.json", hollow_metadata(job, digest))


def hollow_metadata(job: Job, model_sha256: str) -> dict[str, Any]:
    """Return metadata with an evaluation of a model that is ten per cent off."""
    values = np.tile(np.array([1.0, 1.2, 0.9, 1.1]), (3, 1, 1))
    evaluation = evaluate_arrays(
        actual={"ohlc": values},
        model={"ohlc": values * 1.1},
        history_close=np.ones((3, 20)),
        offsets={"ohlc": np.zeros((1, 4))},
    )
    first, last = (
        datetime.fromtimestamp(int(open_s), UTC).isoformat() for open_s in job.candles.open_time_s[[0, -1]]
    )
    span = {"rows": [0, 3], "first_open": first, "last_open": last, "num_windows": 3}
    profile = job.recipe.profile
    return {
        "format": 2,
        "series": str(job.series),
        "created_at": last,
        "is_demo_market": False,
        "candles": {
            "source": "market",
            "is_publishable": True,
            "first_open": first,
            "last_open": last,
            "num_bars": len(job.candles),
            "digest": job.candles.digest,
            "report": asdict(job.candles.report),
        },
        "profile": profile.model_dump(mode="json"),
        "profile_digest": profile.digest,
        "features": described_features(profile.features),
        "lookback_bars": profile.lookback_bars,
        "horizon_bars": profile.horizon_bars,
        "bar_s": job.series.bar_s,
        "tasks": {"ohlc": {"columns": ["open", "high", "low", "close"], "unit": "price"}},
        "split": {"train": span, "validation": span, "test": span},
        "num_parameters": 0,
        "training": described_training(best_epoch=1, epochs_run=1),
        "seconds": {"train": 1.0},
        "versions": {"v8": "1", "keras": "3"},
        "machine": MACHINE,
        "model_sha256": model_sha256,
        "evaluation": evaluation.to_json(),
    }


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return new_plan(tiny_profile(), [ONE, TWO], tmp_path / "tiny")


def opened(plan: Plan) -> RunFolder:
    return RunFolder(plan.path, RunRecord.begin(plan.profile, "market", True, "python -m v8.run"))


def statuses(plan: Plan) -> dict[str, str]:
    series = json.loads((plan.path / "run.json").read_text())["series"]
    return {name: state["status"] for name, state in series.items()}


def carried_out(
    plan: Plan, folder: RunFolder, source: Any, engine: Engine, observer: RunObserver | None = None
) -> RunSummary:
    """Execute a plan; the report is drawn while it trains, and not at the end."""
    observers = ObserverGroup([observer or RunObserver(), ReportWriter()])
    current = plan.with_statuses(folder.record.series)
    with observed(observers, current, source.name, folder.save_record) as follower:
        return execute(current, folder, source, engine, follower)


@pytest.fixture
def draws_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the page after each series; here they end faster than it is drawn again otherwise."""
    monkeypatch.setattr(report_outputs, "LEAST_S", 0.0)


@pytest.mark.usefixtures("draws_at_once")
def test_g13_results_are_on_disk_after_each_series(plan: Plan) -> None:
    seen: list[list[str]] = []

    def looking(jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        for outcome in HollowEngine().train(jobs, observer):
            yield outcome
            rows = (plan.path / "leaderboard.csv").read_text().splitlines()[1:]
            seen.append([row.split(",")[0] for row in rows])
            assert str(outcome.series) in (plan.path / "report.html").read_text()
            assert str(outcome.series) in json.loads((plan.path / "timing.json").read_text())["series"]
            assert statuses(plan)[str(outcome.series)] == "done"

    with opened(plan) as folder:
        carried_out(plan, folder, Market(), EngineOf(looking))
    assert seen == [["BTCUSDT-15m"], ["BTCUSDT-15m", "ETHUSDT-1h"]]


def test_what_a_run_took_is_kept_for_the_next_plan(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), HollowEngine(broken=[ONE]))
    cost = known_cost(plan.profile)
    assert cost is not None
    assert cost.num_series == 1  # what failed is no measure


@pytest.mark.usefixtures("draws_at_once")
def test_outputs_written_series_by_series_are_those_written_at_once(plan: Plan) -> None:
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), HollowEngine())
    names = ("leaderboard.csv", "report.html", "timing.json", "features.py")
    before = [(plan.path / name).read_bytes() for name in names]
    write_outputs(plan.path)
    assert before == [(plan.path / name).read_bytes() for name in names]


def test_g10_an_unforeseen_error_of_one_series_is_kept_whole_and_stops_nobody(plan: Plan) -> None:
    with opened(plan) as folder:
        summary = carried_out(plan, folder, Market(), HollowEngine(broken=[ONE]))
    assert statuses(plan) == {"BTCUSDT-15m": "failed", "ETHUSDT-1h": "done"}
    (failure,) = summary.failures
    assert str(failure.reason).startswith("BTCUSDT-15m: unexpected ZeroDivisionError: half a reason. ")
    trace = (plan.path / "BTCUSDT-15m" / "error.txt").read_text()
    assert trace.startswith("Traceback")
    assert trace.endswith("ZeroDivisionError: half a\nreason\n")
    assert summary.exit_code == 4


def test_g9_a_series_without_candles_never_reaches_the_trainer(plan: Plan) -> None:
    engine = HollowEngine()
    with opened(plan) as folder:
        summary = carried_out(plan, folder, Market(missing=[ONE]), engine)
    assert [job.series for job in engine.jobs] == [TWO]
    assert statuses(plan) == {"BTCUSDT-15m": "failed", "ETHUSDT-1h": "done"}
    assert [str(failure.series) for failure in summary.failures] == ["BTCUSDT-15m"]


def test_a_run_without_any_candles_is_told_apart(plan: Plan) -> None:
    with opened(plan) as folder:
        summary = carried_out(plan, folder, Market(missing=[ONE, TWO]), HollowEngine())
    assert summary.exit_code == 3
    assert (plan.path / "report.html").exists() is False


def test_g12_only_what_is_not_finished_is_done_again_up_to_the_same_candle(plan: Plan) -> None:
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), HollowEngine(broken=[TWO]))
    market = Market()
    engine = HollowEngine()
    recorder = Recorder()
    with opened(plan) as folder:
        summary = carried_out(plan, folder, market, engine, recorder)
    assert [job.series for job in engine.jobs] == [TWO]
    assert (summary.num_trained, summary.num_finished_before, summary.failures) == (1, 1, ())
    notes = recorder.notes
    assert [note.partition(" are ")[0] for note in notes] == ["1 of 2 series"]
    # The demo market's newest 15m candle opens 900 s before 2025-01-01T00:00Z = 1,735,689,600.
    assert market.asked == [("BTCUSDT-15m", 1_735_688_700), ("ETHUSDT-1h", 1_735_686_000)]


def test_a_series_whose_candles_changed_fails_by_itself(plan: Plan) -> None:
    """At 4c79749 it stopped the whole call, and the other series was never trained."""
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), HollowEngine(broken=[ONE, TWO]))
    with opened(plan) as folder:
        summary = carried_out(plan, folder, Market(shorter=[ONE]), HollowEngine())
    assert statuses(plan) == {"BTCUSDT-15m": "failed", "ETHUSDT-1h": "done"}
    assert (summary.num_trained, len(summary.failures), summary.exit_code) == (1, 1, 4)
    reason = "BTCUSDT-15m: .* was started with 700 candles .*; got 699 candles .* --fresh"
    assert re.match(reason, str(summary.failures[0].reason))
    assert "DataError" in (plan.path / "BTCUSDT-15m" / "error.txt").read_text()


def test_a_finished_series_whose_candles_changed_keeps_its_model_and_is_told(plan: Plan) -> None:
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), HollowEngine(broken=[TWO]))
    recorder = Recorder()
    with opened(plan) as folder:
        summary = carried_out(plan, folder, Market(shorter=[ONE]), HollowEngine(), recorder)
    assert statuses(plan) == {"BTCUSDT-15m": "done", "ETHUSDT-1h": "done"}
    assert (summary.num_trained, summary.num_finished_before) == (1, 0)
    assert [str(failure.series) for failure in summary.failures] == ["BTCUSDT-15m"]
    assert any(isinstance(event, Note) and event.text.startswith("failed: BTC") for event in recorder.events)
    assert not (plan.path / "BTCUSDT-15m" / "error.txt").exists()


def test_a_traceback_that_is_kept_holds_no_password(plan: Plan) -> None:
    class Leaking(Market):
        def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
            raise RuntimeError(f"http://me:s3cret@host/{'x' * 1_000}\nand \x1b more")

    with opened(plan) as folder:
        summary = carried_out(plan, folder, Leaking(), HollowEngine())
    kept = (plan.path / "BTCUSDT-15m" / "error.txt").read_text() + (plan.path / "run.json").read_text()
    assert "RuntimeError: http://***@host/x" in kept
    for text in (kept, *(str(failure.reason) for failure in summary.failures)):
        assert "s3cret" not in text
    assert all(str(failure.reason).isprintable() for failure in summary.failures)


def test_a_finished_series_stays_finished_when_its_candles_cannot_be_read_again(plan: Plan) -> None:
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), HollowEngine())
    with opened(plan) as folder:
        summary = carried_out(plan, folder, Market(missing=[ONE]), HollowEngine())
    assert (summary.num_finished_before, summary.failures) == (2, ())
    assert not (plan.path / "BTCUSDT-15m" / "error.txt").exists()


def test_a_finished_series_whose_files_were_taken_away_is_trained_again(plan: Plan) -> None:
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), HollowEngine())
    (plan.path / "BTCUSDT-15m" / "model.keras").unlink()
    recorder = Recorder()
    engine = HollowEngine()
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), engine, recorder)
    assert [job.series for job in engine.jobs] == [ONE]
    assert any(note.startswith("BTCUSDT-15m: was finished, ") for note in recorder.notes)


DAMAGE: dict[str, tuple[str, str | None, str]] = {
    "a changed model": ("model.keras", "mine", r"model\.keras: must be the file whose sha256"),
    "cut metadata": ("metadata.json", '{"format": 1, "ser', r"metadata\.json: must be valid JSON"),
    "metadata of another format": (
        "metadata.json",
        '{"format": 9}',
        r"metadata\.json: this v8 reads artefact format 2",
    ),
    "a lost history": ("history.csv", None, r"history\.csv: must be "),
    "a cut history": ("history.csv", "epoch,train", r"history\.csv: must be CSV"),
    "a shorter history": (
        "history.csv",
        "epoch,train_loss,validation_loss\n",
        r"history\.csv: must have a row for each of 1 epochs; got 0",
    ),
    "a cut sample": ("forecasts.json", "{", r"forecasts\.json: must be valid JSON"),
}


@pytest.mark.parametrize(("name", "content", "match"), DAMAGE.values(), ids=DAMAGE)
def test_a_finished_series_with_a_damaged_file_is_refused_by_itself_and_nothing_is_overwritten(
    plan: Plan, name: str, content: str | None, match: str
) -> None:
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), HollowEngine(broken=[TWO]))
    file = plan.path / "BTCUSDT-15m" / name
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_text(content)
    engine = HollowEngine()
    with opened(plan) as folder:
        summary = carried_out(plan, folder, Market(), engine)
    assert [job.series for job in engine.jobs] == [TWO]
    (refused,) = summary.failures
    assert re.search(rf"BTCUSDT-15m/{match}", refused.reason or "")
    assert "--redo BTCUSDT-15m" in (refused.reason or "")
    assert (summary.num_trained, summary.num_finished_before) == (1, 0)
    assert statuses(plan) == {"BTCUSDT-15m": "done", "ETHUSDT-1h": "done"}
    assert (file.read_text() if file.exists() else None) == content
    assert not (plan.path / "BTCUSDT-15m" / "error.txt").exists()
    assert "ETHUSDT-1h" in (plan.path / "leaderboard.csv").read_text()


@pytest.mark.parametrize("name", ["leaderboard.csv", "report.html", "timing.json"])
def test_a_page_that_cannot_be_written_costs_a_line_and_no_series(plan: Plan, name: str) -> None:
    (plan.path / name).mkdir(parents=True)  # a folder in the place of the file: refused to everybody
    write_json(plan.path / "run.json", asdict(RunRecord.begin(plan.profile, "market", True, "v8")))
    recorder = Recorder()
    with opened(plan) as folder:
        summary = carried_out(plan, folder, Market(), HollowEngine(), recorder)
    assert (summary.num_trained, summary.failures) == (2, ())
    assert statuses(plan) == {"BTCUSDT-15m": "done", "ETHUSDT-1h": "done"}
    (said,) = recorder.notes
    assert said.startswith(f"{plan.path}: {name} could not be written, ")
    assert said.endswith(f"`python -m v8 report {plan.path}`.")


def test_an_error_that_cannot_be_kept_stops_nobody(plan: Plan) -> None:
    with opened(plan) as folder:
        (plan.path / "BTCUSDT-15m" / "error.txt").mkdir(parents=True)
        recorder = Recorder()
        summary = carried_out(plan, folder, Market(), HollowEngine(broken=[ONE]), recorder)
    assert statuses(plan) == {"BTCUSDT-15m": "failed", "ETHUSDT-1h": "done"}
    assert summary.num_trained == 1
    notes = recorder.notes
    assert [note.partition(";")[0] for note in notes] == [
        f"{plan.path / 'BTCUSDT-15m' / 'error.txt'}: must be written"
    ]


def test_a_run_whose_record_cannot_be_written_ends_with_one_sentence(plan: Plan) -> None:
    def full(jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        with file_limit(100):
            yield from HollowEngine().train(jobs, observer)

    with opened(plan) as folder, pytest.raises(StorageError, match=r"run\.json: .*got File"):
        carried_out(plan, folder, Market(), EngineOf(full))
    assert statuses(plan) == {"BTCUSDT-15m": "pending", "ETHUSDT-1h": "pending"}


def test_a_finished_run_needs_no_folder_that_can_be_written(plan: Plan) -> None:
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), HollowEngine())
    (plan.path / ".lock").unlink()
    (plan.path / ".lock").mkdir()
    recorder = Recorder()
    with opened(plan) as folder:
        summary = carried_out(plan, folder, Market(), HollowEngine(), recorder)
    assert (summary.num_trained, summary.num_finished_before, summary.failures) == (0, 2, ())
    (note,) = recorder.notes
    assert note.startswith("2 of 2 series ")


def test_a_run_with_work_left_refuses_a_place_that_cannot_be_written_before_it_reads_candles(
    plan: Plan,
) -> None:
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), HollowEngine(broken=[TWO]))
    (plan.path / ".lock").unlink()
    (plan.path / ".lock").mkdir()
    market = Market()
    with opened(plan) as folder, pytest.raises(StorageError, match=r"tiny/.lock: .*got a folder in"):
        carried_out(plan, folder, market, HollowEngine())
    assert market.asked == []


def test_an_interrupt_leaves_finished_series_finished_and_the_others_waiting(plan: Plan) -> None:
    def cut(jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        yield from HollowEngine().train(jobs[:1], observer)
        observer.on_event(SeriesStarted(jobs[1].series))
        assert statuses(plan)["ETHUSDT-1h"] == "running"
        raise KeyboardInterrupt

    with opened(plan) as folder, pytest.raises(KeyboardInterrupt, match=r"^$"):
        carried_out(plan, folder, Market(), EngineOf(cut))
    assert statuses(plan) == {"BTCUSDT-15m": "done", "ETHUSDT-1h": "pending"}


def test_jobs_carry_the_seed_of_their_series(plan: Plan) -> None:
    engine = HollowEngine()
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), engine)
    # The profile's seed is 42; BTCUSDT-15m is number 0 of the universe, ETHUSDT-1h number 3.
    assert [job.seed for job in engine.jobs] == [42, 45]


class Growing(Market):
    """A market that has come as far as `until_s`."""

    def __init__(self, until_s: int) -> None:
        super().__init__()
        self.until_s = until_s

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        found = DemoSource().candles(series, 10_000, self.until_s)
        whole = replace(found, report=replace(found.report, num_newer=0))
        return whole.newest(num_bars, end_s)


def test_candles_that_have_come_since_are_told_of(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    begun_s = 1_735_000_000 // 3_600 * 3_600
    with opened(plan) as folder:
        carried_out(plan, folder, Growing(begun_s), HollowEngine())
    with opened(plan) as folder:
        again = carried_out(plan, folder, Growing(begun_s), HollowEngine())
    with opened(plan) as folder:
        later = carried_out(plan, folder, Growing(begun_s + 200 * 900), HollowEngine())
    assert (again.newer_candles, later.num_trained, later.num_finished_before) == ((), 0, 2)
    assert [(str(each.series), each.num_bars, each.first_s) for each in later.newer_candles] == [
        ("BTCUSDT-15m", 200, begun_s + 900),
        ("ETHUSDT-1h", 50, begun_s + 3_600),
    ]
    for summary in (again, later):
        print_newer(summary.newer_candles, ["Train on them: v8 update RUN"], "v8 run --fresh")
    lines = capsys.readouterr().out.splitlines()
    assert re.match("2 series .* 200 new candles from 2024-12-24T00:15:00Z ", lines[0])
    assert lines[1] == "Train on them: v8 update RUN" and lines[2].endswith(": v8 run --fresh")


def test_a_run_keeps_the_batches_of_the_device_that_it_began_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # a machine without a GPU
    training = {"batch_size": 16, "gradient_accumulation": 2, "cpu_batch_size": 4}
    profile = tiny_profile(training=training)
    found = []
    for name, begun_on_gpu in (("here", False), ("elsewhere", True)):
        plan = new_plan(profile, [ONE], tmp_path / name)
        engine = HollowEngine()
        with opened(plan) as folder:
            if begun_on_gpu:
                folder.choose_once(
                    "num_micro_batches", lambda: profile.training.num_micro_batches(is_on_gpu=True)
                )
            carried_out(plan, folder, Market(), engine)
        found.append(
            (
                engine.jobs[0].recipe.device_settings.num_micro_batches,
                json.loads((plan.path / "run.json").read_text())["num_micro_batches"],
            )
        )
    assert found == [(8, 8), (2, 2)]


def test_who_continues_a_run_compiles_loops_as_it_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though this machine would choose otherwise."""
    for name, begun in (("whole", "whole_of_16"), ("short", None)):
        monkeypatch.setenv("XLA_FLAGS", TASK_PER_OPERATION)
        plan = new_plan(tiny_profile(), [ONE], tmp_path / name)
        with opened(plan) as folder:
            if begun:
                folder.choose_once("loops", lambda: "whole_of_16")
            carried_out(plan, folder, Market(), engine := HollowEngine())
        text = json.loads((plan.path / "run.json").read_text())["loops"]
        loops = begun or "stepwise"
        assert (text, engine.flags) == (loops, FLAGS[loops])
        assert os.environ["XLA_FLAGS"] == TASK_PER_OPERATION  # the next run in this process chooses anew


def test_what_is_to_be_known_of_the_candles_is_said_before_training(plan: Plan) -> None:
    recorder = Recorder()
    with opened(plan) as folder:
        carried_out(plan, folder, Market(), HollowEngine(), recorder)
    kinds = [type(event) for event in recorder.events]
    (finding,) = (event.text for event in recorder.events if type(event) is CandleFinding)
    assert "2 series" in finding  # the candles of this market end with 2024
    assert kinds.index(CandleFinding) < kinds.index(GettingReady)
