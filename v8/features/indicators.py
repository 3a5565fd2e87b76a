"""Indicators: the registry from column names to formulas, warm-up and meaning.

A gap in the candles starts a new piece, and every piece starts with a warm-up whose rows are dropped.
Windowed indicators need their window. Recursive ones (exponential and Wilder averages) never quite
forget: their warm-up lasts until everything at or before the first row of the piece weighs less than
`HISTORY_WEIGHT`, so a forecast made from lookback + warm-up candles equals the one made from all
history to that share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from v8 import columns as c
from v8.errors import DataError, listed
from v8.features import formulas, ranges
from v8.features.formulas import Floats
from v8.registry import nearest
from v8.storage import digest_json

HISTORY_WEIGHT: Final = 1e-6
"""Share of a recursive indicator that rows before the warm-up may still have, unitless."""

RSI_PERIOD_BARS: Final = 14
MACD_FAST_BARS: Final = 12
MACD_SLOW_BARS: Final = 26
MACD_SIGNAL_BARS: Final = 9
ATR_PERIOD_BARS: Final = 14
ROC_PERIOD_BARS: Final = 12
VOLUME_PERIOD_BARS: Final = 20

CLOSE_MOMENTS: Final = "close_moments"
"""Name of the stage that five Bollinger columns share; it is computed once and never stored."""

ROLLED_MOMENTS: Final = "rolled_moments"
"""Name of the stage behind all `rolled_` columns."""

_LONG_BARS: Final = c.RANGE_BARS[-1]
_LONGEST_WARMUP_BARS = 4096
_PRICE_DEFINITIONS = {
    c.OPEN: "open: first traded price of the bar, quote currency",
    c.HIGH: "high: highest traded price of the bar, quote currency",
    c.LOW: "low: lowest traded price of the bar, quote currency",
    c.CLOSE: "close: last traded price of the bar, quote currency",
}


@dataclass(frozen=True)
class Indicator:
    """How one column comes from candles, from other columns or from a shared stage.

    Args:
        function: Takes one array per input, then the parameters by keyword.
        inputs: Names of candle columns, indicators or stages.
        parameters: Name and value of every number in the formula, in bars or unitless.
        warmup_bars: First rows of a contiguous piece that are not valid; inputs' warm-up included.
        version: Raised whenever the function computes something else; part of the digest.
        definition: One sentence for people, unit included.
    """

    function: Callable[..., Floats]
    inputs: tuple[str, ...]
    parameters: tuple[tuple[str, float], ...]
    warmup_bars: int
    version: int
    definition: str


def warmup_bars(columns: Iterable[str]) -> int:
    """Return how many first rows of a contiguous piece are not valid in at least one column.

    Args:
        columns: Names from `v8.columns.KINDS`.

    Returns:
        Bars; 0 when only prices are named.

    >>> warmup_bars(["close", "roc", "volatility"])
    19
    """
    return max((INDICATORS[name].warmup_bars for name in columns if name in INDICATORS), default=0)


def definitions(columns: Iterable[str]) -> dict[str, str]:
    """Return one sentence per column, unit included, for the metadata of a saved model."""
    return {
        name: INDICATORS[name].definition if name in INDICATORS else _PRICE_DEFINITIONS[name]
        for name in columns
    }


@cache
def definition_digest(name: str) -> str:
    """Identify what a column or stage means: its name, parameters, version and those of its inputs.

    Args:
        name: An indicator, a stage or a candle column; the last is its own definition.

    Returns:
        64 hex digits, or the name of a candle column.
    """
    indicator = _GRAPH.get(name)
    if indicator is None:
        return name
    return digest_json(
        {
            "name": name,
            "inputs": [definition_digest(source) for source in indicator.inputs],
            "parameters": dict(indicator.parameters),
            "warmup_bars": indicator.warmup_bars,
            "version": indicator.version,
        }
    )


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Accept a list of column names that are known and named once.

    Args:
        columns: Names in the wanted order.

    Returns:
        The same names.

    Raises:
        DataError: If the list is empty, repeats a name or holds an unknown one.
    """
    unknown = [name for name in columns if name not in c.KINDS]
    if unknown:
        raise DataError(
            where=f"feature column {unknown[0]}",
            rule=f"a column is one of {', '.join(c.KINDS)}",
            got=listed([repr(name) for name in unknown]),
            fix=f"Did you mean {nearest(unknown[0], c.KINDS)}",
        )
    if not columns or len(set(columns)) < len(columns):
        repeated = [name for name in dict.fromkeys(columns) if list(columns).count(name) > 1]
        raise DataError(
            where="feature columns",
            rule="at least one column, and each named once",
            got=f"{listed(repeated)} more than once" if repeated else "an empty list",
            fix="Remove the repetition" if repeated else "Name a column, for example close",
        )
    return tuple(columns)


