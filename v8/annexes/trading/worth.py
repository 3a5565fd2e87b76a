"""`v8.worth`: measures what trading by the models of a place would have gained on their test spans.

The gains are compared with those of baselines and of the naive forecast.

Every forecaster is fitted to the train span; the level of its ranges (`calibrate_forecast`) comes from the
validation span. Test spans of a back-test's folds overlap: of a series every window counts once, in the first
fold that has it.

A forecaster that reads future values would earn any sum. So every forecaster forecasts some windows again
from candles that end where the forecast was issued, as in live use, and is refused if the two differ.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd

from v8.annexes.trading import Bps, Leverage, TargetPct, TradingTerms, WorthOptions
from v8.annexes.trading.page import sentences, write_trading_results
from v8.annexes.trading.rules import (
    INTERVAL,
    NAIVE,
    CloseInterval,
    MarketWindows,
    TradingCase,
    TradingResults,
    calibrate_forecast,
    evaluate_trading,
    require_ranges,
)
from v8.api.arguments import call_in_child, in_python, maybe_path, series_list
from v8.api.export import opened_models
from v8.base.arrays import MAX_STEPS_AGAIN, AnyFloatArray, FloatArray, steps_apart
from v8.base.child import send_message
from v8.base.errors import ArtifactError
from v8.base.process import quiet_start, watch_interrupts
from v8.data.features import compute_table
from v8.data.market.candles import Candles
from v8.data.market.series import iso
from v8.data.market.sources import OpenedSource
from v8.data.span import Span
from v8.data.windows import SeriesData, prepare_series, table_columns
from v8.forecaster.forecaster import Forecaster
from v8.model.baselines.baselines import BASELINES, Baseline
from v8.model.evaluation.evaluation import MODEL
from v8.profile.columns import BAR_RANGE, CLOSE, OHLC, TASK_OHLC, TASK_RANGE, intervals, nominal
from v8.profile.formulas import RANGE_TO_VARIANCE
from v8.profile.tasks import OHLC_TASK, RANGE_TASK

FORMULAS: Final = ("ewma", "har", "log_har_clock", "range_paths")
"""Baselines that forecast ranges; they are compared with the model and `NAIVE`."""

NUM_CHECKED: Final = 4  # windows of a span that are forecast again


@dataclass(frozen=True, eq=False)
class ForecastCandles:
    """What a forecaster says of the bars ahead of N windows."""

    candles_NHC: FloatArray  # open, high, low, close, quote currency
    quantiles_NHQC: Any = None  # of these at the levels of the profile; None without any
    ranges_NH: FloatArray | None = None  # log range of each bar, unitless; None without the task `range`


CandleForecast: TypeAlias = Callable[[Span], ForecastCandles]


@in_python
def worth(
    run: str | Path,
    *,
    series: str | Sequence[str] | None = None,
    fee_bps: Bps = 10.0,
    spread_bps: Bps = 2.0,
    target_pct: TargetPct = 40.0,
    max_leverage: Leverage = 2.0,
    source: str | None = None,
    data_dir: str | Path | None = None,
    tables: str | Path | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    """Return what forecasts of the test spans of a run or a back-test would have earned, after costs.

    It is the command `worth`, which writes worth.html, worth.json and worth.csv into the folder.

    Args:
        run: A folder of a run, of a back-test, or of pulled models.
        series: Such as "BTCUSDT-15m", or several; None for all.
        fee_bps: Fee of a trade, basis points (1/100 of 1 %).
        spread_bps: Between bid and ask, basis points.
        target_pct: Volatility of a year that a position aims at, percent.
        max_leverage: Largest position, as a multiple of the wealth.
        source: Where the candles come from; None for the source of the run.
        data_dir: Folder of candle files; None for the run's.
        tables: Folder of the covariates' tables; None for the run's.
        progress: Whether to print lines about it.

    Returns:
        A row for each trading rule over all series (`series` is "all"), and one for each rule and series:

        * `rule`, `series`, `unit` (of the gains), `best_other` (the best alternative), `outcome`: text.
        * `days`: days of the test spans, int64.
        * `model`, `naive`, `ewma`, `har`, `log_har_clock`, `range_paths`, `buy and hold`, `market order`,
          `perfect_foresight`: the gain of a day, float; NaN where a rule has no such forecaster.
        * `difference_low_95`, `difference_high_95`: interval of the model's gain minus that of the best
          alternative, of this row alone, in the same unit; NaN where there are too few days.
        * `p_naive`, `p_best`: p-values, corrected for all rows of the table, 0 to 1.

    Raises:
        ArtifactError: If a model is missing, cannot be trusted, or uses future values.
        DataError: If the source has other candles than those that the models were made from.

    >>> import v8
    >>> v8.worth("runs/frontier").query("series == 'all'")[["rule", "model", "naive"]]  # doctest: +SKIP
    """
    options = WorthOptions(
        run=Path(run),
        series=tuple(series_list(series)),
        fee_bps=fee_bps,
        spread_bps=spread_bps,
        target_pct=target_pct,
        max_leverage=max_leverage,
        source=source,
        data_dir=maybe_path(data_dir),
        tables=maybe_path(tables),
    )
    call_in_child(worth_in_child, options, where="v8.worth", progress=progress)
    return read_gains(Path(run))


def worth_in_child(options: WorthOptions) -> None:
    """Measure what trading would have earned in a process of its own, and write its files."""
    watch_interrupts()
    open_source = options.source_opener(options.run)
    names = options.series_names()
    results, files = finish_trading(options.run, options.terms(), open_source, names)
    for sentence in sentences(results):
        send_message(sentence)
    send_message(f"Written: {', '.join(map(str, files))}")


def read_gains(folder: Path) -> pd.DataFrame:
    """Read `worth.csv` of a folder."""
    table = pd.read_csv(folder / "worth.csv")
    table["series"] = table["series"].astype(object).fillna("all")
    table.attrs["folder"] = str(folder)
    return table


def finish_trading(
    place: Path, terms: TradingTerms, open_source: Callable[[str], OpenedSource], names: Sequence[str] = ()
) -> tuple[TradingResults, list[Path]]:
    """Evaluate trading as `measure_trading` does; write its files into the place and return them, too."""
    with quiet_start():
        results = measure_trading(place, terms, open_source, names)
    return results, write_trading_results(place, results)


def measure_trading(
    place: Path, terms: TradingTerms, open_source: Callable[[str], OpenedSource], names: Sequence[str] = ()
) -> TradingResults:
    """Evaluate trading by the models of a run, a back-test or a pulled repository.

    Args:
        place: Folder of the models.
        terms: Costs of trading and limits of risk.
        open_source: Opens a source of candles by the name that a model's metadata holds.
        names: Names of series; all of the place if empty.

    Raises:
        ArtifactError: If a model is missing or cannot be trusted, or a forecast uses future values.
        DataError: If the source has other candles than those that a model was made from, or what they would
            have gained cannot be computed.
    """
    cases = []
    last_bar_numbers = dict[str, int]()
    is_demo = False
    for _, forecaster, candles in opened_models(place, open_source, names):
        profile = forecaster.about.trained_profile
        name = str(forecaster.series)
        data = prepare_series(compute_table(candles, table_columns(profile)), profile)
        forecasts = forecasts_of(data, forecaster)
        case = trading_case_of(data, candles, forecasts, after=last_bar_numbers.get(name, -1))
        if case:
            cases.append(case)
            is_demo |= forecaster.about.is_demo_market
            last_bar_numbers[name] = int(case.market.bar_numbers[-1])
    return replace(evaluate_trading(cases, terms), is_demo=is_demo)


def forecasts_of(data: SeriesData, forecaster: Forecaster) -> dict[str, CandleForecast]:
    """Return the model, naive and the formulas by name, each as a function of windows."""

    def model(span: Span) -> ForecastCandles:
        forecast = forecaster.forecast_all(span.raw_windows())
        return _of_tasks(forecast.points, forecast.quantiles)

    def naive(span: Span) -> ForecastCandles:
        half_range = np.sqrt(span.range_variance(span.horizon_bars) / RANGE_TO_VARIANCE) / 2
        bar = span.last_close[:, None] * np.exp(half_range[:, None] * OHLC_TASK.sides)
        return ForecastCandles(np.repeat(bar[:, None], span.horizon_bars, axis=1))

    forecasts: dict[str, CandleForecast] = {MODEL: model, NAIVE: naive}
    for name in FORMULAS:
        forecasts[name] = _fit_formula(data, BASELINES[name])
    return forecasts


def _fit_formula(data: SeriesData, baseline: Baseline) -> CandleForecast:
    train = data.spans["train"]
    levels = data.profile.quantiles
    points = baseline.fit(train, data.scaling)
    quantiles = None
    if levels and baseline.fit_quantiles:
        quantiles = baseline.fit_quantiles(train, data.scaling, levels)

    def forecast(span: Span) -> ForecastCandles:
        return _of_tasks(points(span), quantiles(span) if quantiles else {})

    return forecast


def _of_tasks(points: Mapping[str, AnyFloatArray], quantiles: Mapping[str, AnyFloatArray]) -> ForecastCandles:
    """Return what trading reads of forecasts by task."""
    ranges = points.get(TASK_RANGE)
    return ForecastCandles(
        candles_NHC=points[TASK_OHLC].astype(np.float64),
        quantiles_NHQC=quantiles.get(TASK_OHLC),
        ranges_NH=None
        if ranges is None
        else ranges[:, :, RANGE_TASK.columns.index(BAR_RANGE)].astype(np.float64),
    )


def trading_case_of(
    data: SeriesData, candles: Candles, forecasts: Mapping[str, CandleForecast], *, after: int = -1
) -> TradingCase | None:
    """Forecast the windows of a test span by every forecaster; None if there are no windows.

    Args:
        data: The series, split and scaled.
        candles: The candles that it was prepared from.
        forecasts: Forecasters by name.
        after: Only windows whose newest bar has a number larger than this, counted from the epoch.

    Raises:
        ArtifactError: If a forecaster uses future values.
    """
    validation = data.spans["validation"]
    test = data.spans["test"]
    span = Span(data.table, data.profile, test.anchors[test.bar_numbers > after])
    if not len(span):
        return None
    past = _market_windows(validation)
    market = _market_windows(span)
    require_ranges(past, f"validation span of {data.series}")
    require_ranges(market, f"test span of {data.series}")
    checked_spans = cut_behind(span, candles)
    level_columns = _interval_columns(data.profile.quantiles)
    market_forecasts = {}
    for name, forecast in forecasts.items():
        forecasted = forecast(span)
        require_causal(name, forecast, forecasted, checked_spans)
        close_interval: CloseInterval = None
        if level_columns and forecasted.quantiles_NHQC is not None:
            low, high = forecasted.quantiles_NHQC[:, -1, level_columns, OHLC.index(CLOSE)].T
            close_interval = (low, high)
        before = forecast(validation)
        market_forecasts[name] = calibrate_forecast(
            past,
            before.candles_NHC,
            market.last_close_N,
            forecasted.candles_NHC,
            close_interval,
            ranges_NH=(before.ranges_NH, forecasted.ranges_NH),
        )
    return TradingCase(str(data.series), market, market_forecasts)


def _interval_columns(levels: Sequence[float]) -> list[int]:
    """Return the positions of the two quantile levels that bound `INTERVAL`; empty if there are none."""
    for pair in intervals(levels):
        if nominal(pair) == INTERVAL:
            return [levels.index(level) for level in pair]
    return []


def _market_windows(span: Span) -> MarketWindows:
    return MarketWindows(
        actual_NHC=span.actual[TASK_OHLC],
        last_close_N=span.last_close,
        bar_numbers=span.bar_numbers,
        bar_s=span.table.series.bar_s,
    )


def cut_behind(span: Span, candles: Candles) -> dict[int, Span]:
    """Return some windows of a span by position, each alone in a span whose candles end at its issue."""
    positions = np.linspace(0, len(span) - 1, NUM_CHECKED).astype(int)
    spans = {}
    for position in positions.tolist():
        is_known = candles.open_time_s <= span.table.open_time_s[span.anchors[position]]
        table = compute_table(candles.select_rows(np.flatnonzero(is_known)), span.table.columns)
        spans[position] = Span(table, span.profile, np.array([len(table) - 1]))
    return spans


def require_causal(
    name: str, forecast: CandleForecast, forecasted: ForecastCandles, checked_spans: Mapping[int, Span]
) -> None:
    """Refuse a forecaster whose forecasts change when candles end where the forecast is issued.

    Args:
        name: Name of the forecaster.
        forecast: The forecaster.
        forecasted: Its forecasts of a span.
        checked_spans: Windows of this span by position, as `cut_behind` returns them.

    Raises:
        ArtifactError: If a forecast changes.
    """
    for position, span in checked_spans.items():
        alone = forecast(span)
        candles_HC = forecasted.candles_NHC[position]
        magnitude = OHLC_TASK.magnitude(span.last_close[0], candles_HC)
        is_same = steps_apart(alone.candles_NHC[0], candles_HC, magnitude) <= MAX_STEPS_AGAIN
        got = f"a last close of {candles_HC[-1, 3]:.7g} instead of {alone.candles_NHC[0, -1, 3]:.7g}"
        if is_same and forecasted.ranges_NH is not None and alone.ranges_NH is not None:
            ranges_H = forecasted.ranges_NH[position]
            magnitude = RANGE_TASK.magnitude(span.last_close[0], ranges_H)
            is_same = steps_apart(alone.ranges_NH[0], ranges_H, magnitude) <= MAX_STEPS_AGAIN
            got = f"a last range of {ranges_H[-1]:.7g} instead of {alone.ranges_NH[0, -1]:.7g}"
        if not is_same:
            issued_s = int(span.table.open_time_s[-1]) + span.table.series.bar_s
            raise ArtifactError(
                where=f"{span.table.series}, forecast of {name} at {iso(issued_s)}",
                rule="is the same from candles that end where it is issued",
                got=got,
                fix="Find what of it reads later candles: until then no sum of money means anything",
            )
