"""Issues one forecast of one series for the present, with everything that is reported about it.

A forecast has two times that must not be mixed up:

- `issued_at` is when it was made, by the exchange's clock if the source has one.
- `first_bar` is when the first bar that it forecasts opens, which is when the newest candle closed.

A forecast is about the future, so candles after which every forecast bar has already closed are refused,
unless a forecast of the past is requested. The demo market has a calendar of its own and no present: none of
its candles is too old, and no model of it has an age.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import pandas as pd

from v8.base.errors import DataError, V8Error, listed
from v8.base.process import report_waiting, with_progress
from v8.base.wording import count, duration, number, percent, say
from v8.data.market.candles import Candles, price_decimals, simulated_price_decimals
from v8.data.market.series import Series, iso
from v8.data.market.sources import CandleSource, PrefetchesCandles, present_of
from v8.forecaster.forecaster import PATH, Forecaster
from v8.forecaster.metadata import Metadata
from v8.forecaster.shared_models import ONNX
from v8.model.baselines.paths import PriceRange, RangeCoverage, range_json
from v8.profile.columns import CLOSE, HIGH, LOW, OHLC
from v8.profile.tasks import TASKS
from v8.publish.hub.places import ModelPlace

MOVES: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
"""Distances from the close, as shares of it, of the prices whose touch probabilities are reported."""


@dataclass(frozen=True)
class IssuedForecast:
    """A forecast, with its model and its candles."""

    forecaster: Forecaster  # the model
    candles: Candles  # its input; their digest identifies them
    forecast: pd.DataFrame  # result of `Forecaster.predict`: one row a bar ahead, index `open_time`
    place: str  # where the model is, as the user named it
    issued_at_s: int  # when it was issued, seconds since the epoch, UTC
    is_dated: bool  # whether the candles have real dates; those of the demo market have not
    paths: pd.DataFrame | None = None  # result of `Forecaster.paths`, if requested
    out_of_range: Mapping[str, float] | None = None
    """Features out of range of the training data, see `Forecaster.out_of_range_features`; None if unknown."""
    price_range: PriceRange | None = None
    """Where all bars ahead stay with a probability of `RANGE_SHARE`; None for a model without quantiles."""

    @property
    def closed_s(self) -> int:
        """When the newest candle closed and the first forecast bar opens, seconds since the epoch, UTC."""
        return int(self.candles.open_time_s[-1]) + self.candles.series.bar_s

    @property
    def num_closed_bars(self) -> int:
        """How many of its bars had closed when it was issued: the candles were late, or of the past."""
        if not self.is_dated:
            return 0
        num_bars = (self.issued_at_s - self.closed_s) // self.candles.series.bar_s
        return max(0, min(num_bars, len(self.forecast)))

    @property
    def model_age_s(self) -> int | None:
        """Seconds from the newest candle of the training to the issue; None without a calendar."""
        return self.issued_at_s - self.forecaster.trained_until_s if self.is_dated else None

    @cached_property
    def price_decimals(self) -> int:
        """Decimals that its prices are written with: as many as the candles have."""
        if self.candles.source == "demo":
            return simulated_price_decimals(float(self.candles.column(CLOSE)[-1]))
        return price_decimals(self.candles.values[:, : len(OHLC)])

    def written_price(self, value: float) -> str:
        """Write a price of this forecast as the exchange would."""
        return f"{value:,.{self.price_decimals}f}"

    def open_times(self) -> list[str]:
        """Return when each forecast bar opens, ISO 8601 in UTC."""
        return [moment.strftime("%Y-%m-%dT%H:%M:%SZ") for moment in self.forecast.index]

    def point_forecasts(self) -> pd.DataFrame:
        """Return the point forecasts without their quantiles."""
        columns = {name for task in TASKS.values() for name in task.columns}
        return self.forecast[[name for name in self.forecast.columns if name in columns]]

    def touch_probabilities(self) -> dict[str, Any]:
        """Return the probabilities that a bar ahead touches a price, and the paths; empty without paths."""
        if self.paths is None:
            return {}
        close = float(self.candles.column(CLOSE)[-1])
        by_path = self.paths.groupby(level=PATH)
        highest = by_path[HIGH].max() / close - 1
        lowest = by_path[LOW].min() / close - 1
        touch = []
        for move in MOVES:
            touch.append(
                {
                    "move": move,
                    "above": close * (1 + move),
                    "chance_above": float((highest >= move).mean()),
                    "below": close * (1 - move),
                    "chance_below": float((lowest <= -move).mean()),
                }
            )
        values = self.paths.to_numpy().reshape(-1, len(self.forecast), len(OHLC)).tolist()
        return {"touch": touch, "paths": {"columns": list(OHLC), "values": values}}

    def demo_lines(self) -> list[str]:
        """Return a warning if the candles are simulated."""
        if self.candles.source != "demo":
            return []
        return ["Demo market: simulated candles; this forecast says nothing about real prices."]

    def runtime_lines(self) -> list[str]:
        """Return a line if another program than Keras computed the forecast."""
        if self.forecaster.runtime != ONNX:
            return []
        return ["Computed by onnxruntime from model.onnx, without TensorFlow."]

    def summary_lines(self) -> list[str]:
        """Return the lines above the numbers: the model, its age, its candles and its errors."""
        model = self.forecaster
        report = self.candles.report
        revision = f" at {model.revision}" if model.revision else ""
        age = "" if self.model_age_s is None else f", {format_age(self.model_age_s)} before the forecast"
        lines = [
            f"Model: {self.place}{revision}, profile {model.about.profile.name}; it has seen candles until "
            f"{iso(model.trained_until_s)}{age}.",
            *model.origin_lines,
            *self.runtime_lines(),
        ]
        if self.out_of_range:
            lines.append(f"Out of range of the training data: {listed([*self.out_of_range])}.")
        lines.append(
            f"Candles: {len(self.candles):,} from {self.candles.source}, "
            f"{report.first_open} to {report.last_open} (open times)."
        )
        lines += self.demo_lines()
        return [*lines, *error_lines(model.about)]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values; docs/fields.yaml describes the keys."""
        report = self.candles.report
        open_times = self.open_times()
        rows = self.forecast.to_dict("records")
        return {
            "series": str(self.forecaster.series),
            "issued_at": iso(self.issued_at_s),
            "first_bar": open_times[0],
            "model": self._model_to_json(),
            "candles": {
                "source": self.candles.source,
                "num_bars": len(self.candles),
                "first_open": report.first_open,
                "last_open": report.last_open,
                "closed_at": iso(self.closed_s),
            },
            "is_in_range": None if self.out_of_range is None else not self.out_of_range,
            "out_of_range_features": self.out_of_range,
            "forecast": [
                {"open_time": open_time, **row} for open_time, row in zip(open_times, rows, strict=True)
            ],
            **range_json(self.price_range),
            **self.touch_probabilities(),
        }

    def range_line(self) -> str:
        """Say between which prices the bars ahead should stay, and how often they did on the test span.

        Empty if that is not forecast.
        """
        if self.price_range is None:
            return ""
        span = duration(len(self.forecast) * self.candles.series.bar_s, omits_zero=True)
        period = f"the {span} from {iso(self.closed_s)} on" if self.num_closed_bars else f"the next {span}"
        low = self.written_price(self.price_range.low)
        high = self.written_price(self.price_range.high)
        sentence = f"9 of 10 times the price should stay between {low} and {high} over {period}."
        tested = self.forecaster.about.price_range
        on_test = "" if tested is None else f" {coverage_sentence(tested)}"
        return f"{self.candles.series}: {sentence}{on_test}"

    def _model_to_json(self) -> dict[str, Any]:
        model = self.forecaster
        content: dict[str, Any] = {
            "place": self.place,
            "revision": model.revision,
            "profile": model.about.profile.name,
            "sha256": model.about.model_sha256,
            "runtime": model.runtime,
            "trained_on": model.trained_on,
            "trained_until": iso(model.trained_until_s),
            "age_s": self.model_age_s,
            "quality": model.about.quality,
        }
        quantiles = model.about.quantiles
        if quantiles:
            content["quantiles"] = {"levels": list(model.quantiles), "tasks": quantiles.summary()}
        return content


