"""The live record: what the forecasts that were issued before their truth turned out to be worth.

It is computed whenever it is asked for and stands in no file, so nothing can tune it. Late forecasts, written
when the first of their bars had closed, are counted and in no error.

Every task stands beside the naive forecast and the best baseline. The best one is chosen once for all series
that are shown together, as on the leaderboard: the one whose error as a multiple of naive's has the smallest
median. Whether a difference is more than chance is tested as the judgement does it (Diebold and Mariano):

* Forecasts of one series overlap; the lag counts bars, so closes that were missed part what they should.
* Over several series, losses in units of naive's mean loss of each series are added up close by close: coins
  that rise and fall on the same day are one observation of it. The horizon is the longest of them.
* The p-values of several series are corrected together (Benjamini and Hochberg).
* Hours of the day and weekends differ, so fewer than `MIN_DAYS` days are not tested: nothing is known yet.

Legend: N forecasts, K forecasters, T tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.formulas.baselines import NAIVE
from v8.live.baselines import DAY_S
from v8.live.coverage import Coverage, Covered, coverage_by_issuer, together
from v8.live.database import Ledger
from v8.live.entries import Issuer, Scored, Tally, level_of
from v8.losses.judgement import MODEL, is_equal
from v8.losses.leaderboard import Against
from v8.losses.significance import Significance, corrected_p_values, diebold_mariano
from v8.market.open_times import iso
from v8.tasks import TASKS

Floats = NDArray[np.float64]

MIN_DAYS: Final = 7
"""Days (UTC) with scored forecasts from which a difference is tested."""


@dataclass(frozen=True)
class LiveTask:
    """One task of one series, of one generation of it, or of all series together.

    Args:
        num_scored: Forecasts issued in time whose truth has come.
        num_days: Days, UTC, on which they were issued.
        errors: Mean absolute error per forecaster (`MODEL` or a key of `BASELINES`): in returns; for several
            series as multiples of naive's of each series.
        naive: Beside the naive forecast.
        best: Beside the best baseline.
        crps: Of the model's quantiles, in the unit of the errors; None where not every model had some.
        coverage: How many truths the model's central intervals held, of the newest forecasts; None likewise.
    """

    num_scored: int
    num_days: int
    errors: Mapping[str, float]
    naive: Against
    best: Against
    crps: float | None = None
    coverage: Coverage | None = None

    @property
    def crps_multiple(self) -> float | None:
        """The CRPS as a multiple of naive's mean absolute error, which is its CRPS as a single number."""
        return self.crps / self.errors[NAIVE] if self.crps is not None and self.errors[NAIVE] > 0 else None

    @property
    def error(self) -> float:
        """The model's mean absolute error."""
        return self.errors[MODEL]

    @property
    def shown(self) -> tuple[Against, ...]:
        """Beside both, or naive alone where no other baseline is better than it."""
        return (self.naive,) if self.best.baseline == NAIVE else (self.naive, self.best)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        beside = {"naive": self.naive, "best": self.best}
        return {
            "num_scored": self.num_scored,
            "num_days": self.num_days,
            "errors": dict(self.errors),
            **({} if self.crps is None else {"crps": self.crps, "crps_multiple": self.crps_multiple}),
            **({} if self.coverage is None else {"coverage": self.coverage.shares}),
            **{key: _against_json(against) for key, against in beside.items()},
        }


@dataclass(frozen=True)
class LiveGeneration:
    """What one model of a series was worth.

    Args:
        issuer: The model.
        first_s: Close of its first forecast in the errors, seconds since the epoch; None without any.
        last_s: Likewise of its last.
        tasks: Per task; empty before any truth has come.
    """

    issuer: Issuer
    first_s: int | None
    last_s: int | None
    tasks: Mapping[str, LiveTask]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        issuer = self.issuer
        return {
            "model_sha256": issuer.model_sha256,
            "revision": issuer.revision,
            "seen_until": iso(issuer.seen_until_s),
            "profile": issuer.profile,
            "first": None if self.first_s is None else iso(self.first_s),
            "last": None if self.last_s is None else iso(self.last_s),
            "tasks": {task: live.to_json() for task, live in self.tasks.items()},
        }


@dataclass(frozen=True)
class LiveSeries:
    """What the forecasts of one series were worth.

    Args:
        series: Its name.
        tally: How many were issued, late, scored, void and pending.
        newest_s: Close that the newest forecast was issued for, seconds since the epoch; None without any.
        tasks: Per task, over all generations; empty before any truth has come.
        generations: Each model, oldest first.
    """

    series: str
    tally: Tally
    newest_s: int | None
    tasks: Mapping[str, LiveTask]
    generations: tuple[LiveGeneration, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "series": self.series,
            **_tally_json(self.tally),
            "newest": None if self.newest_s is None else iso(self.newest_s),
            "tasks": {task: live.to_json() for task, live in self.tasks.items()},
            "generations": [one.to_json() for one in self.generations],
        }


