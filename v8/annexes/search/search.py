"""Searches the settings of a profile by back-tests, and evaluates its choice on folds that no trial has used.

    searches/frontier/           study.sqlite (Optuna's record), trials.csv, trials.json, winner.yaml
      start/                     a back-test of the profile that the search starts from
      frontier-but-1a2b3c4d/     one of each trial, with the same folds

Folds are laid once, and every trial is evaluated on the same windows. The objective is measured on the
earlier folds: the mean over folds, timeframes and tasks of the error as a multiple of the best baseline's.
After each of them the median pruner may end the trial. The later folds are used only in the end, for the
winner and the start. One fold between them is not used: two folds end at least half a test span apart, so
with this gap no candle is evaluated in both groups.

The winner should lie on a plateau, not on a peak: of the trials that finished all folds it is the one whose
`NEIGHBOURS` nearest trials, itself included, have the smallest median objective.

The values of a trial depend on the seed and on the trials that have ended, and its folder is named by what it
changes. So a trial that was interrupted is drawn again, and continues in its folder.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import pandas as pd
import yaml

from v8.annexes.search import Hours, NumTrials, Ranges, SearchOptions, read_ranges
from v8.annexes.search.trial_record import RECORD_FILE, Trial, TrialRecord, set_aside
from v8.api.arguments import (
    RawCandles,
    call_in_child,
    checked_options,
    further_options,
    in_python,
    maybe_path,
    profile_file,
    series_list,
    source_of,
)
from v8.api.results import ProgressLines, fold_observer
from v8.base.child import resource_scope, send_message
from v8.base.errors import ArtifactError, DataError, ProfileError, SeriesError, listed
from v8.base.process import command, set_exit_message, watch_interrupts
from v8.base.records import AtLeastOne
from v8.base.registry import require_package
from v8.base.storage import write_text
from v8.base.wording import frame_csv, number
from v8.data.market.sources import CandleSource, open_source
from v8.forecaster.metadata import PLAN_FILE
from v8.model.evaluation.evaluation import MODEL
from v8.model.evaluation.fold_losses import Cell, tested
from v8.model.evaluation.significance import ALPHA, corrected_p_values
from v8.profile.profile import Profile, config_path, load_profile, profile_names
from v8.runs.backtest import (
    Backtest,
    BacktestPlan,
    BacktestResults,
    Fold,
    begin_or_continue,
    hold_backtest,
    read_cells,
    read_plan,
    results_of,
    run_fold,
)
from v8.runs.engines import choose_engine
from v8.runs.events import Note, RunObserver, observed
from v8.runs.options import NumBars, NumFolds, chosen_series, require_covariate_files, served_series
from v8.runs.plan import Engine

START: Final = "start"  # folder of the profile that a search starts from, and its name among forecasters
FILES: Final = ("winner.yaml", "trials.csv", "trials.json")  # that are written in the end
NEIGHBOURS: Final = 5  # trials, itself included, whose median objective ranks a trial


@in_python
def search(
    candles: RawCandles = "vision",
    profile: str | Path | Profile = "frontier",
    *,
    trials: NumTrials = 20,
    hours: Hours | None = None,
    ranges: str | Path | None = None,
    folds: NumFolds = 3,
    later: NumFolds = 2,
    series: str | Sequence[str] | None = None,
    history: NumBars | None = None,
    bars: AtLeastOne | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> pd.DataFrame:
    """Search better settings of a profile by back-tests; the same call again continues.

    It is the command `search`, which needs the extra `search` of v8.

    Args:
        candles: As for `v8.train`.
        profile: What to start from, as for `v8.train`.
        trials: Trials in all, those of earlier calls included.
        hours: Hours after which no trial is started; None for no limit.
        ranges: The file of ranges; None for the one of the profile's file name in search/ next to it.
        folds: Folds that trials are evaluated on.
        later: Later folds that evaluate only the winner.
        series: Such as "BTCUSDT-15m", or several; None for all there are.
        history: Newest candles that the folds lie in; None for all there are.
        bars: Candles of each fold; None for the profile's.
        out: Its folder; None for searches/PROFILE.
        progress: Whether to print lines about it.
        options: Other options of the command `search`: tables, device, workers ...

    Returns:
        A row for each trial that ended, and the last for the start; the index `trial` counts from 1:

        * `state`: "winner", "complete" or "pruned"; missing for the start. `profile`: its name, text.
        * `folds`: folds that were finished.
        * `objective`: mean error divided by the best baseline's, unitless; lower is better.
        * a column for each searched key, in the unit of the profile.
        * `plateau`: median objective of the five nearest trials, by which the winner is chosen.

        `attrs["folder"]` is the folder; winner.yaml in it is the profile of the winner, ready for `v8.train`.

    Raises:
        V8Error: If the start cannot be evaluated, or no trial finished all folds.

    >>> import v8
    >>> table = v8.search("vision", "frontier", series="BTCUSDT-1h", trials=50)  # doctest: +SKIP
    >>> run = v8.train("vision", f"{table.attrs['folder']}/winner.yaml")  # doctest: +SKIP
    """
    further = checked_options("v8.search", search, options, OPTIONS)
    names = series_list(series)
    source = source_of(candles, names)
    name = (profile if isinstance(profile, Profile) else load_profile(str(profile))).name
    folder = Path(out) if out else Path("searches") / name
    all_options = SearchOptions(
        profile=str(profile_file(profile)),
        trials=trials,
        hours=hours,
        ranges=maybe_path(ranges),
        folds=folds,
        later=later,
        series=tuple(names),
        history=history,
        bars=bars,
        out=folder,
        **further,
        **source,
    )
    call_in_child(search_in_child, all_options, where="v8.search", progress=progress)
    return read_trials(folder)


OPTIONS: Final = further_options(SearchOptions, search)
"""Other options of `search`; None is the default."""


def search_in_child(options: SearchOptions) -> str:
    """Carry out a search in a process of its own, which sends lines about it; return its verdict."""
    watch_interrupts()
    continuing = command("search", *options.words())
    prepared = prepare_search(options, continuing, ProgressLines(send_message))
    verdict = prepared.search(options.trials, options.hours)
    send_message(verdict)
    return verdict


def read_trials(folder: Path) -> pd.DataFrame:
    """Read `trials.csv` of a folder."""
    table = pd.read_csv(folder / "trials.csv", index_col="trial")
    table.attrs["folder"] = str(folder)
    return table


def prepare_search(options: SearchOptions, continuing: str, display: RunObserver) -> "Search":
    """Check the options, and turn them into a search that only has to be begun.

    Args:
        options: The options.
        continuing: The command line that continues, for the record.
        display: Shows what happens in the folds of the trials.

    Raises:
        V8Error: If one of the options cannot mean anything, or what it names is not there.
    """
    profile = load_profile(options.profile).with_budget(newest_bars=options.bars)
    require_package("optuna", where=command("search"), rule="needs the extra `search` of v8")
    requested = chosen_series(options.series)
    source = open_source(options.source, data_dir=options.data_dir)
    require_covariate_files([profile], options.tables)
    series = requested or served_series(source)

    is_shipped = options.profile in profile_names()
    file = config_path(options.profile) if is_shipped else Path(options.profile)
    ranges = read_ranges(options.ranges or file.parent / "search" / file.name, profile)
    engine = choose_engine(
        options.engine, device=options.device, workers=options.workers, address=options.address
    )
    num_folds = options.folds + 1 + options.later
    return Search(
        path=options.out or Path("searches") / profile.name,
        start=Backtest(
            profile=profile,
            series=series,
            num_folds=num_folds,
            history_bars=options.history,
            command=continuing,
            tables=options.tables,
        ),
        ranges=ranges,
        num_later=options.later,
        source=source,
        engine=engine,
        observer=fold_observer(display),
        is_redone=options.redo,
    )


@dataclass
class Search:
    """A search whose folder this process holds."""

    path: Path
    start: Backtest  # the back-test, over all folds, of the profile that it starts from
    ranges: Ranges
    num_later: int  # latest folds, for the final evaluation; at least 1, and at most two fewer than all folds
    source: CandleSource
    engine: Engine
    observer: RunObserver  # follows each fold, and gets a note about each trial
    is_redone: bool = False  # whether the record of trials is set aside, and a new one is begun
    trials: pd.DataFrame = field(init=False)
    """A row a trial, and one of the start, once the search has run."""
    later: Mapping[str, BacktestResults] = field(init=False)
    """Results on the later folds, by name: of the winner, and of the start."""
    _plan: BacktestPlan = field(init=False)

    def search(self, num_trials: int, hours: float | None) -> str:
        """Carry out the search, or the rest of it, and return what `run` does; no trial starts after `hours`.

        When it is interrupted, the same options continue.
        """
        ends_s = math.inf if hours is None else time.monotonic() + 3600 * hours
        with hold_backtest(self.path / START):
            set_exit_message(f"interrupted: {self.path} is saved. Continue with: {self.start.command}")
            return self.run(num_trials, lambda: time.monotonic() < ends_s)

    @resource_scope()
    def run(self, num_trials: int, has_time: Callable[[], bool]) -> str:
        """Make trials until there are so many, those of earlier calls included, or no time is left.

        Returns:
            A sentence whether the winner, which is written into a file, is better than the start.

        Raises:
            V8Error: If the start cannot be evaluated, no trial finished all folds, or the folder has other
                content.
        """
        self._require_own_files()
        self._require_same_folds()
        start = self.start.profile
        plan_of_all_folds = self.start.plan_run(self.path / START, self.start.series, self.source)
        with observed(self.observer, plan_of_all_folds, self.source.name) as observer:
            self._plan = begin_or_continue(self.path / START, self.start, self.source, observer)
        folds = self._plan.folds[: -self.num_later - 1]
        later_folds = self._plan.folds[-self.num_later :]
        start_objectives = [objective_of(results) for results in self._finish_folds(start, folds)]
        trials = self._run_trials(folds, num_trials, has_time)
        self.trials = trials.assign(plateau=plateaus(trials, self.ranges, start_objectives))
        winner = self._choose_winner()
        self.trials.loc[START] = {
            "folds": len(folds),
            "objective": start_objectives[-1],
            "profile": start.name,
        }
        self.later = {
            winner.name: self._results_on(winner, later_folds),
            f"{start.name} ({START})": self._results_on(start, later_folds),
        }
        winner_cells = self._cells(winner, later_folds)
        start_cells = self._cells(start, later_folds)
        verdict = verdict_of(self.later, winner_cells, start_cells)
        self._write_files(winner, verdict)
        return verdict

    def _choose_winner(self) -> Profile:
        """Mark the winner among the trials and return its profile; `SeriesError` if no trial is complete."""
        is_complete = self.trials["state"] == "complete"
        complete = self.trials[is_complete].sort_values(["plateau", "objective"])
        if complete.empty:
            raise SeriesError(
                where=str(self.path),
                rule="needs a trial that goes through all folds",
                got=f"{len(self.trials)} others",
                fix="Allow more time, or mend the ranges",
            )
        best = complete.iloc[0]
        self.trials.loc[complete.index[0], "state"] = "winner"
        return changed(self.start.profile, self.ranges, {key: best[key] for key in self.ranges})

    def _write_files(self, winner: Profile, verdict: str) -> None:
        winner_file, csv_file, json_file = (self.path / name for name in FILES)
        text = yaml.safe_dump(winner.model_dump(mode="json"), sort_keys=False)
        write_text(winner_file, f"# {verdict}\n{text}")
        write_text(csv_file, frame_csv(self.trials, index_label="trial"))
        write_text(json_file, self.trials.to_json(orient="index", indent=2))

    def _add_note(self, text: str) -> None:
        self.observer.on_event(Note(text))

    def _require_own_files(self) -> None:
        """Refuse to begin in a folder with files that the search would replace, by `ArtifactError`."""
        is_begun = (self.path / START / PLAN_FILE).exists()
        others = [name for name in FILES if os.path.lexists(self.path / name)]
        if others and not is_begun:
            raise ArtifactError(
                where=str(self.path),
                rule="a search begins where none of the files lies that it writes in the end",
                got=listed(others),
                fix="Move them away, or choose another param:out",
            )

    def _require_same_folds(self) -> None:
        """Refuse another number of folds in all, which moves all of them, by `ArtifactError`."""
        if not (self.path / START / PLAN_FILE).exists():
            return
        num_folds = self.start.num_folds - 1  # without the one that is not used
        recorded = read_plan(self.path / START).num_folds - 1
        if num_folds != recorded:
            num_of_trials = num_folds - self.num_later
            raise ArtifactError(
                where=str(self.path),
                rule=f"the search was started with {recorded} folds, param:folds and param:later together, "
                "and is continued with as many",
                got=f"{num_folds}: param:folds {num_of_trials} and param:later {self.num_later}",
                fix="Undo the change, or start another search with param:out",
            )

    def _folder(self, profile: Profile) -> Path:
        return self.path / (START if profile == self.start.profile else profile.name)

    def _cells(self, profile: Profile, folds: Sequence[Fold]) -> list[Cell]:
        cells, _ = read_cells(self._folder(profile), replace(self._plan, folds=tuple(folds)))
        return cells

    def _results_on(self, profile: Profile, folds: Sequence[Fold]) -> BacktestResults:
        """Finish folds of a profile's back-test, and return the results over all of them."""
        all_results = list(self._finish_folds(profile, folds))
        return all_results[-1]

    def _finish_folds(self, profile: Profile, folds: Sequence[Fold]) -> Iterator[BacktestResults]:
        """Finish folds of a profile's back-test; yield after each the results over all so far.

        Raises:
            SeriesError: If a series fails.
        """
        path = self._folder(profile)
        backtest = replace(self.start, profile=profile, like=self._plan)
        path.mkdir(exist_ok=True)
        begin_or_continue(path, backtest, self.source, RunObserver())
        cells = list[Cell]()
        for fold in folds:
            self._add_note(f"{profile.name}: {fold.folder}.")
            summary = run_fold(path, backtest, fold, self.source, self.engine, observer=self.observer)
            for failure in summary.failures:
                raise SeriesError(
                    where=f"{failure.series} in {fold.folder}",
                    rule="must be evaluated",
                    got=str(failure.reason),
                    fix="Mend that and repeat",
                )
            cells += self._cells(profile, [fold])
            yield results_of(self._plan, cells, {})

    def _run_trials(
        self, folds: Sequence[Fold], num_trials: int, has_time: Callable[[], bool]
    ) -> pd.DataFrame:
        """Make the missing trials; return a row for each that has ended, without interrupted ones.

        Raises:
            ArtifactError: If Optuna's record is damaged, or of another search.
        """
        import optuna  # noqa: PLC0415 - an extra

        optuna.logging.set_verbosity(optuna.logging.ERROR)  # its warnings are reported or refused here
        file = self.path / RECORD_FILE
        if self.is_redone:
            new_name = set_aside(file)
            if new_name:
                self._add_note(f"{file} is {new_name} now.")
            else:
                self._add_note(f"There is no {file}: nothing was set aside.")
        record = TrialRecord(file, self.ranges, len(folds))
        ended = record.ended()
        while len(ended) < num_trials and has_time():
            trial = record.begin_trial(seed=self.start.profile.seed + len(ended))
            values = ", ".join(f"{key} {value}" for key, value in trial.values.items())
            self._add_note(f"Trial {len(ended) + 1} of {num_trials}: {values}.")
            try:
                self._run_trial(trial, folds)
            except (DataError, ProfileError, SeriesError) as error:
                self._add_note(f"failed: {error}")
                trial.prune()
            ended = record.ended()
        return ended

    def _run_trial(self, trial: Trial, folds: Sequence[Fold]) -> None:
        """Evaluate the values of a trial on fold after fold, until it is pruned or has finished all."""
        profile = changed(self.start.profile, self.ranges, trial.values)
        trial.write_profile_name(profile.name)
        for num_folds, results in enumerate(self._finish_folds(profile, folds), 1):
            objective = objective_of(results)
            should_prune = trial.report(num_folds, objective)
            if num_folds == len(folds):
                trial.complete(objective)
            elif should_prune:
                trial.prune()
                return


