"""Searches the settings of a profile by back-tests, and evaluates what it chose on folds that it never saw.

    searches/frontier/           study.sqlite (Optuna's record), trials.csv, trials.json, winner.yaml
      start/                     a back-test of the profile that it starts from
      frontier-but-1a2b3c4d/     one of each trial, of the same folds

Folds are laid once, and every trial is evaluated on the same windows. On the earlier folds its objective is
measured: the mean over folds, timeframes and tasks of its error as a multiple of the best baseline's; after
each of them the median pruner may end it. The later ones are evaluated in the end alone, for the winner and the
start. One fold between lies idle: two folds end half a test span apart at least, so nothing is evaluated twice.

The winner shall lie on a plateau, not on a peak: of the trials that went through all folds it is the one
whose `NEIGHBOURS` nearest trials, itself among them, have the smallest median objective.

A trial is drawn by the seed and the trials that have ended alone, and its folder is named by what it changes.
So what a kill cut off is drawn once more, and goes on in its folder.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
import pandas as pd
import yaml

from v8.artifacts.nested_runs import PLAN_FILE, BacktestPlan, Fold
from v8.errors import ArtifactError, DataError, ProfileError, SeriesError, listed
from v8.evaluation.evaluation import MODEL
from v8.evaluation.fold_losses import Cell, tested
from v8.evaluation.significance import ALPHA, corrected_p_values
from v8.machine.lasting import lasting
from v8.market.sources.source import CandleSource
from v8.profile import Profile
from v8.reports.backtest import BacktestResults, read_cells, results_of
from v8.runs.events import told_once
from v8.runs.execution import AskedBacktest, Show, TrainAll, begin_or_continue, run_fold
from v8.runs.plan import make_plan
from v8.search.ranges import Ranges, changed
from v8.search.trial_record import RECORD_FILE, Trial, TrialRecord, set_aside
from v8.storage import write_text
from v8.wording import frame_csv, number

START: Final = "start"  # folder of the profile that a search starts from, and its name among forecasters
FILES: Final = ("winner.yaml", "trials.csv", "trials.json")  # that are written in the end
NEIGHBOURS: Final = 5  # trials, itself among them, whose median objective says what a trial is worth


@dataclass
class Search:
    """A search whose folder this process holds."""

    path: Path
    start: AskedBacktest  # the back-test, over all folds, of the profile that it starts from
    ranges: Ranges
    num_later: (
        int  # folds, the latest of all, that are evaluated in the end; at least 1, and two fewer than all
    )
    source: CandleSource
    train_all: TrainAll
    show: Show  # opens a display of each fold
    tell: Callable[[str], object]  # told of each trial
    is_redone: bool = False  # whether the record of trials is set aside, and begun anew
    trials: pd.DataFrame = field(init=False)
    """A row a trial below one of the start, once it has run."""
    later: Mapping[str, BacktestResults] = field(init=False)
    """On the later folds, by name: the winner, and the start."""
    _plan: BacktestPlan = field(init=False)

    @lasting()
    def run(self, num_trials: int, has_time: Callable[[], bool]) -> str:
        """Make trials until there are so many, those of earlier calls included, or no time is left.

        Returns whether the winner, which is written into a file, is better than the start.

        Raises:
            V8Error: If the start cannot be evaluated, no trial went through all folds, or something else lies in
                the folder.
        """
        start = self.start.profile
        self._require_own_files()
        with self.show(make_plan(start, self.start.series, self.path / START)) as shown:
            self._plan = begin_or_continue(self.path / START, self.start, self.source, told_once(shown))
        folds, later = self._plan.folds[: -self.num_later - 1], self._plan.folds[-self.num_later :]
        begun = [objective_of(one) for one in self._evaluated(start, folds)]
        trials = self._tried(folds, num_trials, has_time)
        self.trials = trials.assign(plateau=plateaus(trials, self.ranges, begun))
        whole = self.trials[trials["state"] == "complete"].sort_values(["plateau", "objective"])
        if whole.empty:
            rule = "needs a trial that goes through all folds"
            fix = "Allow more time, or mend the ranges"
            raise SeriesError(where=str(self.path), rule=rule, got=f"{len(trials)} others", fix=fix)
        winner = changed(start, self.ranges, {key: whole.iloc[0][key] for key in self.ranges})
        self.trials.loc[whole.index[0], "state"] = "winner"
        self.trials.loc[START] = {"folds": len(folds), "objective": begun[-1], "profile": start.name}
        names = {winner.name: winner, f"{start.name} ({START})": start}
        self.later = {name: [*self._evaluated(one, later)][-1] for name, one in names.items()}
        verdict = verdict_of(self.later, *(self._cells(one, later) for one in (winner, start)))
        text = yaml.safe_dump(winner.model_dump(mode="json"), sort_keys=False)
        write_text(self.path / FILES[0], f"# {verdict}\n{text}")
        write_text(self.path / FILES[1], frame_csv(self.trials, index_label="trial"))
        write_text(self.path / FILES[2], self.trials.to_json(orient="index", indent=2))
        return verdict

    def _require_own_files(self) -> None:
        """Refuse to begin where files lie that the search would replace in the end, by `ArtifactError`."""
        is_begun = (self.path / START / PLAN_FILE).exists()
        others = [name for name in FILES if os.path.lexists(self.path / name)]
        if others and not is_begun:
            rule = "a search begins where none of the files lies that it writes in the end"
            fix = "Move them away, or choose another param:out"
            raise ArtifactError(where=str(self.path), rule=rule, got=listed(others), fix=fix)

    def _folder(self, profile: Profile) -> Path:
        return self.path / (START if profile == self.start.profile else profile.name)

    def _cells(self, profile: Profile, folds: Sequence[Fold]) -> list[Cell]:
        return read_cells(self._folder(profile), replace(self._plan, folds=tuple(folds)))[0]

    def _evaluated(self, profile: Profile, folds: Sequence[Fold]) -> Iterator[BacktestResults]:
        """Finish folds of a profile's back-test; yield after each what those so far come to."""
        path = self._folder(profile)
        asked = replace(self.start, profile=profile, like=self._plan)
        path.mkdir(exist_ok=True)
        begin_or_continue(path, asked, self.source, lambda event: None)
        cells = list[Cell]()
        for fold in folds:
            self.tell(f"{profile.name}: {fold.folder}.")
            done = run_fold(path, asked, fold, self.source, self.train_all, show=self.show)
            for one in done.failures:
                where = f"{one.series} in {fold.folder}"
                fix = "Mend that and repeat"
                raise SeriesError(where=where, rule="must be evaluated", got=str(one.reason), fix=fix)
            cells += self._cells(profile, [fold])
            yield results_of(self._plan, cells, {})

    def _tried(self, folds: Sequence[Fold], num_trials: int, has_time: Callable[[], bool]) -> pd.DataFrame:
        """Make the trials that are left; return a row for each that has ended, but not by a kill.

        Raises `ArtifactError` if what Optuna keeps them in is damaged, or of another search.
        """
        import optuna  # noqa: PLC0415 - an extra

        optuna.logging.set_verbosity(optuna.logging.ERROR)  # what it warns of is told or refused here
        file = self.path / RECORD_FILE
        if self.is_redone:
            aside = set_aside(file)
            self.tell(f"{file} is {aside} now." if aside else f"There is no {file}: nothing was set aside.")
        record = TrialRecord(file, self.ranges, len(folds))
        ended = record.ended()
        while len(ended) < num_trials and has_time():
            trial = record.begin_trial(seed=self.start.profile.seed + len(ended))
            values = ", ".join(f"{key} {value}" for key, value in trial.values.items())
            self.tell(f"Trial {len(ended) + 1} of {num_trials}: {values}.")
            try:
                self._carry_out(trial, folds)
            except (DataError, ProfileError, SeriesError) as error:
                self.tell(f"failed: {error}")
                trial.prune()
            ended = record.ended()
        return ended

    def _carry_out(self, trial: Trial, folds: Sequence[Fold]) -> None:
        """Judge the values of a trial on fold after fold, until it is pruned or has gone through all."""
        profile = changed(self.start.profile, self.ranges, trial.values)
        trial.write_profile_name(profile.name)
        for num_folds, results in enumerate(self._evaluated(profile, folds), 1):
            objective = objective_of(results)
            is_hopeless = trial.report(num_folds, objective)
            if num_folds == len(folds):
                trial.complete(objective)
            elif is_hopeless:
                trial.prune()
                return