@dataclass(frozen=True)
class Record:
    """The live record of a place.

    Args:
        place: As the ledger names it.
        series: Each series, in order.
        tasks: Per task over all of them; empty before any truth has come.
    """

    place: str
    series: tuple[LiveSeries, ...]
    tasks: Mapping[str, LiveTask]

    @property
    def tally(self) -> Tally:
        """How many forecasts of all series were issued, late, scored and void."""
        return sum((one.tally for one in self.series), Tally())

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values; the README says what the keys mean."""
        return {
            "place": self.place,
            **_tally_json(self.tally),
            "tasks": {task: live.to_json() for task, live in self.tasks.items()},
            "series": [one.to_json() for one in self.series],
        }


@dataclass(frozen=True, eq=False)
class _Losses:
    """Losses of one task: of a series, or of several as multiples of naive's mean loss of each.

    Args:
        num_scored: Forecasts behind them.
        times_s: Closes that these were issued for, ascending, shape (N,).
        by_forecaster: Their mean at each close, shape (N,), in an order of forecasters.
        bar_s: Seconds of a bar.
        horizon_bars: The longest horizon.
        coverage: Of the model's intervals, where it has some.
    """

    num_scored: int
    times_s: NDArray[np.int64]
    by_forecaster: Mapping[str, Floats]
    bar_s: int
    horizon_bars: int
    coverage: Coverage | None = None

    @cached_property
    def means(self) -> dict[str, float]:
        """Mean loss of each forecaster."""
        return {name: float(losses.mean()) for name, losses in self.by_forecaster.items()}

    @cached_property
    def num_days(self) -> int:
        """Days, UTC, on which forecasts were issued."""
        return len(np.unique(self.times_s // DAY_S))


def live_record(ledger: Ledger, place: Path | str, series: Sequence[str] | str | None = None) -> Record:
    """Compute the live record of a place.

    Args:
        ledger: An open ledger.
        place: The folder of a run, `user/name` on the Hub, or the ledger's own name of a place.
        series: Only these, or this one; all that have forecasts when None.

    Raises:
        ArtifactError: If what the ledger holds cannot be trusted.
    """
    wanted = [series] if isinstance(series, str) else series
    names = ledger.series(place) if wanted is None else list(wanted)
    scored = {name: [_in_time(one) for one in ledger.scored(place, name)] for name in names}
    covered = {name: _covered(ledger, place, name, those) for name, those in scored.items()}
    by_task = {task: _by_series(scored, covered, task) for task in TASKS}
    by_task = {task: losses for task, losses in by_task.items() if losses}
    best = {task: _best_baseline([*losses.values()]) for task, losses in by_task.items()}
    of_series = {
        task: dict(zip(losses, _corrected([_live(one, best[task]) for one in losses.values()]), strict=True))
        for task, losses in by_task.items()
    }
    lines = [
        LiveSeries(
            series=name,
            tally=ledger.tally(place, name),
            newest_s=ledger.newest(place, name),
            tasks={task: found[name] for task, found in of_series.items() if name in found},
            generations=tuple(_generation(one, best, covered[name]) for one in scored[name]),
        )
        for name in names
    ]
    together = {task: _live(_together([*found.values()]), best[task]) for task, found in by_task.items()}
    return Record(ledger.place(place), tuple(lines), together)


def _in_time(scored: Scored) -> Scored:
    """Leave out what was written late."""
    is_kept = scored.written_s < scored.issued_for_s + scored.issuer.bar_s
    times_s, written_s = scored.issued_for_s[is_kept], scored.written_s[is_kept]
    return Scored(scored.issuer, times_s, written_s, scored.losses[is_kept])


def _covered(ledger: Ledger, place: Path | str, series: str, scored: Sequence[Scored]) -> Covered:
    """Count what intervals held, where any model of a series has some."""
    if not any(one.issuer.has_quantiles for one in scored):
        return ()
    return coverage_by_issuer(ledger, place, series)


def _by_series(
    scored: Mapping[str, Sequence[Scored]], covered: Mapping[str, Covered], task: str
) -> dict[str, _Losses]:
    """Return the losses of a task for every series that has any."""
    having = {
        name: [one for one in those if task in one.issuer.tasks and len(one.issued_for_s)]
        for name, those in scored.items()
    }
    return {name: _losses(those, task, covered[name]) for name, those in having.items() if those}


def _losses(those: Sequence[Scored], task: str, covered: Covered) -> _Losses:
    """Join the losses of one series' issuers by the forecasters that all of them have."""
    times_s = np.concatenate([one.issued_for_s for one in those])
    order = np.argsort(times_s, kind="stable")
    names = those[0].issuer.forecasters
    shared = [name for name in names if all(name in one.issuer.forecasters for one in those)]
    return _Losses(
        num_scored=len(times_s),
        times_s=times_s[order],
        by_forecaster={name: _of(those, task, name)[order] for name in shared},
        bar_s=those[0].issuer.bar_s,
        horizon_bars=max(one.issuer.horizon_bars for one in those),
        coverage=together(
            found.get(task) for issuer, found in covered if any(one.issuer == issuer for one in those)
        ),
    )


