"""Champion against challenger on candles that neither was made from, ruled by `v8.losses.contest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.generations import Contender, Decision, Opponent, Serving, Sureness, artifact_folder
from v8.artifacts.run_folder import now_iso
from v8.artifacts.series_artifact import read_described
from v8.errors import ArtifactError
from v8.features.store import FeatureStore
from v8.formulas.baselines import NAIVE, called
from v8.losses.contest import Contest, compare_models, is_enough, too_few
from v8.losses.quantile_judgement import measure_quantiles
from v8.market.candles import Candles
from v8.market.series import Series
from v8.profile import Profile
from v8.quantile_levels import intervals, nominal, percent_of
from v8.redaction import shown
from v8.windows.dataset import prepare_series, table_columns
from v8.windows.span import Floats, Span

_MOST_WORDS = 300
"""Letters of a reason in `serving.json`."""


@dataclass(frozen=True)
class Ruling:
    """What came of it.

    Args:
        is_replaced: Whether the challenger serves.
        why: The reason, a clause.
        contest: The judgement of both; None where there was none.
        judged_from: When the first forecast that was judged was issued, ISO 8601; None without any.
        judged_until: When the last forecast bar closed, ISO 8601; None without any.
        quantiles: Per task how good those of champion and challenger were; empty without any.
    """

    is_replaced: bool
    why: str
    contest: Contest | None = None
    judged_from: str | None = None
    judged_until: str | None = None
    quantiles: tuple[Mapping[str, Sureness], Mapping[str, Sureness]] = ({}, {})


def rule(champion: Path, challenger: Path, candles: Candles, profile: Profile) -> Ruling:
    """Let two models of a series forecast what neither has seen, and say which of them serves.

    That is the challenger's test span, as far as it lies an embargo behind what the champion was fitted and
    stopped on. The baselines are fitted to the challenger's train span.

    Args:
        champion: Artefact of the model that serves.
        challenger: Artefact of the newer one.
        candles: Those that the challenger was made from.
        profile: Of both.

    Raises:
        SeriesError: If a model does not forecast what the profile says.
    """
    try:
        new = Forecaster.load(challenger)
    except ArtifactError:
        return Ruling(False, "the files of the challenger are damaged")
    if candles.digest != new.metadata["candles"]["digest"]:
        return Ruling(False, "the candles that the challenger was made from are no longer the same")
    try:
        old = Forecaster.load(champion)
    except ArtifactError:
        return Ruling(True, "the files of the champion are damaged")
    if not _is_alike(old, new):
        return Ruling(True, "the champion forecasts something else than the profile says")
    data = prepare_series(FeatureStore(num_remembered=0).table(candles, table_columns(profile)), profile)
    span = unseen(data.spans["test"], old.seen_until_s)
    if not is_enough(len(span), span.horizon_bars):
        return Ruling(False, too_few(len(span), span.horizon_bars))
    made = [each.forecast_all(span.raw_windows()) for each in (old, new)]
    theirs, ours = ({task: _exact(one) for task, one in each.points.items()} for each in made)
    contest = compare_models(span, ours, theirs, train=data.spans["train"], scaling=data.scaling)
    first, last = int(span.anchors[0]), int(span.anchors[-1]) + span.horizon_bars
    sure_old, sure_new = (_sureness(each.quantiles, contest, span) for each in made)
    ends = _closed(span, first), _closed(span, last)
    return Ruling(contest.is_won, contest.why, contest, *ends, (sure_old, sure_new))


def decision_of(series: Series, serving: Serving, generation: str, stale: str, ruling: Ruling) -> Decision:
    """Write down a ruling.

    Args:
        series: About which series.
        serving: What serves until then.
        generation: That of the challenger.
        stale: Why there was one, a clause.
        ruling: What came of it.
    """
    contest = ruling.contest
    old, new = (contest.champion_multiples, contest.challenger_multiples) if contest else ({}, {})
    best = contest.best_baselines if contest else {}
    return Decision(
        series=str(series),
        decided_at=now_iso(),
        stale=shown(stale, _MOST_WORDS),
        champion=replace(
            _contender(series, serving, serving.generation_of(str(series)), old),
            quantiles=ruling.quantiles[0],
        ),
        challenger=replace(_contender(series, serving, generation, new), quantiles=ruling.quantiles[1]),
        num_windows=contest.judged.num_windows if contest else 0,
        judged_from=ruling.judged_from,
        judged_until=ruling.judged_until,
        baselines={task: Opponent(called(name), multiple) for task, (name, multiple) in best.items()},
        p_values={task: test.p_value for task, test in contest.tests.items()} if contest else {},
        verdict="replaced" if ruling.is_replaced else "kept",
        why=shown(ruling.why, _MOST_WORDS),
    )


def _contender(series: Series, serving: Serving, generation: str, multiples: dict[str, float]) -> Contender:
    """Describe one of the two; nobody knows until when one was trained that is damaged or was never made."""
    try:
        folder = artifact_folder(serving.run, generation, str(series))
        until = read_described(folder, series=str(series))["candles"]["last_open"]
    except ArtifactError:
        until = None
    return Contender(generation, until, multiples)


def unseen(span: Span, seen_until_s: int) -> Span:
    """Return the windows of a span that begin an embargo behind what another model has seen.

    Args:
        span: Any windows.
        seen_until_s: When the last candle closed that the other was fitted or stopped on, seconds since the
            epoch, UTC.
    """
    first_rows = span.anchors - span.profile.lookback_bars + 1
    begin_s = seen_until_s + span.profile.embargo_bars * span.table.series.bar_s
    return Span(span.table, span.profile, span.anchors[span.table.open_time_s[first_rows] >= begin_s])


def _is_alike(old: Forecaster, new: Forecaster) -> bool:
    """Tell whether both read and forecast the same, so that they can be compared at all."""
    abouts = ("series", "features", "lookback_bars", "horizon_bars", "quantiles")
    is_same = all(getattr(old, about) == getattr(new, about) for about in abouts)
    return is_same and old.metadata["tasks"].keys() == new.metadata["tasks"].keys()


def _exact(values: NDArray[np.float32]) -> Floats:
    return values.astype(np.float64)


def _sureness(
    quantiles: Mapping[str, NDArray[np.float32]], contest: Contest, span: Span
) -> dict[str, Sureness]:
    """Say how good quantiles were, per task, but where naive never errs."""
    levels, found = span.profile.quantiles, {}
    names = [f"{percent_of(nominal(pair))} %" for pair in intervals(levels)]
    for task, forecast in quantiles.items():
        errors, _ = measure_quantiles(span, task, _exact(forecast), levels)
        if (naive := contest.judged.error(task, NAIVE).overall) > 0:
            coverage = {name: errors.mean_coverage(place) for place, name in enumerate(names)}
            found[task] = Sureness(errors.crps / naive, coverage)
    return found


def _closed(span: Span, row: int) -> str:
    closed_s = int(span.table.open_time_s[row]) + span.table.series.bar_s
    return datetime.fromtimestamp(closed_s, UTC).isoformat()
