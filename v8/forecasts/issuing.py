"""Issuing: one forecast of one series, made now, with all that is said about it.

A forecast has two times that must not be mixed up:

- `issued_at` is when it was made, by the exchange's clock where the source keeps one.
- `first_bar` is when the first bar that it forecasts opens, which is when the newest candle closed.

A forecast is about the future, so candles after which every forecast bar has already closed are refused
unless the past is meant. The demo market has a calendar of its own and no present: no candle of it is too
old, and no model of it has an age.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from v8.artifacts.forecaster import PATH, Forecaster
from v8.columns import CLOSE, HIGH, LOW, OHLC
from v8.errors import DataError, V8Error, listed
from v8.hub.opening import ModelPlace
from v8.market.candles import Candles
from v8.market.series import iso
from v8.market.sources.source import CandleSource, PrefetchesCandles, present_of
from v8.net import report_waiting, with_progress
from v8.tasks import TASKS
from v8.wording import duration, number

MOVES: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
"""Distances off the close, as shares of it, of prices whose chances to be touched are told."""


@dataclass(frozen=True)
class Issued:
    """A forecast and what it came from."""

    forecaster: Forecaster  # the model
    candles: Candles  # the candles it was given; their digest identifies them
    forecast: pd.DataFrame  # what `Forecaster.predict` returned: one row a bar ahead, index `open_time`
    place: str  # where the model is, as the user named it
    issued_at_s: int  # when it was issued, seconds since the epoch, UTC
    is_dated: bool  # whether the candles are of this world's calendar; those of the demo market are not
    paths: pd.DataFrame | None = None  # what `Forecaster.paths` returned, where it was asked for
    outside: Mapping[str, float] | None = None  # see `Forecaster.out_of_range_features`

    @property
    def closed_s(self) -> int:
        """When the newest candle closed and the first forecast bar opens, seconds since the epoch, UTC."""
        return int(self.candles.open_time_s[-1]) + self.candles.series.bar_s

    @property
    def model_age_s(self) -> int | None:
        """Seconds from the newest candle that training has seen to the issue; None without a calendar."""
        return self.issued_at_s - self.forecaster.trained_until_s if self.is_dated else None

    def opens(self) -> list[str]:
        """Return when each forecast bar opens, ISO 8601 in UTC."""
        return [moment.strftime("%Y-%m-%dT%H:%M:%SZ") for moment in self.forecast.index]

    def points(self) -> pd.DataFrame:
        """Return the point forecasts alone, without their quantiles."""
        columns = {name for task in TASKS.values() for name in task.columns}
        return self.forecast[[name for name in self.forecast.columns if name in columns]]

    def chances(self) -> dict[str, Any]:
        """Return how likely a bar ahead touches a price, and the paths; nothing without them."""
        if self.paths is None:
            return {}
        close = float(self.candles.column(CLOSE)[-1])
        by_path = self.paths.groupby(level=PATH)
        above = by_path[HIGH].max() / close - 1
        below = by_path[LOW].min() / close - 1
        touched = [
            {"move": move}
            | {"above": close * (1 + move), "chance_above": float((above >= move).mean())}
            | {"below": close * (1 - move), "chance_below": float((below <= -move).mean())}
            for move in MOVES
        ]
        values = self.paths.to_numpy().reshape(-1, len(self.forecast), len(OHLC)).tolist()
        return {"touch": touched, "paths": {"columns": list(OHLC), "values": values}}

    def demo_lines(self) -> list[str]:
        """Say of simulated candles that they are."""
        if self.candles.source != "demo":
            return []
        return ["Demo market: simulated candles; this forecast says nothing about real prices."]

    def lines(self) -> list[str]:
        """Say what stands above the numbers: which model it is and how old, from which candles, how good."""
        model = self.forecaster
        report = self.candles.report
        revision = f" at {model.revision}" if model.revision else ""
        before = "" if self.model_age_s is None else f", {age(self.model_age_s)} before the forecast"
        kinds = (("naive", "verdict"), ("best", "verdict_against_best"))
        told = model.about.quality.items()
        naive, best = (
            ", ".join(f"{task} {number(one[f'multiple_of_{kind}'])} ({one[verdict]})" for task, one in told)
            for kind, verdict in kinds
        )
        return [
            f"Model: {self.place}{revision}, profile {model.about.profile.name}; it has seen candles until "
            f"{iso(model.trained_until_s)}{before}.",
            *model.origin_lines,
            *([f"Outside what training saw: {listed([*self.outside])}."] if self.outside else []),
            f"Candles: {len(self.candles):,} from {self.candles.source}, "
            f"{report.first_open} to {report.last_open} (open times).",
            *self.demo_lines(),
            f"Error on its test span as a multiple of the naive forecast's: {naive}."
            if model.about.is_evaluated
            else "It was not evaluated: nothing is known of its errors.",
            *([f"As a multiple of the best baseline's: {best}."] if model.about.is_evaluated else []),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return all of it, ready for JSON; docs/fields.yaml says what the keys mean."""
        model = self.forecaster
        report = self.candles.report
        evaluated = model.about.quantiles
        levels = list(model.quantiles)
        rows = zip(self.opens(), self.forecast.to_dict("records"), strict=True)
        return {
            "series": str(model.series),
            "issued_at": iso(self.issued_at_s),
            "first_bar": self.opens()[0],
            "model": {
                "place": self.place,
                "revision": model.revision,
                "profile": model.about.profile.name,
                "sha256": model.about.model_sha256,
                "trained_on": model.trained_on,
                "trained_until": iso(model.trained_until_s),
                "age_s": self.model_age_s,
                "quality": model.about.quality,
                **({"quantiles": {"levels": levels, "tasks": evaluated.summary()}} if evaluated else {}),
            },
            "candles": {
                "source": self.candles.source,
                "num_bars": len(self.candles),
                "first_open": report.first_open,
                "last_open": report.last_open,
                "closed_at": iso(self.closed_s),
            },
            "is_familiar": None if self.outside is None else not self.outside,
            "outside": self.outside,
            "forecast": [{"open_time": opens, **values} for opens, values in rows],
            **self.chances(),
        }