def periods_ahead(horizons: Iterable[tuple[int, str]]) -> str:
    """Write how far ahead models look, given seconds and timeframe of each.

    >>> periods_ahead([(36_000, "1h"), (9_000, "15m"), (36_000, "1h")]), periods_ahead([(36_000, "1h")])
    ('2 h 30 min (15m) / 10 h (1h)', '10 h')
    """
    different = sorted(set(horizons))
    # A time without its timeframe is enough where there is one.
    return " / ".join(
        duration(seconds, omits_zero=True) + (f" ({timeframe})" if len(different) > 1 else "")
        for seconds, timeframe in different
    )


def coverage_sentence(tested: RangeCoverage) -> str:
    """Say how often the range ahead held on the test span, or that too few windows tell it."""
    num = count(tested.num_windows)
    if not tested.has_enough_windows:
        return say("How often it held on test candles is not known: only {num} checks.", num=num)
    held = count(tested.num_inside)
    share = percent(tested.share)
    if tested.is_too_narrow:
        return say(
            "In {num} checks on test candles it held only {n} times ({share}): too narrow.",
            num=num,
            n=held,
            share=share,
        )
    return say("In {num} checks on test candles it held {n} times ({share}).", num=num, n=held, share=share)


def error_lines(metadata: Metadata) -> list[str]:
    """Say how large the errors of a model were on its test span, or that this is not known."""
    if not metadata.is_evaluated:
        return ["It was not evaluated: nothing is known of its errors."]
    naive = _errors_text(metadata, "relative_mae", "verdict")
    best = _errors_text(metadata, "relative_mae_to_best", "verdict_against_best")
    if metadata.has_own_baseline:
        best += "; its run stored no best baseline of all series, so this is the best of this series alone"
    return [
        f"Error on its test span as a multiple of the naive forecast's: {naive}.",
        f"As a multiple of the best baseline's: {best}.",
    ]