def compute(columns: Iterable[str], candles: Mapping[str, Floats]) -> dict[str, Floats]:
    """Compute indicators of one contiguous piece of candles; shared stages are computed once.

    Args:
        columns: Names from `v8.columns.KINDS`.
        candles: Open time (seconds), open, high, low, close and volume, each of shape (N,).

    Returns:
        Per column, shape (N,), float64, with NaN in the rows of its own warm-up.
    """
    known = dict(candles)
    return {name: _without_warmup(name, _resolved(name, known)) for name in columns}


def _resolved(name: str, known: dict[str, Floats]) -> Floats:
    if name not in known:
        indicator = _GRAPH[name]
        inputs = [_resolved(source, known) for source in indicator.inputs]
        known[name] = indicator.function(*inputs, **dict(indicator.parameters))
    return known[name]


def _without_warmup(name: str, values: Floats) -> Floats:
    valid = values.copy()
    valid[: warmup_bars([name])] = np.nan
    return valid


def _bars_until_forgotten(*newest_weights: float) -> int:
    """Count the bars after which a chain of exponential averages has forgotten where it began.

    The chain's weights by lag are the convolution of (1 - w)^lag * w; what lies n or more bars back
    weighs one minus the sum of the first n.
    """
    lags = np.arange(_LONGEST_WARMUP_BARS)
    weights = np.ones(1)
    for newest in newest_weights:
        weights = np.convolve(weights, newest * (1.0 - newest) ** lags)[: len(lags)]
    return int(np.argmax(1.0 - np.cumsum(weights) < HISTORY_WEIGHT)) + 1


_SLOW_WEIGHT = 2.0 / (MACD_SLOW_BARS + 1)
_SIGNAL_WEIGHT = 2.0 / (MACD_SIGNAL_BARS + 1)
_BANDS_WARMUP = c.BAND_PERIOD_BARS - 1
_STDS: Final = c.BAND_WIDTH_STDS
_AVERAGE = f"the simple average of the last {c.BAND_PERIOD_BARS} closes"
_DEVIATION = f"sample standard deviation of the last {c.BAND_PERIOD_BARS} closes"

_OF_RECENT = f"in multiples of {c.RECENT_RANGE}, unitless"


def _deviation_stage(num_bars: int) -> str:
    """Name the stage that holds the range deviation over some bars."""
    return f"range_deviation_{num_bars}"


def _realised_stage(num_bars: int) -> str:
    return f"realised_deviation_{num_bars}"


def _range(num_bars: int) -> Indicator:
    return Indicator(
        ranges.share_of_recent,
        (_deviation_stage(num_bars), c.RECENT_RANGE),
        (),
        warmup_bars=_LONG_BARS - 1,
        version=1,
        definition=(
            f"{c.range_column(num_bars)}: root of the mean squared log(high / low) of the last {num_bars} "
            f"bars over 4 log 2, {_OF_RECENT}"
        ),
    )


def _realised(num_bars: int) -> Indicator:
    return Indicator(
        ranges.share_of_recent,
        (_realised_stage(num_bars), c.RECENT_RANGE),
        (),
        warmup_bars=max(num_bars, _LONG_BARS - 1),
        version=1,
        definition=(
            f"{c.realised_column(num_bars)}: root of the mean squared log return of the last {num_bars} "
            f"bars, {_OF_RECENT}"
        ),
    )


def _move(num_bars: int) -> Indicator:
    return Indicator(
        ranges.move,
        (c.CLOSE, c.RECENT_RANGE),
        (("period_bars", num_bars),),
        warmup_bars=max(num_bars, _LONG_BARS - 1),
        version=1,
        definition=(
            f"{c.move_column(num_bars)}: size of the log return over {num_bars} bars over the root of "
            f"{num_bars}, at most {ranges.MAX_MOVE:g}, {_OF_RECENT}"
        ),
    )