def verdict_of(
    later: Mapping[str, BacktestResults], winner_cells: Sequence[Cell], start_cells: Sequence[Cell]
) -> str:
    """Say whether the winner is better than the start.

    It is better if its mean objective is lower, it is significantly better on a task, and significantly worse
    on none.

    Args:
        later: Results on the later folds by name, the winner's first and then the start's.
        winner_cells: The winner's cells of these folds.
        start_cells: The start's cells, in the same order.
    """
    pairs = zip(winner_cells, start_cells, strict=False)
    cells = [_with_start_losses(winner_cell, start_cell) for winner_cell, start_cell in pairs]
    tests = {}
    for timeframe in dict.fromkeys(cell.series.timeframe for cell in cells):
        of_timeframe = [cell for cell in cells if cell.series.timeframe == timeframe]
        for task in of_timeframe[0].evaluation.tasks:
            tests[f"{task} at {timeframe}"] = tested(of_timeframe, task, START)
    p_values = corrected_p_values([p_value for p_value, _ in tests.values()])
    significant = {}
    for (name, (_, mean_difference)), p_value in zip(tests.items(), p_values, strict=True):
        if p_value is not None and p_value < ALPHA:
            significant[name] = mean_difference
    winner, start = later
    winner_objective = objective_of(later[winner])
    start_objective = objective_of(later[start])
    is_never_worse = bool(significant) and max(significant.values()) < 0
    is_better = winner_objective < start_objective and is_never_worse
    return (
        f"{winner} is {'' if is_better else 'not '}better than {start} on folds that no trial saw: "
        f"{number(winner_objective)} times the best baseline's error, "
        f"compared with {number(start_objective)}. "
        f"They differ significantly on {', '.join(significant) or 'no task'}."
    )