def _errors_text(metadata: Metadata, multiple_key: str, verdict_key: str) -> str:
    """Write the errors on the test span per task."""
    errors = [
        f"{task} {number(figures[multiple_key])} ({figures[verdict_key]})"
        for task, figures in metadata.quality.items()
    ]
    return ", ".join(errors)


def issue_forecast(
    forecaster: Forecaster,
    source: CandleSource,
    place: str,
    *,
    bars: int | None = None,
    is_any_age: bool = False,
    num_paths: int | None = None,
) -> IssuedForecast:
    """Forecast the bars after the newest closed candle of a source.

    Args:
        forecaster: The model.
        source: Where the candles come from.
        place: Where the model is, as the user named it.
        bars: Candles to read; as many as the model needs when None.
        is_any_age: Whether to forecast the past, too: otherwise a forecast of which every bar has closed is
            refused.
        num_paths: Simulated paths to draw as `Forecaster.paths` does; none when None.

    Raises:
        DataError: If there are no such candles, they cannot be trusted, have a gap, are too old, or are of
            another market than the model's.
    """
    if forecaster.about.is_demo_market and source.is_publishable:
        raise DataError(
            where=str(forecaster.series),
            rule="a model of the demo market forecasts the demo market only",
            got=f"candles from {source.name}",
            fix="Use param:source demo, or a model that was trained on real candles",
        )
    num_bars = forecaster.needed_bars if bars is None else bars
    candles = forecaster.companions().newest(source, forecaster.series, num_bars)
    issued_at_s = present_of(source)
    is_any_age = is_any_age or not source.is_publishable
    if not is_any_age:
        _require_trained_before(forecaster, issued_at_s)
    max_age_bars = None if is_any_age else forecaster.horizon_bars - 1
    outlook = forecaster.outlook(candles, now_s=issued_at_s, max_age_bars=max_age_bars)
    issued = IssuedForecast(
        forecaster=forecaster,
        candles=candles,
        forecast=outlook.forecast,
        place=place,
        issued_at_s=issued_at_s,
        is_dated=source.is_publishable,
        paths=None if num_paths is None else forecaster.paths(candles, num_paths, now_s=issued_at_s),
        price_range=outlook.price_range,
        out_of_range=outlook.out_of_range,
    )
    # A damaged model whose errors cannot be written is refused here, before printing.
    issued.summary_lines()
    issued.range_line()
    return issued


