"""Indicators: the one table of every column a profile may name, with its kind, warm-up, meaning and formula.

An indicator is a function of arrays and a line in `FEATURES`; one's own calls `FEATURES.register`. Those of
the package `ta` are found in it when a profile names one: `v8.features.ta_features`. So are those of other
series' candles and columns of the user's: `v8.columns`.

A gap in the candles starts a new piece, and every piece starts with a warm-up whose rows are dropped.
Windowed indicators need their window. Recursive ones (exponential and Wilder averages) never quite
forget: their warm-up lasts until everything at or before the first row of the piece weighs less than
`HISTORY_WEIGHT`, so a forecast made from lookback + warm-up candles equals the one made from all
history to that share.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Final

import numpy as np

from v8 import columns as c
from v8.columns import (
    USER,
    beside,
    is_covariate,
    is_given,
    is_symbol,
    parted,
    plain_symbol,
)
from v8.errors import DataError, listed
from v8.features import formulas
from v8.features.feature import Feature, Formula, Kind, Past, covariate_feature, of_origin
from v8.features.ta_features import is_package_name, one_way, package_feature
from v8.features.ta_outputs import RefusedError, suggestion
from v8.registry import Registry, nearest
from v8.storage import digest_json

HISTORY_WEIGHT: Final = 1e-6
"""Share of a recursive indicator that rows before the warm-up may still have, unitless."""

MOST_OF_PACKAGE: Final = 100
"""Columns of the package `ta`: each is examined before it is used, in up to a few seconds."""

_LONGEST_WARMUP_BARS = 4096


def warmup_bars(columns: Iterable[str]) -> int:
    """Return how many first rows of a contiguous piece are not valid in at least one column, in bars.

    >>> warmup_bars(["close", "roc", "volatility"])
    19
    """
    return max(map(_warmup, columns), default=0)


def reading_volume(columns: Iterable[str]) -> list[str]:
    """List the columns that are computed from the volume.

    >>> reading_volume(["close", "volume_norm", "rsi"])
    ['volume_norm']
    """
    return [name for name in columns if _reads_volume(name)]


def definitions(columns: Iterable[str]) -> dict[str, str]:
    """Return one sentence per column, unit included, for the metadata of a saved model."""
    return {name: f"{name}: {FEATURES[name].sentence}" for name in columns}


@cache
def definition_digest(name: str) -> str:
    """Identify what a column or stage means: its name, parameters, version and those of its inputs.

    Returns:
        64 hex digits, or the name of a column that is given, which is its own definition.
    """
    if is_given(name):
        return name
    formula = formula_of(name)
    return digest_json(
        {
            "name": name,
            "inputs": [definition_digest(source) for source in formula.inputs],
            "parameters": dict(formula.parameters),
            "warmup_bars": _warmup(name),
            "version": formula.version,
        }
    )


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return names, in the wanted order, that are known and named once.

    Raises:
        DataError: If the list is empty, repeats a name or holds an unknown one.
    """
    _require_few_of_package(columns)
    unknown = [name for name in columns if name not in FEATURES]
    if unknown:
        is_ours = not is_package_name(unknown[0]) and not is_covariate(unknown[0])
        raise DataError(
            where=f"feature column {unknown[0]}",
            rule=f"a column is one of {', '.join(FEATURES)}" if is_ours else why_unknown(unknown[0]),
            got=listed([repr(name) for name in unknown]),
            fix=f"Did you mean {_alike(unknown[0])}" if is_ours else "Leave it out or name another one",
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


def _require_few_of_package(columns: Sequence[str]) -> None:
    """Refuse a list that would take minutes to examine, such as one in a stranger's file."""
    if (num := num_of_package(columns)) > MOST_OF_PACKAGE:
        raise DataError(
            where="feature columns",
            rule=f"at most {MOST_OF_PACKAGE} of them are of the package ta",
            got=str(num),
            fix="Leave some out",
        )


def why_unknown(name: str) -> str:
    """Say in one sentence why a name is no feature, and which may have been meant."""
    origin, plain = parted(name)
    if origin:
        return f"{name!r} is no feature of {origin}: {why_unknown(plain)}"
    if not is_package_name(name):
        near = _alike(name)
        return f"{name!r} is no feature" + (f"; did you mean {near}" if near else ", which `features` lists")
    try:
        package_feature(name)
    except RefusedError as error:
        return str(error)
    return f"{name} is a feature"


def _alike(name: str) -> str | None:
    symbol, _, plain = name.partition(".")
    if plain in FEATURES and is_symbol(plain_symbol(symbol)):
        return beside(plain_symbol(symbol), plain)
    return suggestion(name) or nearest(name, FEATURES)


def num_of_package(columns: Iterable[str]) -> int:
    """Count the names that are meant for the package `ta`, of whatever candles."""
    return sum(map(is_of_package, columns))


def is_of_package(name: str) -> bool:
    """Tell whether a name is meant for the package `ta`, of the series' own candles or of others.

    >>> is_of_package("ta.adx"), is_of_package("BTCUSDT.ta.adx"), is_of_package("BTCUSDT.rsi")
    (True, True, False)
    """
    return is_package_name(parted(name)[1])


def needed_beside(columns: Iterable[str]) -> tuple[str, ...]:
    """List the columns that must lie beside candles for some columns, each once.

    >>> needed_beside(["close", "roc", "BTCUSDT.range_20", "csv.funding_rate"])
    ('BTCUSDT.high', 'BTCUSDT.low', 'csv.funding_rate')
    """
    found = (given for name in columns if is_covariate(name) for given in _given_to(name))
    return tuple(name for name in dict.fromkeys(found) if is_covariate(name))


def plain_names(columns: Iterable[str]) -> tuple[str, ...]:
    """Return names in the one way to write each, in the same order; unknown ones stay as they are."""
    return tuple(beside(origin, one_way(plain)) for origin, plain in map(parted, columns))


@cache
def _warmup(name: str) -> int:
    """Return the warm-up of a column or stage in bars, that of its inputs included."""
    if is_given(name):
        return 0
    formula = formula_of(name)
    return max((formula.warmup_bars, *map(_warmup, formula.inputs)))


def _reads_volume(name: str) -> bool:
    return not is_covariate(name) and c.VOLUME in _given_to(name)


@cache
def _given_to(name: str) -> tuple[str, ...]:
    """Return the columns that a column or stage is computed from in the end."""
    if is_given(name):
        return (name,)
    return tuple(dict.fromkeys(given for source in formula_of(name).inputs for given in _given_to(source)))


def formula_of(name: str) -> Formula:
    """Return the formula of a stage, or of a feature that is not given."""
    origin, plain = parted(name)
    found = (FEATURES[plain].formula if plain in FEATURES else None) or _STAGES[plain]
    return of_origin(found, origin) if origin else found


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


class _Features(Registry[Feature]):
    """Features by name: a table of ours; those of the package `ta` and covariates are made when named."""

    def __contains__(self, name: object) -> bool:
        origin, plain = parted(str(name))
        if origin:
            return origin == USER or (plain in self and not is_covariate(plain))
        if super().__contains__(name) or not is_package_name(str(name)):
            return super().__contains__(name)
        try:
            return bool(package_feature(str(name)))
        except RefusedError:
            return False

    def __missing__(self, name: str) -> Feature:
        origin, plain = parted(name)
        if origin:
            return covariate_feature(name, None if origin == USER else self[plain])
        return package_feature(name)


_RSI_BARS = 14
_FAST_BARS = 12
_SLOW_BARS = 26
_SIGNAL_BARS = 9
_ATR_BARS = 14
_ROC_BARS = 12
_VOLUME_BARS = 20
_SLOW_WEIGHT, _SIGNAL_WEIGHT = 2.0 / (_SLOW_BARS + 1), 2.0 / (_SIGNAL_BARS + 1)
_STDS: Final = c.BAND_WIDTH_STDS
_BANDS_WARMUP = c.BAND_PERIOD_BARS - 1

_AVERAGE = f"the simple average of the last {c.BAND_PERIOD_BARS} closes"
_OF_RECENT = f"in multiples of {c.RECENT_RANGE}, unitless"
_OF_SQUARED = "root of the mean squared"

_WILDER = "Wilder, New Concepts in Technical Trading Systems, 1978"
_BOLLINGER = "Bollinger on Bollinger Bands, 2001"
_PARKINSON = "Parkinson 1980, doi:10.1086/296071"
_OWN = "v8"

_CLOSE_MOMENTS, _ROLLED_MOMENTS = "close_moments", "rolled_moments"


_windowed: Final = partial(Formula, past=Past.WINDOW)
_averaged: Final = partial(Formula, past=Past.AVERAGES)


_STAGES: Final[dict[str, Formula]] = {
    _CLOSE_MOMENTS: _windowed(
        formulas.close_moments, (c.CLOSE,), {"period_bars": c.BAND_PERIOD_BARS}, _BANDS_WARMUP
    ),
    _ROLLED_MOMENTS: _windowed(
        formulas.rolled_moments,
        (c.CLOSE,),
        {"period_bars": c.BAND_PERIOD_BARS, "num_steps": c.MAX_ROLLED_STEPS},
        _BANDS_WARMUP,
    ),
    **{
        f"range_deviation_{bars}": _windowed(
            formulas.range_deviation, (c.HIGH, c.LOW), {"period_bars": bars}, bars - 1
        )
        for bars in c.RANGE_BARS
    },
    **{
        f"realised_deviation_{bars}": _windowed(
            formulas.realised_deviation, (c.CLOSE,), {"period_bars": bars}, bars
        )
        for bars in c.REALISED_BARS
    },
}
"""What several features share; computed once and never stored."""


def _deviation(name: str, bars: int, what: str, source: str) -> Feature:
    """Share that the stage `name`_deviation over some bars has in the recent range."""
    return Feature(
        f"{name}_{bars}",
        Kind.POSITIVE,
        f"{_OF_SQUARED} {what}, {_OF_RECENT}",
        _windowed(formulas.share_of_recent, (f"{name}_deviation_{bars}", c.RECENT_RANGE)),
        source,
    )


def _waves(period: str, period_s: int, num_waves: int) -> Iterator[Feature]:
    for name, is_cosine in zip(c.wave_columns(period, num_waves), (False, True), strict=True):
        parameters = {"period_s": period_s, "num_waves": num_waves, "is_cosine": is_cosine}
        yield Feature(
            name,
            Kind.CENTRED,
            f"{'cosine' if is_cosine else 'sine'} of 2 pi times {num_waves} times the share of the {period} "
            "that is over when the bar opens (UTC; a week begins on Monday), unitless",
            _windowed(formulas.wave, (c.OPEN_TIME,), parameters, version=2),
            _OWN,
        )


def _rolled(step: int) -> Iterator[Feature]:
    middle, deviation = c.rolled_columns(step)
    for name, function, what in (
        (middle, formulas.rolled_middle, "distance from the close to the simple average"),
        (deviation, formulas.rolled_deviation, "sample standard deviation"),
    ):
        yield Feature(
            name,
            Kind.CENTRED,
            f"{what} of the last {c.BAND_PERIOD_BARS} closes {step} bars ahead if the close stays where it is"
            f", over the close, at most {formulas.MAX_ROLLED:g}, {_OF_RECENT}",
            _windowed(function, (_ROLLED_MOMENTS, c.RECENT_RANGE), {"step": step}),
            _OWN,
        )


FEATURES: Final[Registry[Feature]] = _Features(
    "feature",
    [
        Feature(c.OPEN, Kind.PRICE, "first traded price of the bar, quote currency"),
        Feature(c.HIGH, Kind.PRICE, "highest traded price of the bar, quote currency"),
        Feature(c.LOW, Kind.PRICE, "lowest traded price of the bar, quote currency"),
        Feature(c.CLOSE, Kind.PRICE, "last traded price of the bar, quote currency"),
        *(
            Feature(
                name,
                Kind.PRICE,
                f"{_AVERAGE} {sign} {_STDS:g} times their sample deviation, quote currency",
                _windowed(formulas.bollinger_band, (c.CLOSE, _CLOSE_MOMENTS), {"stds": stds}),
                _BOLLINGER,
            )
            for name, sign, stds in ((c.BB_UPPER, "plus", _STDS), (c.BB_LOWER, "minus", -_STDS))
        ),
        Feature(
            "macd",
            Kind.PRICE_CHANGE,
            f"exponential average of the close over {_FAST_BARS} bars minus that over {_SLOW_BARS}, "
            "quote currency",
            _averaged(
                formulas.macd,
                (c.CLOSE,),
                {"fast_bars": _FAST_BARS, "slow_bars": _SLOW_BARS},
                _bars_until_forgotten(_SLOW_WEIGHT),
            ),
        ),
        Feature(
            "macd_signal",
            Kind.PRICE_CHANGE,
            f"exponential average of macd over {_SIGNAL_BARS} bars, quote currency",
            _averaged(
                formulas.macd_signal,
                ("macd",),
                {"signal_bars": _SIGNAL_BARS},
                _bars_until_forgotten(_SLOW_WEIGHT, _SIGNAL_WEIGHT),
            ),
        ),
        Feature(
            "atr",
            Kind.PRICE_CHANGE,
            f"simple average of the true range of {_ATR_BARS} bars, quote currency",
            _windowed(formulas.atr, (c.HIGH, c.LOW, c.CLOSE), {"period_bars": _ATR_BARS}, _ATR_BARS),
            _WILDER,
        ),
        Feature(
            "bb_width",
            Kind.POSITIVE,
            f"distance between the bands divided by {_AVERAGE}, unitless",
            _windowed(formulas.relative_deviation, (c.CLOSE, _CLOSE_MOMENTS), {"stds": 2.0 * _STDS}),
            _BOLLINGER,
        ),
        Feature(
            c.VOLATILITY,
            Kind.POSITIVE,
            f"sample standard deviation of the last {c.BAND_PERIOD_BARS} closes divided by their simple "
            "average, unitless",
            _windowed(formulas.relative_deviation, (c.CLOSE, _CLOSE_MOMENTS), {"stds": 1.0}),
        ),
        Feature(
            "volume_norm",
            Kind.POSITIVE,
            f"volume divided by its simple average over {_VOLUME_BARS} bars, 1 where nothing was traded, "
            "unitless",
            _windowed(formulas.volume_norm, (c.VOLUME,), {"period_bars": _VOLUME_BARS}, _VOLUME_BARS - 1),
        ),
        Feature(
            "rsi",
            Kind.CENTRED,
            f"Wilder's relative strength index over {_RSI_BARS} bars, 0 to 100",
            _averaged(
                formulas.rsi, (c.CLOSE,), {"period_bars": _RSI_BARS}, _bars_until_forgotten(1.0 / _RSI_BARS)
            ),
            _WILDER,
        ),
        Feature(
            "roc",
            Kind.CENTRED,
            f"change of the close over {_ROC_BARS} bars, percent",
            _windowed(formulas.roc, (c.CLOSE,), {"period_bars": _ROC_BARS}, _ROC_BARS),
        ),
        Feature(
            "bb_position",
            Kind.CENTRED,
            "close between bb_lower (0) and bb_upper (1), 0.5 where they meet, unitless",
            _windowed(formulas.band_position, (_CLOSE_MOMENTS,), {"stds": _STDS}),
            _BOLLINGER,
        ),
        Feature(
            c.RECENT_RANGE,
            Kind.POSITIVE,
            f"product of the range deviations d(n) = {_OF_SQUARED} log(high / low) of the last n bars over "
            f"4 log 2, each raised to at least {formulas.FLOOR_SHARE:g} d({c.RANGE_BARS[-1]}), to these "
            "powers: "
            + ", ".join(
                f"d({bars}) to {weight:g}"
                for bars, weight in zip(c.RANGE_BARS[1:], formulas.RECENT_WEIGHTS, strict=True)
            )
            + "; unitless",
            _windowed(formulas.recent_range, tuple(f"range_deviation_{bars}" for bars in c.RANGE_BARS[1:])),
            "Corsi 2009, doi:10.1093/jjfinec/nbp001",
        ),
        *(
            _deviation("range", bars, f"log(high / low) of the last {bars} bars over 4 log 2", _PARKINSON)
            for bars in c.RANGE_BARS
        ),
        *(
            _deviation("realised", bars, f"log return of the last {bars} bars", _OWN)
            for bars in c.REALISED_BARS
        ),
        *(
            Feature(
                f"move_{bars}",
                Kind.CENTRED,
                f"size of the log return over {bars} bars over the root of {bars}, at most "
                f"{formulas.MAX_MOVE:g}, {_OF_RECENT}",
                _windowed(formulas.move, (c.CLOSE, c.RECENT_RANGE), {"period_bars": bars}, bars),
                _OWN,
            )
            for bars in c.MOVE_BARS
        ),
        *(feature for waves in c.DAY_WAVES for feature in _waves("day", formulas.DAY_S, waves)),
        *(feature for waves in c.WEEK_WAVES for feature in _waves("week", formulas.WEEK_S, waves)),
        *(feature for step in range(1, c.MAX_ROLLED_STEPS + 1) for feature in _rolled(step)),
    ],
)
"""Every column a profile may name; those of the package `ta` and covariates are in it, but not listed."""
