"""What the chart of a series shows: earlier candles and forecasts around the forecast of the present.

A forecast needs about a hundred candles; a chart that can be moved shows `NUM_BARS`. They are requested from
the source once a candle, when somebody looks at the series. Earlier forecasts are those of the ledger that
were issued in time; of those that overlap, every horizon the newest one is shown.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.annexes.live.app.places import LedgerReader
from v8.annexes.live.ledger.entries import Entry
from v8.api.issuing import IssuedForecast
from v8.base.errors import DataError
from v8.data.features import compute_columns
from v8.data.market.candles import Candles
from v8.data.market.series import iso
from v8.data.market.sources.source import CandleSource
from v8.model.evaluation.price_range import range_json
from v8.profile.columns import (
    BB_LOWER,
    BB_UPPER,
    CLOSE,
    MEDIAN,
    OHLC,
    TASK_OHLC,
    VOLATILITY,
    interval_names,
    intervals,
    quantile_column,
)

NUM_BARS: Final = 500  # candles of a chart: five days of 15m bars, three weeks of hours
_COMPUTED: Final = (BB_UPPER, BB_LOWER, VOLATILITY)


class ChartReader:
    """Reads the candles and the earlier forecasts around a forecast.

    Args:
        source: Where candles come from; None shows those that the forecast was made from.
        ledger: Has earlier forecasts; None for none.
    """

    def __init__(self, source: CandleSource | None = None, ledger: LedgerReader | None = None) -> None:
        self._source = source
        self._ledger = ledger

    def __call__(self, issued: IssuedForecast) -> dict[str, Any]:
        """Return `/api/chart/{series}`."""
        candles = self._candles(issued)
        first_s = int(candles.open_time_s[0])
        entries = self._ledger.forecasts_since(str(candles.series), first_s) if self._ledger else []
        past = [past_forecast(entry) for entry in newest_apart(entries, issued.closed_s)]
        return chart_json(issued, candles, past)

    def _candles(self, issued: IssuedForecast) -> Candles:
        """Return the newest candles up to those of the forecast; if they are not available, those."""
        known = issued.candles
        if self._source is not None:
            with suppress(DataError):
                last_open_s = int(known.open_time_s[-1])
                earlier = self._source.candles(known.series, NUM_BARS, last_open_s)
                if len(earlier) > len(known) and earlier.open_time_s[-1] == last_open_s:
                    return earlier
        return known


def newest_apart(entries: Iterable[Entry], closed_s: int) -> list[Entry]:
    """Return forecasts in time of which all bars have closed, a horizon apart, the oldest first.

    Args:
        entries: Forecasts of one series, ascending.
        closed_s: When the newest candle closed, seconds since the epoch, UTC.
    """
    chosen: list[Entry] = []
    until_s = closed_s
    for entry in sorted(entries, key=lambda entry: entry.issued_for_s, reverse=True):
        issuer = entry.issuer
        is_in_time = entry.written_s < entry.issued_for_s + issuer.bar_s
        end_s = entry.issued_for_s + issuer.horizon_bars * issuer.bar_s
        if is_in_time and end_s <= until_s and CLOSE in issuer.tasks.get(TASK_OHLC, ()):
            chosen.append(entry)
            until_s = entry.issued_for_s
    return chosen[::-1]


def past_forecast(entry: Entry) -> dict[str, Any]:
    """Return the closes that a forecast of the ledger expected, and the ends of their widest interval."""
    issuer = entry.issuer
    ohlc_KHC = issuer.split(entry.values)[TASK_OHLC]
    close_KH = ohlc_KHC[..., issuer.tasks[TASK_OHLC].index(CLOSE)].astype(np.float64)
    content: dict[str, Any] = {"issued_for": iso(entry.issued_for_s), "close": close_KH[0].tolist()}
    positions = issuer.levels
    ends = intervals(sorted([*positions, MEDIAN])) if positions else ()
    if ends:
        low_level, high_level = ends[0]
        content["low"] = close_KH[positions[low_level]].tolist()
        content["high"] = close_KH[positions[high_level]].tolist()
    return content


def chart_json(issued: IssuedForecast, candles: Candles, past: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the columns of a chart as plain JSON values.

    Args:
        issued: The forecast.
        candles: The known candles, the newest one of the forecast last.
        past: Earlier forecasts, the oldest first.
    """
    columns = {name: candles.column(name) for name in OHLC}
    for name, (values,) in compute_columns(candles, list(_COMPUTED)).items():
        columns[name] = values.astype(np.float64)
    levels = issued.forecaster.quantiles
    names = [name for name in (CLOSE, VOLATILITY) if name in issued.forecast]
    shaded = []
    for interval_name, (low, high) in zip(interval_names(levels), intervals(levels), strict=True):
        ends = {name: [quantile_column(name, low), quantile_column(name, high)] for name in names}
        shaded.append({"name": interval_name, "columns": ends})
    return {
        "series": str(candles.series),
        "bar_s": candles.series.bar_s,
        "closed_at": iso(issued.closed_s),
        "open_times": [iso(open_time_s) for open_time_s in candles.open_time_s.tolist()],
        "columns": {name: _finite(values) for name, values in columns.items()},
        "forecast_open_times": issued.open_times(),
        "forecast": {str(name): _finite(values.to_numpy()) for name, values in issued.forecast.items()},
        "intervals": shaded,
        **range_json(issued.price_range),
        "past": list(past),
    }


def _finite(values: NDArray[Any]) -> list[float | None]:
    """Return nine digits of each number, more than a page writes; None where there is none."""
    return [float(f"{value:.9g}") if np.isfinite(value) else None for value in values.tolist()]
