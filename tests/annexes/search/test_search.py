"""A search: cut off and continued, chosen by its plateau, evaluated on what no trial saw; what it refuses."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
import pandas as pd
import pytest
from run_doubles import EngineOf, NotesBetweenRuns
from typer.testing import CliRunner

from v8.annexes.search import Range, read_ranges
from v8.annexes.search.search import FILES, Search, plateaus, verdict_of
from v8.annexes.search.trial_record import TrialRecord, ended_of
from v8.base.errors import ArtifactError, ProfileError, SeriesError
from v8.cli.app import app
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.forecaster.metadata import read_metadata
from v8.model.evaluation import significance
from v8.model.evaluation.evaluation import MODEL
from v8.model.evaluation.fold_losses import Cell
from v8.profile.profile import Profile, config_path, load_profile
from v8.runs.backtest import Backtest, begin_or_continue
from v8.runs.events import RunObserver, SeriesOutcome
from v8.runs.local import InProcessEngine
from v8.runs.plan import Engine, Job

BTC = Series("BTCUSDT", "15m")
RANGES = {"batch_size": Range(choices=[32, 64, 128]), "learning_rate": Range(low=1e-4, high=1e-2, log=True)}
"""What a formula does not notice: every trial is worth the same."""
NUM_FOLDS = 2
NUM_TRIALS = 2


class CutOff(Exception):
    """What a kill is in these tests."""


class Trains(Engine):
    """Trains, counts what it has trained, and is cut off after so many."""

    def __init__(self, most: int = 1_000) -> None:
        self.most = most
        self.told = list[Path]()

    def train(self, jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        for outcome in InProcessEngine().train(jobs, observer):
            if len(self.told) == self.most:
                raise CutOff
            self.told.append(jobs[0].folder.parents[1])
            yield outcome


def search_in(path: Path, engine: Engine, told: list[str] | None = None) -> Search:
    content = load_profile("range_paths").model_dump() | {"horizon_bars": 2, "newest_bars": 2_250}
    content["tasks"] = {name: content["tasks"][name] for name in ("ohlc", "volatility")}
    asked = Backtest(Profile.model_validate(content), (BTC,), NUM_FOLDS + 2, 2_750, "python -m v8 search")
    (path / "start").mkdir(parents=True, exist_ok=True)
    observer = NotesBetweenRuns(told if told is not None else [])
    return Search(path, asked, RANGES, 1, DemoSource(), engine, observer)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Search]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("V8_HOME", str(tmp_path_factory.mktemp("home")))
        search = search_in(tmp_path_factory.mktemp("undisturbed"), Trains())
        search.run(NUM_TRIALS, lambda: True)
        yield search


@pytest.mark.nightly
@pytest.mark.tf
def test_it_ends_with_a_profile_a_table_and_the_evaluation_of_folds_that_no_trial_saw(
    undisturbed: Search,
) -> None:
    trials = pd.read_csv(undisturbed.path / "trials.csv", index_col="trial")
    assert trials.index.tolist() == ["1", "2", "start"]
    assert trials["state"].tolist()[:2] == ["winner", "complete"]
    assert trials["folds"].tolist() == [NUM_FOLDS, NUM_FOLDS, NUM_FOLDS]
    assert trials["objective"].nunique() == trials["plateau"].nunique() == 1  # a formula notices nothing
    content = json.loads((undisturbed.path / "trials.json").read_text())
    assert {name: one["objective"] for name, one in content.items()} == pytest.approx(
        trials["objective"].to_dict()
    )
    winner = load_profile(str(undisturbed.path / "winner.yaml"))
    assert winner.name == trials["profile"].iloc[0]
    assert winner.training.learning_rate == trials["learning_rate"].iloc[0]
    assert [*undisturbed.later] == [winner.name, "range_paths (start)"]
    first = (undisturbed.path / "winner.yaml").read_text().splitlines()[0]
    assert first.startswith(f"# {winner.name} is not better than range_paths (start) ")
    assert first.endswith(" on no task.")


@pytest.mark.nightly
@pytest.mark.tf
def test_what_is_searched_on_ends_before_what_evaluates_the_winner_begins(undisturbed: Search) -> None:
    evaluated = [read_metadata(undisturbed.path / "start" / f"fold-{one}" / str(BTC)) for one in (1, 2, 4)]
    assert not (undisturbed.path / "start" / "fold-3").exists()  # it lies idle between them
    assert evaluated[2].split.test.first_open > evaluated[1].split.test.last_open
    assert not any((undisturbed.path / name / "fold-4").exists() for name in losers(undisturbed))


@pytest.mark.tf
def test_another_number_of_folds_is_refused_by_the_numbers_that_were_typed(tmp_path: Path) -> None:
    begun = search_in(tmp_path, Trains())
    begin_or_continue(tmp_path / "start", begun.start, begun.source, RunObserver())
    begun.start = replace(begun.start, num_folds=NUM_FOLDS + 1)
    with pytest.raises(ArtifactError) as refused:
        begun.run(NUM_TRIALS, lambda: True)
    assert refused.value.where == str(tmp_path)
    assert refused.value.got == f"{NUM_FOLDS}: param:folds {NUM_FOLDS - 1} and param:later 1"
    assert "param:out" in refused.value.fix


def losers(search: Search) -> list[str]:
    return search.trials["profile"][search.trials["state"] == "complete"].tolist()


@pytest.mark.tf
@pytest.mark.nightly
def test_one_that_was_cut_off_goes_on_and_repeats_nothing_that_was_finished(
    undisturbed: Search, tmp_path: Path
) -> None:
    whole = undisturbed.engine.told  # type: ignore[attr-defined]
    # The start has two folds, the first trial two, and the second one.
    before = Trains(5)
    after = Trains()
    with pytest.raises(CutOff):
        search_in(tmp_path, before).run(NUM_TRIALS, lambda: True)
    assert optuna.logging.get_verbosity() > optuna.logging.WARNING  # else that is told with a traceback
    study = optuna.load_study(study_name=None, storage=f"sqlite:///{tmp_path / 'study.sqlite'}")
    study.ask()  # as one that was killed is left
    search_in(tmp_path, after).run(NUM_TRIALS, lambda: True)
    assert [path.name for path in (*before.told, *after.told)] == [path.name for path in whole]
    for name in FILES:
        assert (tmp_path / name).read_text() == (undisturbed.path / name).read_text()


@pytest.mark.nightly
@pytest.mark.tf
def test_a_trial_that_fails_does_not_end_the_search_but_one_must_go_through(
    undisturbed: Search, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed.path / "start", tmp_path / "start")

    def fail(jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        yield from (SeriesOutcome(job.series, reason="out of luck") for job in jobs)

    messages: list[str] = []
    with pytest.raises(SeriesError, match="; got 2 others"):
        search_in(tmp_path, EngineOf(fail), messages).run(NUM_TRIALS, lambda: True)
    assert [line for line in messages if "out of luck" in line] == [
        "failed: BTCUSDT-15m in fold-1: must be evaluated; got out of luck. Mend that and repeat."
    ] * 2


def test_a_search_does_not_begin_where_it_would_replace_files_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "winner.yaml").write_text("precious")
    search = search_in(tmp_path, EngineOf(lambda jobs, observer: iter(())))
    with pytest.raises(ArtifactError) as refused:
        search.run(1, lambda: True)
    assert refused.value.got == "winner.yaml"
    assert (tmp_path / "winner.yaml").read_text() == "precious"
    assert not (tmp_path / "study.sqlite").exists()


def test_the_plateau_is_chosen_before_the_peak() -> None:
    ranges = {"dropout": Range(low=0.0, high=1.0), "units": Range(choices=[1, 2])}
    found = {
        0.1: 0.99,
        0.12: 0.99,
        0.14: 0.99,
        0.16: 0.99,
        0.18: 0.99,
        0.5: 1.1,
        0.9: 0.9,
        0.94: 1.1,
        0.98: 1.1,
    }
    space = {
        "dropout": optuna.distributions.FloatDistribution(0.0, 1.0),
        "units": optuna.distributions.CategoricalDistribution(["1", "2"]),
    }
    study = optuna.create_study()
    for place, value in found.items():
        about = {"params": {"dropout": place, "units": "1"}, "distributions": space}
        study.add_trial(
            optuna.trial.create_trial(**about, value=value, intermediate_values={1: 1.0, 2: value})
        )
    study.ask()  # it is under way, or was killed
    ended = ended_of(study, ranges)
    assert ended.index.tolist() == [*range(1, len(found) + 1)]
    told = dict(zip(found, plateaus(ended, ranges, [2.0, 1.0]), strict=True))
    assert told[0.14] == 0.99  # of 0.1 to 0.18
    assert told[0.9] == 1.1  # a peak: the five nearest are 0.18 or 0.16, 0.5, 0.94, 0.98 and itself


def test_a_pruned_trial_counts_by_its_distance_from_the_start_after_as_many_folds() -> None:
    ranges = {"units": Range(choices=[1, 2])}
    rows = [("complete", 2, 0.98, "1"), ("pruned", 1, 0.52, "1"), ("pruned", 0, None, "1")]
    ended = pd.DataFrame(rows, [1, 2, 3], ["state", "folds", "objective", "units"])
    # The start came to 0.5 after the first fold, an easy one, and to 1.0 in the end: 0.02 more is 1.02.
    assert plateaus(ended, ranges, [0.5, 1.0]).to_dict() == pytest.approx({1: 1.0, 2: 1.0})


def scaled(cells: Sequence[Cell], factor: float) -> list[Cell]:
    """As if the model had erred so many times as much."""
    return [
        replace(
            cell,
            losses=replace(
                cell.losses,
                by_task={
                    task: {**known, MODEL: known[MODEL] * factor}
                    for task, known in cell.losses.by_task.items()
                },
            ),
        )
        for cell in cells
    ]


@pytest.mark.nightly
@pytest.mark.tf
def test_better_means_lower_on_the_mean_and_by_more_than_chance(
    undisturbed: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its folds have 63 windows, fewer than a test of significance needs.
    monkeypatch.setattr(significance, "MIN_WINDOWS", 30)
    (name, later), _ = undisturbed.later.items()
    cells = undisturbed._cells(undisturbed.start.profile, undisturbed._plan.folds)
    told = {
        task: replace(one, against_best=(one.against_best or 1.0) * 0.5)
        for task, one in later.folds[0].tasks.items()
    }
    lower = replace(later, folds=(replace(later.folds[0], tasks=told),))
    better = verdict_of({name: lower, "start": later}, scaled(cells, 0.5), cells)
    assert better.startswith(f"{name} is better than start")
    assert " on ohlc at 15m" in better
    worse = verdict_of({name: lower, "start": later}, scaled(cells, 1.5), cells)
    assert worse.startswith(f"{name} is not better")
    assert verdict_of({name: lower, "start": later}, cells, cells).endswith("on no task.")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "at least 1 item"),
        ("learning_rat: {low: 1e-4, high: 1e-2}", "key learning_rat: .*Did you mean training.learning_rate"),
        ("horizon_bars: {low: 5, high: 10}", "key horizon_bars: no search changes .*same windows; got horiz"),
        ("dropout: {low: 0.5, high: 0.2}", "key dropout: .*below a high"),
        ("dropout: {low: 0.0, high: 0.2, log: true}", "key dropout: log .* above 0"),
        ("dropout: {low: 0.1, high: 0.2, choices: [0.1]}", "key dropout: choices "),
        ("dropout: {low: 0.1, high: 1.5}", "key dropout: .*less than 1; got 1.5"),
        ("dropout: {low: 0.1, high: 0.5, step: 1e-300}", "key dropout: step .* 1 to 1,000,000 "),
        ("dropout: {low: 0.1, high: 0.5, step: 0.5}", "key dropout: step .* in 1"),
        ("dropout: {low: 0.1, high: 0.55, step: 0.1}", "key dropout: step .* steps; got"),
        ("batch_size: {low: 1, high: 10, step: 0.5}", "key batch_size: .*valid integer; got 1.5"),
        ("dropout: {lo: 0.1, high: 0.5}", "key dropout.lo: .*unknown key 'lo'"),
    ],
)
def test_ranges_that_cannot_be_meant_are_one_sentence(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "ranges.yaml").write_text(text)
    with pytest.raises(ProfileError, match=rf"ranges\.yaml.*{told}"):
        read_ranges(tmp_path / "ranges.yaml", load_profile("frontier"))


def test_a_profile_without_ranges_is_told_how_to_give_it_some() -> None:
    result = CliRunner().invoke(app, ["search", "aligned", "--source", "demo"])
    assert result.exit_code == 2
    assert "aligned.yaml: " in result.stderr
    assert "frontier.yaml, " in result.stderr and "--ranges." in result.stderr


def test_ranges_of_an_own_profile_are_named_after_its_file_and_copied_from_a_place_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = load_profile("frontier")
    with pytest.raises(ProfileError) as missing:
        read_ranges(tmp_path / "prof" / "search" / "ok.yaml", profile)
    assert missing.value.where.endswith("search/ok.yaml")
    example = Path(missing.value.fix.split()[1])
    assert example.is_file() and "there" in missing.value.fix
    (tmp_path / "prof" / "search").mkdir(parents=True)
    (tmp_path / "prof" / "search" / "ok.yaml").write_bytes(example.read_bytes())
    assert read_ranges(tmp_path / "prof" / "search" / "ok.yaml", profile)


def test_the_shipped_ranges_fit_their_profiles() -> None:
    files = [*(config_path("frontier").parent / "search").glob("*.yaml")]
    assert files
    for file in files:
        assert read_ranges(file, load_profile(file.stem))


def test_a_range_draws_what_it_says(tmp_path: Path) -> None:
    ranges = {
        "units": Range(choices=[[64, 64]]),
        "whole": Range(low=2, high=8, step=6),
        "real": Range(low=0.1, high=1, log=True),
        "tiny": Range(low=0.1, high=0.5, step=4e-7),
        "single": Range(low=0.1, high=0.5, step=0.4),
    }
    drawn = TrialRecord(tmp_path / "study.sqlite", ranges, num_folds=1).begin_trial(seed=0).values
    assert drawn["units"] == "[64, 64]"
    assert drawn["whole"] in (2, 8)
    assert 0.1 <= drawn["real"] <= 1
    assert 0.1 <= drawn["tiny"] <= 0.5
    assert drawn["single"] in (0.1, 0.5)


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = CliRunner().invoke(app, ["search", "frontier"])
    assert result.exit_code == 2
    assert "needs the extra `search` of v8; got none installed. Run: " in result.stderr
    assert result.stderr.rstrip().endswith("-m pip install optuna.")
    assert len(result.stderr.splitlines()) == 1
