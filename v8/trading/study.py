"""What the models of a place would have done in money on their test spans, beside formulas fitted like them.

Everybody is fitted to the train span; the level of ranges (`levelled`) comes from the validation span. Folds
of a back-test overlap: of a series every window counts once, for the first fold that has it.

Whoever reads the future earns any sum, so everybody forecasts some windows again from candles that end where
the forecast was issued, as a live forecast would, and is refused where that is another forecast.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from v8.arrays import FloatArray
from v8.artifacts.forecaster import Forecaster
from v8.baselines.baselines import BASELINES, Baseline
from v8.columns import CLOSE, OHLC, TASK_OHLC
from v8.errors import ArtifactError
from v8.evaluation.evaluation import MODEL
from v8.features.table import compute_table
from v8.forecasts.export import opened_models
from v8.market.candles import Candles
from v8.market.series import iso
from v8.market.sources.source import CandleSource
from v8.quantile_levels import intervals, nominal
from v8.tasks import OHLC_TASK, RANGE_TO_VARIANCE
from v8.trading.rules import INTERVAL, NAIVE, Market, Study, Terms, Worth, levelled, worth_of
from v8.windows.dataset import SeriesData, prepare_series, table_columns
from v8.windows.span import Span

FORMULAS: Final = ("ewma", "har", "range_paths")
"""Baselines that know ranges; they stand beside the model and `NAIVE`."""

NUM_CHECKED: Final = 4  # windows of a span that are forecast again

Candlesticks: TypeAlias = Callable[[Span], tuple[FloatArray, Any]]
"""Forecasts candles, (N, H, 4), and their quantiles at the levels of the profile, (N, H, Q, 4), if any."""


def measure_worth(
    place: Path, terms: Terms, open_source: Callable[[str], CandleSource], names: Sequence[str] = ()
) -> Worth:
    """Return what the models of a run, a back-test or a pulled repository, or of some series, are worth.

    `open_source` opens the source of candles that a model tells by name. Raises `ArtifactError` if a model is
    not there or cannot be trusted, or a forecast knows what comes later; `DataError` if the source has other
    candles than those that a model was made from.
    """
    studies = []
    last = dict[str, int]()
    is_demo = False
    for _, forecaster, candles in opened_models(place, open_source, names):
        profile = forecaster.about.trained_profile
        name = str(forecaster.series)
        data = prepare_series(compute_table(candles, table_columns(profile)), profile)
        study = study_of(data, candles, forecasts_of(data, forecaster), after=last.get(name, -1))
        if study:
            studies.append(study)
            is_demo |= forecaster.about.is_demo_market
            last[name] = int(study.market.bar_numbers[-1])
    return replace(worth_of(studies, terms), is_demo=is_demo)


def forecasts_of(data: SeriesData, forecaster: Forecaster) -> dict[str, Candlesticks]:
    """Return the model, naive and formulas, each a function of windows."""

    def model(span: Span) -> tuple[FloatArray, Any]:
        made = forecaster.forecast_all(span.raw_windows())
        return made.points[TASK_OHLC].astype(np.float64), made.quantiles.get(TASK_OHLC)

    def naive(span: Span) -> tuple[FloatArray, Any]:
        half = np.sqrt(span.range_variance(span.horizon_bars) / RANGE_TO_VARIANCE) / 2
        bar = span.last_close[:, None] * np.exp(half[:, None] * OHLC_TASK.sides)
        return np.repeat(bar[:, None], span.horizon_bars, axis=1), None

    return {MODEL: model, NAIVE: naive, **{name: _formula(data, BASELINES[name]) for name in FORMULAS}}


def _formula(data: SeriesData, baseline: Baseline) -> Candlesticks:
    fitted = (data.spans["train"], data.scaling)
    levels = data.profile.quantiles
    points = baseline.fit(*fitted)
    quantiles = baseline.fit_quantiles(*fitted, levels) if levels and baseline.fit_quantiles else None
    return lambda span: (points(span)[TASK_OHLC], quantiles(span)[TASK_OHLC] if quantiles else None)


def study_of(
    data: SeriesData, candles: Candles, those: Mapping[str, Candlesticks], *, after: int = -1
) -> Study | None:
    """Let forecasters speak of the windows of a test span behind a bar; None where there are none.

    Raises `ArtifactError` if one of them knows what comes later.
    """
    past = data.spans["validation"]
    test = data.spans["test"]
    levels = data.profile.quantiles
    span = Span(data.table, data.profile, test.anchors[test.bar_numbers > after])
    if not len(span):
        return None
    known = _market(past)
    market = _market(span)
    outlooks = {}
    cut = cut_behind(span, candles)
    pair = next((each for each in intervals(levels) if nominal(each) == INTERVAL), ())
    columns = [levels.index(level) for level in pair]
    for name, forecast in those.items():
        made, quantiles = forecast(span)
        require_causal(name, forecast, made, cut)
        is_told = columns and quantiles is not None
        ends = tuple(quantiles[:, -1, columns, OHLC.index(CLOSE)].T) if is_told else None
        outlooks[name] = levelled(known, forecast(past)[0], market.last_N, made, ends)
    return Study(str(data.series), market, outlooks)


def _market(span: Span) -> Market:
    return Market(span.actual[TASK_OHLC], span.last_close, span.bar_numbers, span.table.series.bar_s)


def cut_behind(span: Span, candles: Candles) -> dict[int, Span]:
    """Return some windows of a span, by their places, each alone with candles that end at its issue."""

    def alone(at: int) -> Span:
        is_known = candles.open_time_s <= span.table.open_time_s[span.anchors[at]]
        table = compute_table(candles.select_rows(np.flatnonzero(is_known)), span.table.columns)
        return Span(table, span.profile, np.array([len(table) - 1]))

    return {int(at): alone(at) for at in np.linspace(0, len(span) - 1, NUM_CHECKED).astype(int)}


def require_causal(name: str, forecast: Candlesticks, made: FloatArray, cut: Mapping[int, Span]) -> None:
    """Refuse forecasts of a span, (N, H, 4), that are others where candles end at their issue (`cut_behind`).

    Raises `ArtifactError` if one is.
    """
    for at, span in cut.items():
        alone, _ = forecast(span)
        if not np.allclose(alone[0], made[at], rtol=1e-6, atol=0.0):
            issued_s = int(span.table.open_time_s[-1]) + span.table.series.bar_s
            where = f"{span.table.series}, forecast of {name} at {iso(issued_s)}"
            rule = "is the same from candles that end where it is issued"
            got = f"a last close of {made[at, -1, 3]:.7g} instead of {alone[0, -1, 3]:.7g}"
            fix = "Find what of it reads later candles: until then no sum of money means anything"
            raise ArtifactError(where=where, rule=rule, got=got, fix=fix)