def _waves(period: str, period_s: int, num_waves: int) -> dict[str, Indicator]:
    def made(name: str, is_cosine: bool) -> Indicator:
        return Indicator(
            ranges.wave,
            (c.OPEN_TIME,),
            (("period_s", period_s), ("num_waves", num_waves), ("is_cosine", is_cosine)),
            warmup_bars=0,
            version=2,
            definition=(
                f"{name}: {'cosine' if is_cosine else 'sine'} of 2 pi times {num_waves} times the share of "
                f"the {period} that is over when the bar opens (UTC; a week begins on Monday), unitless"
            ),
        )

    sine, cosine = c.wave_columns(period, num_waves)
    return {sine: made(sine, False), cosine: made(cosine, True)}


def _rolled(step: int) -> dict[str, Indicator]:
    middle, deviation = c.rolled_columns(step)
    window = f"the last {c.BAND_PERIOD_BARS} closes {step} bars ahead if the close stays where it is"

    def made(name: str, function: Callable[..., Floats], what: str) -> Indicator:
        return Indicator(
            function,
            (ROLLED_MOMENTS, c.RECENT_RANGE),
            (("step", step),),
            warmup_bars=_LONG_BARS - 1,
            version=1,
            definition=f"{name}: {what} of {window}, over the close, at most {ranges.MAX_ROLLED:g}, "
            f"{_OF_RECENT}",
        )

    return {
        middle: made(middle, ranges.rolled_middle, "distance from the close to the simple average"),
        deviation: made(deviation, ranges.rolled_deviation, "sample standard deviation"),
    }


INDICATORS: Final[dict[str, Indicator]] = {
    c.RSI: Indicator(
        formulas.rsi,
        (c.CLOSE,),
        (("period_bars", RSI_PERIOD_BARS),),
        warmup_bars=_bars_until_forgotten(1.0 / RSI_PERIOD_BARS),
        version=1,
        definition=f"rsi: Wilder's relative strength index over {RSI_PERIOD_BARS} bars, 0 to 100",
    ),
    c.MACD: Indicator(
        formulas.macd,
        (c.CLOSE,),
        (("fast_bars", MACD_FAST_BARS), ("slow_bars", MACD_SLOW_BARS)),
        warmup_bars=_bars_until_forgotten(_SLOW_WEIGHT),
        version=1,
        definition=(
            f"macd: exponential average of the close over {MACD_FAST_BARS} bars minus that over "
            f"{MACD_SLOW_BARS}, quote currency"
        ),
    ),
    c.MACD_SIGNAL: Indicator(
        formulas.macd_signal,
        (c.MACD,),
        (("signal_bars", MACD_SIGNAL_BARS),),
        warmup_bars=_bars_until_forgotten(_SLOW_WEIGHT, _SIGNAL_WEIGHT),
        version=1,
        definition=(f"macd_signal: exponential average of macd over {MACD_SIGNAL_BARS} bars, quote currency"),
    ),
    c.ROC: Indicator(
        formulas.roc,
        (c.CLOSE,),
        (("period_bars", ROC_PERIOD_BARS),),
        warmup_bars=ROC_PERIOD_BARS,
        version=1,
        definition=f"roc: change of the close over {ROC_PERIOD_BARS} bars, percent",
    ),
    c.BB_UPPER: Indicator(
        formulas.bollinger_band,
        (c.CLOSE, CLOSE_MOMENTS),
        (("stds", _STDS),),
        warmup_bars=_BANDS_WARMUP,
        version=1,
        definition=f"bb_upper: {_AVERAGE} plus {_STDS:g} times their sample deviation, quote currency",
    ),
    c.BB_LOWER: Indicator(
        formulas.bollinger_band,
        (c.CLOSE, CLOSE_MOMENTS),
        (("stds", -_STDS),),
        warmup_bars=_BANDS_WARMUP,
        version=1,
        definition=f"bb_lower: {_AVERAGE} minus {_STDS:g} times their sample deviation, quote currency",
    ),
    c.BB_WIDTH: Indicator(
        formulas.relative_deviation,
        (c.CLOSE, CLOSE_MOMENTS),
        (("stds", 2.0 * _STDS),),
        warmup_bars=_BANDS_WARMUP,
        version=1,
        definition=f"bb_width: distance between the bands divided by {_AVERAGE}, unitless",
    ),
    c.BB_POSITION: Indicator(
        formulas.band_position,
        (CLOSE_MOMENTS,),
        (("stds", _STDS),),
        warmup_bars=_BANDS_WARMUP,
        version=1,
        definition="bb_position: close between bb_lower (0) and bb_upper (1), 0.5 where they meet, unitless",
    ),
    c.VOLATILITY: Indicator(
        formulas.relative_deviation,
        (c.CLOSE, CLOSE_MOMENTS),
        (("stds", 1.0),),
        warmup_bars=_BANDS_WARMUP,
        version=1,
        definition=f"volatility: {_DEVIATION} divided by their simple average, unitless",
    ),
    c.ATR: Indicator(
        formulas.atr,
        (c.HIGH, c.LOW, c.CLOSE),
        (("period_bars", ATR_PERIOD_BARS),),
        warmup_bars=ATR_PERIOD_BARS,
        version=1,
        definition=f"atr: simple average of the true range of {ATR_PERIOD_BARS} bars, quote currency",
    ),
    c.VOLUME_NORM: Indicator(
        formulas.volume_norm,
        (c.VOLUME,),
        (("period_bars", VOLUME_PERIOD_BARS),),
        warmup_bars=VOLUME_PERIOD_BARS - 1,
        version=1,
        definition=(
            f"volume_norm: volume divided by its simple average over {VOLUME_PERIOD_BARS} bars, 1 where "
            "nothing was traded, unitless"
        ),
    ),
    c.RECENT_RANGE: Indicator(
        ranges.recent_range,
        tuple(_deviation_stage(num_bars) for num_bars in c.RANGE_BARS[1:]),
        (),
        warmup_bars=_LONG_BARS - 1,
        version=1,
        definition=(
            f"{c.RECENT_RANGE}: product of the range deviations d(n) = root of the mean squared "
            "log(high / low) of the last n bars over 4 log 2, each raised to at least "
            f"{ranges.FLOOR_SHARE:g} d({_LONG_BARS}), to these powers: "
            + ", ".join(
                f"d({bars}) to {weight:g}"
                for bars, weight in zip(c.RANGE_BARS[1:], ranges.RECENT_WEIGHTS, strict=True)
            )
            + "; unitless"
        ),
    ),
    **{c.range_column(num_bars): _range(num_bars) for num_bars in c.RANGE_BARS},
    **{c.realised_column(num_bars): _realised(num_bars) for num_bars in c.REALISED_BARS},
    **{c.move_column(num_bars): _move(num_bars) for num_bars in c.MOVE_BARS},
    **{
        name: indicator
        for num_waves in c.DAY_WAVES
        for name, indicator in _waves("day", ranges.DAY_S, num_waves).items()
    },
    **{
        name: indicator
        for num_waves in c.WEEK_WAVES
        for name, indicator in _waves("week", ranges.WEEK_S, num_waves).items()
    },
    **{
        name: indicator
        for step in range(1, c.MAX_ROLLED_STEPS + 1)
        for name, indicator in _rolled(step).items()
    },
}
"""Every column of `v8.columns.KINDS` that is not a price of the candle itself."""

