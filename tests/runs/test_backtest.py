"""Back-tests of a formula in this process: they are cut off and continued, and see nothing that is later."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from run_doubles import EngineOf, Recorder

from v8.api.export import write_forecasts
from v8.base.errors import ArtifactError, DataError
from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.data.market.sources import OpenedSource
from v8.data.market.sources.demo import DemoSource
from v8.forecaster.metadata import read_metadata
from v8.profile.profile import Profile, load_profile
from v8.publish.report.backtest import backtest_page, headline, write_backtest
from v8.publish.report.outputs import ReportWriter
from v8.runs.backtest import (
    Backtest,
    BacktestPlan,
    begin_or_continue,
    read_plan,
    read_results,
    run_fold,
    run_folds,
)
from v8.runs.events import ObserverGroup, RunObserver, SeriesOutcome
from v8.runs.local import InProcessEngine
from v8.runs.plan import Engine, Job

SERIES = (Series("BTCUSDT", "15m"), Series("ETHUSDT", "15m"))
NUM_FOLDS = 2
HISTORY = 2_400


def formula() -> Profile:
    content = load_profile("range_paths").model_dump() | {"horizon_bars": 2, "newest_bars": 2_250}
    content["tasks"] = {name: content["tasks"][name] for name in ("ohlc", "volatility")}
    return Profile.model_validate(content)


def asked(**changes: Any) -> Backtest:
    wanted = {"profile": formula(), "series": SERIES, "num_folds": NUM_FOLDS, "history_bars": HISTORY}
    return Backtest(**{**wanted, "command": "python -m v8 backtest", **changes})


class CutOff(Exception):
    """What a kill is in these tests."""


def cut_off_after(num_outcomes: int) -> Engine:
    """Train until so many series have ended, then no more."""

    def train(jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        for number, outcome in enumerate(InProcessEngine().train(jobs, observer)):
            if number == num_outcomes:
                raise CutOff  # its artefact is written, and nobody has noted that yet
            yield outcome

    return EngineOf(train)


def go_on(path: Path, engine: Engine | None = None, observer: RunObserver | None = None) -> BacktestPlan:
    observers = ObserverGroup([observer or RunObserver(), ReportWriter(only_at_end=True)])
    plan = run_folds(path, asked(), DemoSource(), engine or InProcessEngine(), observers).plan
    write_backtest(path, read_results(path, plan))
    return plan


def found(path: Path) -> Any:
    """What a back-test says, without when it was said."""
    content = json.loads((path / "backtest.json").read_text("utf-8"))
    return {name: value for name, value in content.items() if name != "created_at"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("undisturbed") / "formula"
    path.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("V8_HOME", str(path.parent / "home"))
        go_on(path)
    return path


@pytest.mark.tf
def test_each_model_sees_candles_up_to_its_fold_and_is_evaluated_on_the_last_of_them(
    undisturbed: Path,
) -> None:
    plan = read_plan(undisturbed)
    assert [len(fold.newest_s) for fold in plan.folds] == [2, 2]
    for fold in plan.folds:
        for name, newest_s in fold.newest_s.items():
            metadata = read_metadata(undisturbed / fold.folder / name).content
            split = {
                span: [datetime.fromisoformat(about[key]).timestamp() for key in ("first_open", "last_open")]
                for span, about in metadata["split"].items()
                if span != "embargo_bars"
            }
            assert datetime.fromisoformat(metadata["candles"]["last_open"]).timestamp() == newest_s
            assert split["test"][1] == newest_s
            embargo_s = 242 * 900
            assert split["test"][0] - split["validation"][1] > embargo_s
            assert split["validation"][0] - split["train"][1] > embargo_s


@pytest.mark.tf
def test_the_results_tell_of_every_model_beside_every_baseline(undisturbed: Path) -> None:
    results = found(undisturbed)["results"]
    assert [one["name"] for one in results["folds"]] == ["fold 1", "fold 2"]
    assert results["failures"] == {}
    assert len(results["cells"]) == 4
    for stretch in (*results["folds"], *results["pools"]):
        for result in stretch["tasks"].values():
            assert result["relative_mae"]["model"] == pytest.approx(
                result["relative_mae"]["range_paths"], rel=1e-5
            )
            assert result["relative_mae"]["naive"] == 1.0
            assert {"scaled", "har", "ewma", "offset"} < result["relative_mae"].keys()
    page = (undisturbed / "backtest.html").read_text("utf-8")
    assert "Simulated market" in page and "Back-test of profile range_paths" in page


@pytest.mark.tf
def test_every_forecast_of_every_fold_is_in_one_table(undisturbed: Path, tmp_path: Path) -> None:
    file = tmp_path / "all.parquet"
    one = tmp_path / "one.csv"

    def demo(name: str) -> OpenedSource:
        return OpenedSource(DemoSource())

    written = write_forecasts(undisturbed, file, form="parquet", open_source=demo)
    table = pd.read_parquet(file)
    assert (written.num_rows, written.missing, written.notes) == (len(table), {}, [])
    groups = table.groupby(["fold", "series"])
    assert set(groups.groups) == {(fold, str(series)) for fold in (1, 2) for series in SERIES}
    for (fold, name), rows in groups:
        metadata = read_metadata(undisturbed / f"fold-{fold}" / name)
        assert int(rows["issued_at"].min().timestamp()) >= metadata.trained_until_s
        assert len(rows) == metadata.evaluation.num_windows * 2
        errors = (rows["volatility"] - rows["volatility_actual"]).abs()
        assert errors.mean() == pytest.approx(metadata.evaluation.error("volatility").overall, rel=1e-9)
    assert (table["open_time"] >= table["issued_at"]).all()
    write_forecasts(undisturbed, one, form="csv", open_source=demo, names=["ETHUSDT-15m"])
    assert set(pd.read_csv(one)["series"]) == {"ETHUSDT-15m"}


@pytest.mark.tf
@pytest.mark.parametrize("num_outcomes", [1])
def test_one_that_was_cut_off_goes_on_to_the_same_results(
    num_outcomes: int, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_HOME", str(undisturbed.parent / "home"))
    path = tmp_path / "formula"
    recorder = Recorder()
    path.mkdir()
    with pytest.raises(CutOff):
        go_on(path, cut_off_after(num_outcomes))
    go_on(path, observer=recorder)
    assert found(path) == found(undisturbed)
    assert sum(isinstance(event, SeriesOutcome) for event in recorder.events) == 2 * NUM_FOLDS - num_outcomes


class NoFurther(DemoSource):
    """A source whose candles have moved on since: the plan alone says where folds end."""

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        assert end_s is not None
        return super().candles(series, num_bars, end_s)


@pytest.mark.tf
def test_the_plan_stays_when_the_candles_move_on(undisturbed: Path) -> None:
    begun = begin_or_continue(undisturbed, asked(), NoFurther(), RunObserver())
    assert begun == read_plan(undisturbed)


@pytest.mark.tf
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_folds": 3}, "other values: --folds 2 -> 3"),
        ({"series": SERIES[:1]}, f"other values: without {SERIES[1]}"),
        ({"series": [SERIES[0], Series.parse("XYZUSDT-1h")]}, f"without {SERIES[1]}, with XYZUSDT-1h"),
        ({"series": SERIES[::-1]}, "the series in another order"),
        ({"history_bars": None}, "--history 2400 -> none"),
        ({"profile": formula().with_budget(newest_bars=2_300)}, "values: newest_bars 2250 -> 2300[.] "),
    ],
)
def test_it_is_continued_with_what_it_was_begun_with(
    changes: dict[str, Any], told: str, undisturbed: Path
) -> None:
    with pytest.raises(ArtifactError, match=told):
        begin_or_continue(undisturbed, asked(**changes), DemoSource(), RunObserver())


@pytest.mark.tf
def test_a_fold_that_lost_a_fold_says_so(undisturbed: Path, tmp_path: Path) -> None:
    path = shutil.copytree(undisturbed, tmp_path / "copy")
    (path / "fold-2" / "BTCUSDT-15m" / "test_losses.npz").unlink()
    with pytest.raises(ArtifactError, match=r"fold-2.BTCUSDT-15m.test_losses\.npz: .* Move the folder"):
        read_results(path, read_plan(path))


class Rewritten(DemoSource):
    """A source that tells the first series' candles up to a fold's end otherwise since."""

    end_s = 0

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        told = super().candles(series, num_bars, end_s)
        if series != SERIES[0] or end_s != self.end_s:
            return told
        frame = told.to_frame().reset_index()
        frame["volume"] *= 2
        return check_candles(frame, series, source=self.name)


@pytest.mark.tf
def test_a_fold_whose_candles_changed_is_not_pooled_with_what_was_evaluated_of_the_old_ones(
    undisturbed: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(undisturbed, tmp_path / "copy")
    plan = read_plan(path)
    source = Rewritten()
    last = plan.folds[-1]
    source.end_s = last.newest_s[str(SERIES[0])]
    summary = run_fold(path, asked(), last, source, InProcessEngine(), observer=RunObserver())
    refused = {last.folder: {str(one.series): str(one.reason) for one in summary.failures}}
    assert list(refused[last.folder]) == ["BTCUSDT-15m"]
    results = read_results(path, plan, refused)
    assert [*results.cells] == [(1, "BTCUSDT-15m"), (1, "ETHUSDT-15m"), (2, "ETHUSDT-15m")]
    reason = results.failures["fold-2"]["BTCUSDT-15m"]
    assert "was started with 2,250 candles" in reason
    assert "--out" in reason and "--fresh" not in reason  # which the command has not
    expected = "Incomplete: fold 2 (1 of 2 models)"
    assert expected in headline(results) and expected in backtest_page(results)
    (pool,) = (one for one in results.pools if one.name == "all folds")
    assert pool.tasks["ohlc"].num_cells == 3
    assert "All folds are complete." in headline(read_results(path, plan))


@pytest.mark.tf
def test_a_damaged_fold_is_made_again_without_an_option_of_runs(undisturbed: Path, tmp_path: Path) -> None:
    path = shutil.copytree(undisturbed, tmp_path / "copy")
    folder = path / "fold-2" / "BTCUSDT-15m"
    (folder / "metadata.json").write_text("{")
    fold = read_plan(path).folds[-1]
    summary = run_fold(path, asked(), fold, DemoSource(), InProcessEngine(), observer=RunObserver())
    (failure,) = summary.failures
    assert isinstance(failure.error, ArtifactError)
    assert "param:redo" not in failure.error.fix and str(folder) in failure.error.fix
    folder.rename(tmp_path / "aside")
    summary = run_fold(path, asked(), fold, DemoSource(), InProcessEngine(), observer=RunObserver())
    assert (summary.num_trained, summary.failures) == (1, ())


def without(plan: Any, key: str) -> None:
    del plan[key]


BROKEN_PLANS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a fold twice": (
        lambda plan: plan["folds"].append(plan["folds"][-1]),
        r"key folds: .* got 2 folds asked for, and in the plan 1, 2, 2",
    ),
    "a fold in another's place": (
        lambda plan: plan["folds"][1].update(newest_s=plan["folds"][0]["newest_s"]),
        r"key folds: .* got fold-2 of 15m, which does not end after the one before",
    ),
    "another order": (lambda plan: plan["folds"].reverse(), r"key folds: .* in the plan 2, 1"),
    "a fold less": (lambda plan: plan["folds"].pop(), r"key folds: .* asked for, and in the plan 1\."),
    "no fold": (lambda plan: without(plan, "folds"), r"key folds: .* in the plan none\."),
    "another series": (
        lambda plan: plan["folds"][1]["newest_s"].update({"SOLUSDT-15m": 1}),
        r"key folds: .* got SOLUSDT-15m in fold-2, which the back-test was not asked for",
    ),
    "ends apart": (
        lambda plan: plan["folds"][1]["newest_s"].update({"BTCUSDT-15m": 1}),
        r"key folds: .* got series of one timeframe that end fold-2 at different times",
    ),
    "a series twice": (
        lambda plan: plan["series"].append("BTCUSDT-15m"),
        r"key series: .* got a series listed twice",
    ),
    "another profile": (
        lambda plan: plan["profile"].update(lookback_bars=300),
        r"key profile: must be the profile whose digest stands in profile_digest \([0-9a-f]{12}\)",
    ),
}


@pytest.mark.tf
@pytest.mark.parametrize("name", BROKEN_PLANS)
def test_a_plan_that_no_back_test_wrote_is_refused_in_one_sentence(
    name: str, undisturbed: Path, tmp_path: Path
) -> None:
    content = json.loads((undisturbed / "plan.json").read_text("utf-8"))
    change, told = BROKEN_PLANS[name]
    change(content)
    (tmp_path / "plan.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(ArtifactError, match=told) as refused:
        read_plan(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"starts in an empty folder.*mine\.txt"):
        begin_or_continue(tmp_path, asked(), DemoSource(), RunObserver())


def test_without_any_candles_nothing_begins(tmp_path: Path) -> None:
    class Empty(DemoSource):
        def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
            raise DataError(where=str(series), rule="has candles", got="none", fix="Fetch some")

    with pytest.raises(DataError, match="none of 2; BTCUSDT-15m: has candles"):
        begin_or_continue(tmp_path, asked(), Empty(), RunObserver())
    assert [*tmp_path.iterdir()] == []
