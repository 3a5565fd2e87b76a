"""Which models of a run are stale, and why.

* `age`: more candles have come than its test span holds, or than a stated number of days. Counted in candles
  because a day means 96 of them to one series and 24 to another; by the test span because then all candles
  that a challenger is judged on are newer than any that the champion was made or judged with.
* `decay`: on the candles that came since, it is worse than its test span promised, or than the baseline that
  was best there, by more than chance. The live record tells, where it holds enough forecasts of this model:
  nobody can have tuned those. Else the model forecasts the candles since once more, a back-test.
* `always`: there are new candles.

A model that was challenged and stayed is not stale by the same evidence again: its age, and the candles
that show decay, begin behind the newest candle of the challenger. Without new candles nothing is stale: the
same candles and seed would give the same model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.metadata import Metadata, read_metadata
from v8.artifacts.nested_runs import Serving
from v8.errors import ArtifactError
from v8.features.formulas import DAY_S
from v8.features.table import compute_table
from v8.formulas.baselines import BASELINES, NAIVE
from v8.live.ledger import Ledger
from v8.losses.contest import decay_of, is_enough
from v8.losses.judgement import MODEL
from v8.losses.metrics import measure_errors
from v8.losses.table import Losses
from v8.market.candles import Candles
from v8.market.series import Series, iso
from v8.windows.dataset import table_columns
from v8.windows.span import Span
from v8.windows.splits import window_anchors
from v8.wording import ABSENT, number

RULES: Final = ("age", "decay", "always")
"""By which a model is stale, see above."""


def recorded_losses(
    ledger: Ledger, run: Path, series: Series, model_sha256: str, start_s: int
) -> Losses | None:
    """Return those of the live record that one model issued in time; None where it issued none.

    Forecasts count that were issued for closes from `start_s` on, seconds since the epoch, UTC.
    """
    found = [one for one in ledger.scored(run, str(series)) if one.issuer.model_sha256 == model_sha256]
    if not found:
        return None
    scored = max(found, key=lambda one: len(one.issued_for_s)).in_time(start_s)
    issuer = scored.issuer
    by_task = {task: {name: scored.of(task, name) for name in issuer.forecasters} for task in issuer.tasks}
    # The newest candle closed when the forecast was issued for.
    bars = scored.issued_for_s // issuer.bar_s - 1
    return Losses(by_task, bars, issuer.horizon_bars, "of the live record")


def back_tested_losses(folder: Path, opponents: Mapping[str, str], candles: Candles, start_s: int) -> Losses:
    """Let a model forecast the candles since, beside naive and one baseline a task, by `opponents`.

    Those are fitted to what lies before `start_s`, seconds since the epoch, UTC; forecasts count that are
    issued from then on. There are none where nothing lies before it that baselines could be fitted to.
    """
    forecaster = Forecaster.load(folder)
    before, since = _spans(forecaster, candles, start_s)
    if not len(before) or not len(since):
        return Losses({}, np.zeros(0, np.int64), since.horizon_bars)
    scaling = forecaster.about.scaling
    by_task = {}
    for task, values in forecaster.forecast(since.raw_windows()).items():
        made = {MODEL: values.astype(np.float64), NAIVE: since.rolled[task]}
        if (name := opponents[task]) not in made and BASELINES[name].is_installed():
            made[name] = BASELINES[name].fit(before, scaling)(since)[task]
        by_task[task] = {who: measure_errors(since, task, what)[1] for who, what in made.items()}
    return Losses.of(since, by_task, "of a back-test")


def _spans(forecaster: Forecaster, candles: Candles, start_s: int) -> tuple[Span, Span]:
    """Return the windows that ended before a moment, and those that are issued from then on."""
    profile = forecaster.about.trained_profile
    table = compute_table(candles, table_columns(profile))
    anchors = window_anchors(table.segment, (0, len(table)), profile.lookback_bars, profile.horizon_bars)
    closed_s = table.open_time_s + table.series.bar_s
    is_before, is_since = closed_s[anchors + profile.horizon_bars] <= start_s, closed_s[anchors] >= start_s
    return Span(table, profile, anchors[is_before]), Span(table, profile, anchors[is_since])


@dataclass(frozen=True)
class Rule:
    """By which rule a model is stale."""

    when: str = "age"  # one of `RULES`
    max_age_days: float | None = None  # from which on it is by `age`; None for the length of its test span


@dataclass(frozen=True)
class Standing:
    """How the model that serves a series stands."""

    series: Series
    generation: str  # that serves
    trained_until_s: int | None  # open time of its newest candle, seconds, UTC; None if it is damaged
    is_stale: bool  # whether it should be challenged
    why: str  # the reason either way, a clause
    live: str = ABSENT  # its error in the live record, as a multiple of naive's, and of how many forecasts

    @property
    def until(self) -> str:
        """Its newest candle, in words."""
        return ABSENT if self.trained_until_s is None else iso(self.trained_until_s)


@dataclass(frozen=True)
class _Served:
    """A model that serves."""

    series: Series
    folder: Path  # its artefact
    about: Metadata  # its `metadata.json`
    trained_s: int  # open time of its newest candle, seconds since the epoch
    tried_s: int  # the same, or that of the newest challenger that it has seen off


@dataclass(frozen=True)
class Staleness:
    """Finds out whether models of a run are stale."""

    serving: Serving  # what serves in the run
    rule: Rule  # by which they are
    ledger: Ledger | None = None  # where forecasts are recorded; None without one

    def standing(self, series: Series, candles: Candles) -> Standing:
        """Say how the model that serves a series stands.

        `candles` are the newest that there are; for `decay` as many as training takes. Raises `DataError` if
        they cannot be used.
        """
        generation = self.serving.generation_of(str(series))
        try:
            served = self._served(series, generation)
            is_stale, why = self._found(served, candles)
            return Standing(series, generation, served.trained_s, is_stale, why, self._live(served))
        except ArtifactError:
            return Standing(series, generation, None, True, "the model that serves cannot be used")

    def _served(self, series: Series, generation: str) -> _Served:
        folder = self.serving.folder(str(series))
        about = read_metadata(folder, series=str(series))
        trained_s = about.candles.last_open_s
        tried_s = max([trained_s, *_tried(self.serving, str(series), generation)])
        return _Served(series, folder, about, trained_s, tried_s)

    def _found(self, served: _Served, candles: Candles) -> tuple[bool, str]:
        num_new = max(0, (int(candles.open_time_s[-1]) - served.tried_s) // served.series.bar_s)
        said = f"{num_new:,} new {'candle' if num_new == 1 else 'candles'} since {iso(served.tried_s)}"
        said += "".join(f", {count:,} bars lack {name}" for name, count in candles.report.lacking.items())
        if not num_new or self.rule.when == "always":
            return num_new > 0, said
        if self.rule.when == "age":
            allowed = _allowed_bars(served.series, served.about, self.rule.max_age_days)
            compared = "more than" if num_new > allowed else "not more than"
            return num_new > allowed, f"{said}, {compared} {allowed:,}"
        is_stale, found = self._decay(served, candles)
        return is_stale, f"{said}: {found}"

    def _decay(self, served: _Served, candles: Candles) -> tuple[bool, str]:
        """Judge what the live record holds of a model since the newest try, or else a back-test."""
        judged = served.about.judgement
        start_s = served.tried_s + served.series.bar_s
        recorded = self._recorded(served, start_s)
        if recorded and is_enough(len(recorded), recorded.horizon_bars):
            return decay_of(judged, recorded)
        best = {task: judged.best_baseline(task) for task in judged.tasks}
        return decay_of(judged, back_tested_losses(served.folder, best, candles, start_s))

    def _recorded(self, served: _Served, start_s: int) -> Losses | None:
        if self.ledger is None:
            return None
        digest = served.about.model_sha256
        return recorded_losses(self.ledger, self.serving.run, served.series, digest, start_s)

    def _live(self, served: _Served) -> str:
        recorded = self._recorded(served, 0)
        if not recorded or not len(recorded):
            return ABSENT
        naive = {task: recorded.mean(task, NAIVE) for task in recorded.by_task}
        told = [
            f"{task} {number(recorded.mean(task, MODEL) / error if error else None)}"
            for task, error in naive.items()
        ]
        return f"{', '.join(told)} of {len(recorded):,}"


def _seconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp())


def _allowed_bars(series: Series, about: Metadata, max_age_days: float | None) -> int:
    if max_age_days is not None:
        return int(max_age_days * DAY_S / series.bar_s)
    first, end = about.split.test.rows
    return end - first


def _tried(serving: Serving, series: str, generation: str) -> list[int]:
    """List the newest candles of the challengers that a model has seen off, seconds since the epoch."""
    about = serving.decisions_about(series)
    ends = [one.challenger.trained_until for one in about if one.champion.generation == generation]
    return [_seconds(end) for end in ends if end]