def objective_of(results: BacktestResults) -> float:
    """Return the mean error of a back-test's folds as a multiple of the best baseline's."""
    multiples = []
    for fold in results.folds:
        for task_result in fold.tasks.values():
            multiples.append(task_result.against_best or 1.0)
    return fmean(multiples)


def _with_start_losses(winner_cell: Cell, start_cell: Cell) -> Cell:
    """Add the start's losses, under the name `START`, to a cell of the winner for the same windows."""
    losses = {}
    for task, by_forecaster in winner_cell.losses.by_task.items():
        losses[task] = {**by_forecaster, START: start_cell.losses.by_task[task][MODEL]}
    return replace(winner_cell, losses=replace(winner_cell.losses, by_task=losses))


def plateaus(trials: pd.DataFrame, ranges: Ranges, start_objectives: Sequence[float]) -> pd.Series:
    """Return for each trial the median objective of its nearest trials, by the distance of their values.

    The distance of two trials is the sum over the keys of the distance of ranks, or 1 for different choices.
    Objectives after different numbers of folds cannot be compared, so a trial that was pruned counts by its
    difference from the start after as many folds.

    Args:
        trials: A row a trial.
        ranges: What is searched.
        start_objectives: Objectives of the start after each fold.
    """
    measured = trials.dropna(subset="objective")
    num_folds = measured["folds"].to_numpy(int)
    differences = measured["objective"] - np.array(start_objectives)[num_folds - 1]
    objectives = differences + start_objectives[-1]
    distances = np.zeros((len(measured), len(measured)))
    for key, value_range in ranges.items():
        ranks = measured[key].rank(pct=True).to_numpy()
        rank_distances = np.abs(np.subtract.outer(ranks, ranks))
        distances += rank_distances > 0 if value_range.choices else rank_distances
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :NEIGHBOURS]
    medians = [objectives.iloc[neighbours].median() for neighbours in nearest]
    return pd.Series(medians, measured.index, float)


def changed(profile: Profile, ranges: Ranges, drawn: Mapping[str, Any]) -> Profile:
    """Return a profile with drawn values; `ProfileError` if they do not fit together."""
    values = {}
    for key, value_range in ranges.items():
        values[key] = json.loads(drawn[key]) if value_range.choices else drawn[key]
    return profile.but(**values)