def _require_trained_before(forecaster: Forecaster, issued_at_s: int) -> None:
    """Refuse a model that was trained on candles after the present: a clock is wrong, or the model is."""
    seen_s = forecaster.trained_until_s
    if seen_s > issued_at_s:
        raise DataError(
            where=str(forecaster.series),
            rule="a model was trained before it forecasts the present",
            got=f"{iso(issued_at_s)} as the present, and a model that has seen candles until {iso(seen_s)}",
            fix="Check the clock of this machine and of the source; param:allow_old forecasts the past",
        )


class IssueResults(NamedTuple):
    """Forecasts of several series, and the errors of the others."""

    issued: list[IssuedForecast]
    refused: dict[str, V8Error]  # by series


def issue_forecasts(
    models: ModelPlace,
    names: Sequence[str],
    source: CandleSource,
    *,
    bars: int | None = None,
    is_any_age: bool = False,
    num_paths: int | None = None,
) -> IssueResults:
    """Issue the forecasts of several series as `issue_forecast` does; a failure does not stop the others.

    Args:
        models: The place of the models.
        names: Names of the series.
        source: Where the candles come from.
        bars: As for `issue_forecast`.
        is_any_age: Likewise.
        num_paths: Likewise.

    Returns:
        The forecasts in the order of the names, and the errors of the other series.

    Raises:
        PullError: If the Hub does not hand the models out.
        DataError: If the exchange does not answer with its time.
    """
    models.prefetch(names)
    forecasters: list[Forecaster] = []
    issued: list[IssuedForecast] = []
    refused: dict[str, V8Error] = {}
    for name in with_progress(names, "Opening models"):
        try:
            forecasters.append(models.forecaster_of(name))
        except V8Error as error:
            refused[name] = error
    report_waiting(f"Reading the candles of {len(forecasters)} series from {source.name}.")
    if forecasters:
        _bring_candles(forecasters, source, bars)
    for forecaster in with_progress(forecasters, "Forecasting"):
        try:
            forecast = issue_forecast(
                forecaster, source, models.name, bars=bars, is_any_age=is_any_age, num_paths=num_paths
            )
        except V8Error as error:
            refused[str(forecaster.series)] = error
        else:
            issued.append(forecast)
    return IssueResults(issued, refused)


def _bring_candles(forecasters: Sequence[Forecaster], source: CandleSource, bars: int | None) -> None:
    """Fetch the candles of all models together, if the source can."""
    if not isinstance(source, PrefetchesCandles):
        return
    num_bars = bars
    if num_bars is None:
        num_bars = max(forecaster.needed_bars for forecaster in forecasters)
    series: list[Series] = []
    for forecaster in forecasters:
        series += forecaster.companions().with_neighbours([forecaster.series])
    source.prefetch(list(dict.fromkeys(series)), num_bars)


def format_age(seconds: int) -> str:
    """Write how old a model is in days, or in hours and minutes if it is young."""
    days = seconds // 86_400
    return f"{days:,} days" if days > 2 else duration(seconds)