def verdict_of(later: Mapping[str, BacktestResults], cells: Sequence[Cell], others: Sequence[Cell]) -> str:
    """Say whether the winner is better: on the mean, and beyond chance somewhere and nowhere worse.

    Of both, by name, what the later folds come to, and the cells, the winner's first.
    """
    both = [*map(_beside, cells, others)]
    tests = {}
    for timeframe in dict.fromkeys(cell.series.timeframe for cell in both):
        those = [cell for cell in both if cell.series.timeframe == timeframe]
        for task in those[0].evaluation.tasks:
            tests[f"{task} at {timeframe}"] = tested(those, task, START)
    p_values = corrected_p_values([p for p, _ in tests.values()])
    told = zip(tests.items(), p_values, strict=True)
    sure = {name: mean for (name, (_, mean)), p in told if p is not None and p < ALPHA}
    (winner, ours), (start, theirs) = ((name, objective_of(one)) for name, one in later.items())
    is_better = ours < theirs and sure and max(sure.values()) < 0
    return (
        f"{winner} is {'' if is_better else 'not '}better than {start} on folds that no trial saw: "
        f"{number(ours)} times the best baseline's error beside {number(theirs)}. They differ by more "
        f"than chance on {', '.join(sure) or 'no task'}."
    )


def objective_of(results: BacktestResults) -> float:
    """Return the mean error of a back-test's folds as a multiple of the best baseline's."""
    return fmean(told.against_best or 1.0 for one in results.folds for told in one.tasks.values())


def _beside(cell: Cell, other: Cell) -> Cell:
    """Put the losses of another model among those of a cell, which it was evaluated on, too."""
    theirs = other.fold_losses.losses
    losses = {task: {**known, START: theirs[task][MODEL]} for task, known in cell.fold_losses.losses.items()}
    return replace(cell, fold_losses=replace(cell.fold_losses, losses=losses))


def plateaus(trials: pd.DataFrame, ranges: Ranges, begun: Sequence[float]) -> pd.Series:
    """Return for each trial the median objective of those nearest to it, by the distances between ranks.

    Folds differ, so one that was pruned counts by how far it was from the start after as many folds; `begun`
    are the objectives of that after each fold.
    """
    known = trials.dropna(subset="objective")
    objectives = known["objective"] - np.array(begun)[known["folds"].to_numpy(int) - 1] + begun[-1]
    apart = np.zeros((len(known), len(known)))
    for key, one in ranges.items():
        ranks = known[key].rank(pct=True).to_numpy()
        between = np.abs(np.subtract.outer(ranks, ranks))
        apart += between > 0 if one.choices else between
    near = np.argsort(apart, axis=1, kind="stable")[:, :NEIGHBOURS]
    return pd.Series([objectives.iloc[those].median() for those in near], known.index, float)