def issue(
    forecaster: Forecaster,
    source: CandleSource,
    place: str,
    *,
    bars: int | None = None,
    is_any_age: bool = False,
    num_paths: int | None = None,
) -> Issued:
    """Forecast the bars after the newest closed candle of a source.

    Args:
        bars: Candles to read; as many as the model needs when None.
        is_any_age: Whether the past is meant: otherwise a forecast of which every bar has closed is refused.
        num_paths: Simulated candles to draw as `Forecaster.paths` does; none when None.

    Raises `DataError` if there are no such candles, they cannot be trusted, break off, are too old, or of
    another market than the model's.
    """
    if forecaster.about.is_demo_market and source.is_publishable:
        rule = "a model of the demo market forecasts the demo market only"
        fix = "Use param:source demo, or a model that was trained on real candles"
        raise DataError(where=str(forecaster.series), rule=rule, got=f"candles from {source.name}", fix=fix)
    num_bars = forecaster.needed_bars if bars is None else bars
    candles = forecaster.companions().newest(source, forecaster.series, num_bars)
    issued_at_s = present_of(source)
    is_any_age = is_any_age or not source.is_publishable
    if not is_any_age and (seen_s := forecaster.trained_until_s) > issued_at_s:
        # A clock is wrong, or the model from elsewhere.
        rule = "a model was trained before it forecasts the present"
        got = f"{iso(issued_at_s)} as the present, and a model that has seen candles until {iso(seen_s)}"
        fix = "Check the clock of this machine and of the source; param:allow_old forecasts the past"
        raise DataError(where=str(forecaster.series), rule=rule, got=got, fix=fix)
    max_age_bars = None if is_any_age else forecaster.horizon_bars - 1
    forecast = forecaster.predict(candles, now_s=issued_at_s, max_age_bars=max_age_bars)
    paths = None if num_paths is None else forecaster.paths(candles, num_paths, now_s=issued_at_s)
    told = paths, forecaster.out_of_range_features(candles)
    issued = Issued(forecaster, candles, forecast, place, issued_at_s, source.is_publishable, *told)
    issued.lines()  # so that what cannot be told is refused here and not where it is printed
    return issued


Answers = tuple[list[Issued], dict[str, V8Error]]
"""What was issued of several series, and why the others were not."""


def issue_each(
    models: ModelPlace,
    names: Sequence[str],
    source: CandleSource,
    *,
    bars: int | None = None,
    **given: Any,
) -> Answers:
    """Issue the forecasts of several series as `issue` does; what cannot be issued does not stop the others.

    Returns those that were issued, in the order asked for, and why the others were not, by series.

    Raises `PullError` if the Hub does not hand the models out; `DataError` if the exchange does not tell its
    time.
    """
    models.prefetch(names)
    forecasters: list[Forecaster] = []
    issued: list[Issued] = []
    refused: dict[str, V8Error] = {}
    for name in with_progress(names, "Opening models"):
        try:
            forecasters.append(models.forecaster_of(name))
        except V8Error as error:
            refused[name] = error
    report_waiting(f"Reading the candles of {len(forecasters)} series from {source.name}.")
    if forecasters and isinstance(source, PrefetchesCandles):
        num_bars = max(each.needed_bars for each in forecasters) if bars is None else bars
        brought = [one for each in forecasters for one in each.companions().with_neighbours([each.series])]
        source.prefetch([*dict.fromkeys(brought)], num_bars)
    for forecaster in with_progress(forecasters, "Forecasting"):
        try:
            issued.append(issue(forecaster, source, models.name, bars=bars, **given))
        except V8Error as error:
            refused[str(forecaster.series)] = error
    return issued, refused


def age(seconds: int) -> str:
    """Write how old a model is in days, or in hours and minutes where it is young."""
    days = seconds // 86_400
    return f"{days:,} days" if days > 2 else duration(seconds)