_GRAPH: Final[dict[str, Indicator]] = {
    **INDICATORS,
    CLOSE_MOMENTS: Indicator(
        formulas.close_moments,
        (c.CLOSE,),
        (("period_bars", c.BAND_PERIOD_BARS),),
        warmup_bars=_BANDS_WARMUP,
        version=1,
        definition=f"close_moments: {_AVERAGE} minus the close, and the {_DEVIATION}, quote currency",
    ),
    **{
        _deviation_stage(num_bars): Indicator(
            ranges.range_deviation,
            (c.HIGH, c.LOW),
            (("period_bars", num_bars),),
            warmup_bars=num_bars - 1,
            version=1,
            definition=f"{_deviation_stage(num_bars)}: see {c.RECENT_RANGE}",
        )
        for num_bars in c.RANGE_BARS
    },
    **{
        _realised_stage(num_bars): Indicator(
            ranges.realised_deviation,
            (c.CLOSE,),
            (("period_bars", num_bars),),
            warmup_bars=num_bars,
            version=1,
            definition=f"{_realised_stage(num_bars)}: see {c.realised_column(num_bars)}",
        )
        for num_bars in c.REALISED_BARS
    },
    ROLLED_MOMENTS: Indicator(
        ranges.rolled_moments,
        (c.CLOSE,),
        (("period_bars", c.BAND_PERIOD_BARS), ("num_steps", c.MAX_ROLLED_STEPS)),
        warmup_bars=_BANDS_WARMUP,
        version=1,
        definition="rolled_moments: middle and deviation of the roll-forward bands, as shares of the close",
    ),
}