def _of(those: Sequence[Scored], task: str, forecaster: str) -> Floats:
    """Return the losses of a task and forecaster over some issuers, shape (N,)."""
    found = []
    for one in those:
        place = one.issuer.forecasters.index(forecaster), [*one.issuer.tasks].index(task)
        found.append(one.losses[:, *place])
    return np.concatenate(found)


def _together(losses: Sequence[_Losses]) -> _Losses:
    """Add up several series' losses close by close, each series in units of naive's mean loss of it."""
    if len(losses) == 1:
        return losses[0]
    bar_s = min(one.bar_s for one in losses)
    slots, where = np.unique(np.concatenate([one.times_s // bar_s for one in losses]), return_inverse=True)
    num_scored = len(where)
    by_forecaster: dict[str, Floats] = {}
    for name in _shared(losses):
        added = np.bincount(where, np.concatenate([_in_units_of_naive(one, name) for one in losses]))
        by_forecaster[name] = np.asarray(added * (len(slots) / num_scored), np.float64)
    longest_s = max(one.horizon_bars * one.bar_s for one in losses)
    coverage = together(one.coverage for one in losses)
    return _Losses(num_scored, slots * bar_s, by_forecaster, bar_s, longest_s // bar_s, coverage)


def _in_units_of_naive(losses: _Losses, forecaster: str) -> Floats:
    """Return losses as multiples of naive's mean; 0 in a market that stood still, where naive makes none."""
    unit = losses.means[NAIVE]
    return losses.by_forecaster[forecaster] / unit if unit > 0 else np.zeros(len(losses.times_s))


def _shared(losses: Sequence[_Losses]) -> list[str]:
    return [name for name in losses[0].by_forecaster if all(name in one.by_forecaster for one in losses)]


def _best_baseline(losses: Sequence[_Losses]) -> str:
    """Return the baseline whose mean loss over naive's has the smallest median; ties go to naive."""
    names = [name for name in _shared(losses) if name != MODEL and level_of(name) is None]

    def typical(name: str) -> float:
        pairs = [(one.means[name], one.means[NAIVE]) for one in losses]
        return round(median([theirs / naive for theirs, naive in pairs if naive > 0] or [math.inf]), 9)

    return min(names, key=lambda name: (typical(name), name != NAIVE))


def _live(losses: _Losses, best: str) -> LiveTask:
    return LiveTask(
        num_scored=losses.num_scored,
        num_days=losses.num_days,
        errors={name: loss for name, loss in losses.means.items() if level_of(name) is None},
        crps=(crps := _crps(losses)),
        coverage=None if crps is None else losses.coverage,
        naive=_against(losses, NAIVE),
        best=_against(losses, best if best in losses.by_forecaster else NAIVE),
    )


def _crps(losses: _Losses) -> float | None:
    """Return the mean over the levels of twice the pinball loss, which at the median is the model's error."""
    of_quantiles = [loss for name, loss in losses.means.items() if level_of(name) is not None]
    return mean([losses.means[MODEL], *of_quantiles]) if of_quantiles else None


def _against(losses: _Losses, baseline: str) -> Against:
    ours, theirs = losses.means[MODEL], losses.means[baseline]
    is_tested = not is_equal(ours, theirs) and losses.num_days >= MIN_DAYS
    p_value = _test(losses, baseline).p_value if is_tested else None
    return Against(baseline, ours, theirs, p_value, p_value)


def _test(losses: _Losses, baseline: str) -> Significance:
    return diebold_mariano(
        losses.by_forecaster[MODEL] - losses.by_forecaster[baseline],
        horizon_bars=losses.horizon_bars,
        bar_numbers=losses.times_s // losses.bar_s,
    )


def _corrected(lives: Sequence[LiveTask]) -> list[LiveTask]:
    """Correct the p-values of a task for the number of series."""
    for_naive = corrected_p_values([one.naive.p_value for one in lives])
    for_best = corrected_p_values([one.best.p_value for one in lives])
    return [
        replace(
            one,
            naive=replace(one.naive, corrected_p_value=naive),
            best=replace(one.best, corrected_p_value=best),
        )
        for one, naive, best in zip(lives, for_naive, for_best, strict=True)
    ]


def _generation(scored: Scored, best: Mapping[str, str], covered: Covered) -> LiveGeneration:
    issuer, times_s = scored.issuer, scored.issued_for_s
    if not len(times_s):
        return LiveGeneration(issuer, None, None, {})
    found = {task: _losses([scored], task, covered) for task in TASKS if task in issuer.tasks}
    tasks = {task: _live(losses, best[task]) for task, losses in found.items()}
    return LiveGeneration(issuer, int(times_s[0]), int(times_s[-1]), tasks)


def _tally_json(tally: Tally) -> dict[str, int]:
    return {**asdict(tally), "num_pending": tally.num_pending}


def _against_json(against: Against) -> dict[str, Any]:
    return {
        "baseline": against.name,
        "multiple": against.multiple,
        "verdict": against.verdict,
        "p_value": against.p_value,
        "corrected_p_value": against.corrected_p_value,
        "is_significant": against.is_significant,
    }
