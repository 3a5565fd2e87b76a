"""Indicators: the table of all columns that a profile may name, with kind, warm-up, meaning and formula.

An indicator is a function of arrays and an entry of `FEATURES`; a plug-in calls `FEATURES.register`. Entries
for the package `ta` (`v8.profile.ta_features`), for other series and for columns of the user
(`v8.profile.columns`) are created when a profile names them.

A gap in the candles starts a new segment, and every segment starts with a warm-up whose rows are dropped.
Windowed indicators need their window. Recursive ones (exponential and Wilder averages) depend on all earlier
rows: their warm-up lasts until everything at or before the first row of the segment weighs less than
`HISTORY_WEIGHT`, so a forecast from lookback + warm-up candles equals the one from the whole history up to
that share.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Self

import numpy as np

from v8.base.arrays import FloatArray, read_only
from v8.base.errors import DataError, listed, message_of
from v8.base.registry import Registry, digest_of, kind_and_line, nearest
from v8.base.storage import digest_json, packaged_yaml
from v8.profile import columns as c
from v8.profile import formulas, ta_features
from v8.profile.columns import is_covariate, is_raw_column, split_origin, with_origin
from v8.profile.formulas import (
    BAR_S,
    Feature,
    Formula,
    Kind,
    first_lookahead_row,
    first_unstable_row,
    synthetic_market,
)
from v8.profile.ta_features import RESOLUTION

HISTORY_WEIGHT: Final = 1e-6  # largest weight of the rows before the warm-up in a recursive indicator
MOST_OF_PACKAGE: Final = 100  # columns of the package `ta`: examining one takes up to a few seconds

_LONGEST_WARMUP_BARS = 4096


@dataclass(frozen=True)
class Ancestry:
    """Properties of a column or stage that follow from its formula and the formulas of all its inputs."""

    raw_columns: tuple[str, ...]  # columns that are read, not computed, from which it is derived
    warmup_bars: int  # the longest warm-up among its own and those of its inputs
    reach_bars: int | None  # bars before a row on which the row depends; None for all of its segment
    digest: str  # identifies its definition, 64 hex digits; for a raw column the name itself


@cache
def ancestry(name: str) -> Ancestry:
    """Follow a column or stage back to the raw columns that it is computed from."""
    if is_raw_column(name):
        return Ancestry(raw_columns=(name,), warmup_bars=0, reach_bars=0, digest=name)
    formula = formula_of(name)
    sources = [ancestry(source) for source in formula.inputs]
    warmup = max([formula.warmup_bars, *(source.warmup_bars for source in sources)])
    reaches = [source.reach_bars for source in sources if source.reach_bars is not None]
    reach_bars = None
    if formula.is_windowed and len(reaches) == len(sources):
        reach_bars = formula.warmup_bars + max(reaches, default=0)
    raw_columns = [column for source in sources for column in source.raw_columns]
    definition = {
        "name": name,
        "inputs": [source.digest for source in sources],
        "parameters": dict(formula.parameters),
        "warmup_bars": warmup,
        "version": formula.version,
        **digest_of(formula.function),
    }
    return Ancestry(
        raw_columns=tuple(dict.fromkeys(raw_columns)),
        warmup_bars=warmup,
        reach_bars=reach_bars,
        digest=digest_json(definition),
    )


def warmup_bars(columns: Iterable[str]) -> int:
    """Return the warm-up of some columns together: first rows of a segment without a valid value, in bars.

    >>> warmup_bars(["close", "roc", "volatility"])
    19
    """
    return max((ancestry(name).warmup_bars for name in columns), default=0)


def reading_volume(columns: Iterable[str]) -> list[str]:
    """List the columns that are computed from the volume.

    >>> reading_volume(["close", "volume_norm", "rsi"])
    ['volume_norm']
    """
    return [name for name in columns if not is_covariate(name) and c.VOLUME in ancestry(name).raw_columns]


def covariate_inputs(columns: Iterable[str]) -> tuple[str, ...]:
    """List the covariates from which some columns are computed, each once.

    >>> covariate_inputs(["close", "roc", "BTCUSDT.range_20", "csv.funding_rate"])
    ('BTCUSDT.high', 'BTCUSDT.low', 'csv.funding_rate')
    """
    inputs: list[str] = []
    for name in columns:
        if is_covariate(name):
            inputs += ancestry(name).raw_columns
    return tuple(name for name in dict.fromkeys(inputs) if is_covariate(name))


def definitions(columns: Iterable[str]) -> dict[str, str]:
    """Return one sentence per column, with its unit, for the metadata of a saved model."""
    return {name: f"{name}: {FEATURES[name].sentence}" for name in columns}


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns in their order; a `DataError` if `fault_of` finds a fault."""
    fault = fault_of(columns)
    if fault:
        raise DataError(
            where="feature columns",
            rule=fault,
            got=listed([repr(name) for name in columns]) or "none",
            fix="Name known features, each once",
        )
    return tuple(columns)


def fault_of(columns: Sequence[str]) -> str | None:
    """Return in one sentence why a list of columns is invalid; None if it is valid.

    It is invalid if it is empty, repeats a column, names an unknown one or one of a plug-in that fails its
    examination, or names so many of the package `ta` that examining them would take minutes (profiles may be
    untrusted).
    """
    num_of_package = sum(is_of_package(name) for name in columns)
    if num_of_package > MOST_OF_PACKAGE:
        return f"must hold at most {MOST_OF_PACKAGE} features of the package ta, not {num_of_package}"
    counts = Counter(columns)
    if len(counts) < len(columns):
        return f"{counts.most_common(1)[0][0]!r} is listed twice; a repeated column adds nothing"
    for name in columns:
        if name not in FEATURES:
            return why_unknown(name)
    for name in columns:
        fault = _plugin_fault(name)
        if fault:
            return fault
    return None if columns else "must hold a feature, such as close"


def why_unknown(name: str) -> str:
    """Return in one sentence why a name is not a feature, and which one may have been meant."""
    origin, plain = split_origin(name)
    if origin:
        return f"{name!r} is no feature of {origin}: {why_unknown(plain)}"
    if ta_features.is_package_name(name):
        return ta_features.refusal(name)
    near = _similar_name(name)
    lists = ", which `features` lists, and no plug-in that is named by param:plugin has it"
    return f"{name!r} is no feature" + (f"; did you mean {near}" if near else lists)


def _similar_name(name: str) -> str | None:
    symbol, _, plain = name.partition(".")
    if plain in FEATURES and c.is_symbol(c.plain_symbol(symbol)):
        return with_origin(c.plain_symbol(symbol), plain)
    return ta_features.suggestion(name) or nearest(name, FEATURES)


def is_of_package(name: str) -> bool:
    """Return whether a name has the form of a feature of the package `ta`, of any series.

    >>> is_of_package("ta.adx"), is_of_package("BTCUSDT.ta.adx"), is_of_package("BTCUSDT.rsi")
    (True, True, False)
    """
    return ta_features.is_package_name(split_origin(name)[1])


def computed_rows(columns: Iterable[str], candles: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Compute columns of contiguous candles.

    Stages are computed once for all columns, two columns may be the same array, and functions get read-only
    arrays.

    Args:
        columns: Names of the columns.
        candles: Open time (seconds since the epoch), open, high, low, close, volume and covariates, each of
            shape (N,), float64. They may start within a segment.

    Returns:
        Values by column, shape (N,), float64; arbitrary in the warm-up.

    Raises:
        DataError: If a function does not return one value for each candle.
    """
    results = {name: read_only(values) for name, values in candles.items()}
    num_rows = len(next(iter(results.values())))
    return {name: _computed(name, results, num_rows) for name in columns}


def _computed(name: str, results: dict[str, FloatArray], num_rows: int) -> FloatArray:
    """Return a column from the results, or compute it and what it is computed from, and add them there."""
    # No function within `computed_rows`: one that calls itself is a reference cycle, which would keep the
    # results of a million rows, 200 MB, until the garbage collector runs.
    if name not in results:
        formula = formula_of(name)
        inputs = [_computed(source, results, num_rows) for source in formula.inputs]
        values = formula.function(*inputs, **formula.parameters)
        plain = split_origin(name)[1]
        is_stage = plain in _FORMULAS and plain not in FEATURES
        results[name] = read_only(_require_length(name, values, num_rows, is_stage=is_stage))
    return results[name]


def _require_length(name: str, values: FloatArray, num_rows: int, *, is_stage: bool) -> FloatArray:
    """Return values as an array; a DataError unless there is one for each row.

    The values of a stage may have further axes before that of the rows.
    """
    shape = np.shape(values)
    if shape == (num_rows,) or (is_stage and shape[-1:] == (num_rows,)):
        return values if isinstance(values, np.ndarray) else np.asarray(values)
    if not shape:
        got = "one value"
    elif len(shape) == 1:
        got = f"{shape[0]:,} values"
    else:
        got = f"the shape {shape}"
    raise DataError(
        where=f"feature {name}",
        rule=f"its function returns one value for each of the {num_rows:,} candles",
        got=got,
        fix="Correct the function; in the warm-up it may return NaN",
    )


EXAMINED_ROWS: Final = 4_096
"""Candles after the warm-up on which a plug-in's feature is examined; it is the longest look-ahead
detected."""

FORGETTING_BARS: Final = 256  # after a warm-up that is some candles too short, so that it is no fault
MOST_FORGOTTEN: Final = 0.01
"""Largest difference of a plug-in's feature, in its standard deviations, between tables that begin at
different candles: a forecast reads fewer candles than training does."""

_examined: Final[dict[str, tuple[Feature, str | None]]] = {}
"""Features of plug-ins that this process has examined, with their faults."""


def _plugin_fault(name: str) -> str | None:
    """Return in one sentence why a feature of a plug-in is refused; None if it is valid or of v8.

    Each is examined once in a process, whatever series it is computed for.
    """
    feature = dict.get(FEATURES, split_origin(name)[1])
    if feature is None or _SHIPPED.get(feature.name) is feature:
        return None
    examined = _examined.get(feature.name)
    if examined is not None and examined[0] is feature:
        return examined[1]
    fault = _examine(feature)
    _examined[feature.name] = (feature, fault)
    return fault


def _examine(feature: Feature) -> str | None:
    """Examine a feature of a plug-in and return its fault in one sentence; None if it has none."""
    name = feature.name
    if feature.formula is None:
        return f"{name!r} needs a formula: only prices of the candle itself have none"
    unknown = [
        source
        for source in feature.formula.inputs
        if not is_raw_column(source) and source not in FEATURES and source not in _FORMULAS
    ]
    if unknown:
        return f"{name!r} is computed from {listed(unknown)}, of which there is no column"
    if not isinstance(feature.formula.warmup_bars, int) or feature.formula.warmup_bars < 0:
        return f"{name!r} needs a whole number from 0 as warmup_bars, and has {feature.formula.warmup_bars!r}"
    try:
        return _fault_of_values(name)
    except DataError as error:
        return f"{name!r} cannot be used: {error.rule}; it returned {error.got}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - code of a plug-in may raise anything
        return f"{name!r} fails with {kind_and_line(error)}: {message_of(error)}"


def _fault_of_values(name: str) -> str | None:
    """Compute a feature of a plug-in on a synthetic market and return a fault of its values, if any."""
    warmup = ancestry(name).warmup_bars
    num_rows = warmup + EXAMINED_ROWS
    market = dict(synthetic_market(num_rows))
    market[c.OPEN_TIME] = BAR_S * np.arange(num_rows, dtype=np.float64)
    for column in ancestry(name).raw_columns:
        # Covariates get other values than the candles: a reversed column of the same market.
        reversed_values = market.get(split_origin(column)[1], market[c.CLOSE])[::-1].copy()
        market.setdefault(column, reversed_values)

    def compute(market: Mapping[str, FloatArray]) -> FloatArray:
        with np.errstate(all="ignore"):  # invalid results are detected below
            return np.asarray(computed_rows([name], market)[name], np.float64)

    values = compute(market)
    not_finite = np.flatnonzero(~np.isfinite(values[warmup:]))
    if len(not_finite):
        row = warmup + int(not_finite[0])
        rows = f"row {row + 1:,} of {num_rows:,}"
        return f"{name!r} has no finite value at {rows}, after its warm-up of {warmup:,}"
    unstable = first_unstable_row(compute, market, first=warmup, resolution=RESOLUTION)
    if unstable is not None:
        rows = f"row {unstable + 1:,} of {num_rows:,}"
        return f"{name!r} has another value at {rows} each time it is computed"
    nums_known = (warmup + 1, warmup + EXAMINED_ROWS // 2 + 7, num_rows - 1)
    lookahead = first_lookahead_row(compute, market, nums_known, first=warmup, resolution=RESOLUTION)
    if lookahead is not None:
        rows = f"row {lookahead + 1:,} of {num_rows:,}"
        return f"{name!r} looks ahead: its value at {rows} changes with later candles"
    num_left_out = EXAMINED_ROWS // 2
    first = warmup + FORGETTING_BARS
    later = compute({column: rows[num_left_out:] for column, rows in market.items()})
    differences = np.abs(later[first:] - values[num_left_out + first :])
    if differences.max() > MOST_FORGOTTEN * values[warmup:].std():
        return (
            f"{name!r} depends on where the table begins: without the first {num_left_out:,} candles it "
            f"differs by up to {differences.max():.3g} even {FORGETTING_BARS} candles after its warm-up of "
            f"{warmup:,}; raise its warmup_bars, or let it not sum from the first candle on"
        )
    return None


def plain_names(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the canonical forms of names, in the same order; unknown names stay as they are."""
    names = []
    for column in columns:
        origin, plain = split_origin(column)
        names.append(with_origin(origin, ta_features.canonical_name(plain)))
    return tuple(names)


def formula_of(name: str) -> Formula:
    """Return the formula of a stage or of a computed feature; a KeyError for another name."""
    origin, plain = split_origin(name)
    formula = FEATURES[plain].formula if plain in FEATURES else None
    if formula is None:
        formula = _FORMULAS[plain]
    return _of_origin(formula, origin) if origin else formula


def _of_origin(formula: Formula, origin: str) -> Formula:
    """Return the formula with the columns of an origin as inputs; all series share the open times."""
    inputs = (name if name == c.OPEN_TIME else with_origin(origin, name) for name in formula.inputs)
    return replace(formula, inputs=tuple(inputs))


class _Features(Registry[Feature]):
    """Features by name; those of the package `ta` and of covariates are created on first use."""

    def __contains__(self, name: object) -> bool:
        origin, plain = split_origin(str(name))
        if origin:
            return origin == c.USER or (plain in self and not is_covariate(plain))
        of_package = ta_features.is_package_name(plain) and not ta_features.refusal(plain)
        return super().__contains__(name) or of_package

    def __missing__(self, name: str) -> Feature:
        origin, plain = split_origin(name)
        if not origin:
            return ta_features.package_feature(name)
        if origin == c.USER:
            sentence = f"{plain}, a column of the user's, as its newest row said that was known at the close"
            return Feature(name, sentence, "the user", Kind.OTHER)
        own = self[plain]
        sentence = f"{plain} of the candles of {origin}: {own.sentence}"
        if len(f"{name}: {sentence}") > c.MOST_WORDS:
            sentence = f"what {plain} is, of the candles of {origin}"
        formula = None if own.formula is None else _of_origin(own.formula, origin)
        return replace(own, name=name, sentence=sentence, formula=formula)


def _of(function: Callable[..., FloatArray], *inputs: str, **parameters: float) -> Formula:
    """Return a formula without a warm-up of its own."""
    return Formula(function, inputs, parameters, is_windowed=True)


def _over(
    function: Callable[..., FloatArray], bars: int, *inputs: str, late: int = 0, **parameters: float
) -> Formula:
    """Return a formula of the newest `bars` bars, and of `late` bars before them."""
    return Formula(function, inputs, {"period_bars": bars, **parameters}, bars - 1 + late, is_windowed=True)


def _averaged(
    function: Callable[..., FloatArray], newest_weights: Sequence[float], source: str, **parameters: float
) -> Formula:
    """Return a formula of chained exponential averages, with a warm-up in which the first rows lose weight.

    The weights of the chain by lag are the convolution of (1 - w)^lag * w over all averages; the rows n or
    more bars back together weigh one minus the sum of the first n weights.

    Args:
        function: The formula.
        newest_weights: Weight w of the newest value in each average of the chain.
        source: Input column.
        **parameters: Parameters of the formula.
    """
    lags = np.arange(_LONGEST_WARMUP_BARS)
    weights = np.ones(1)
    for newest in newest_weights:
        weights = np.convolve(weights, newest * (1.0 - newest) ** lags)[: len(lags)]
    forgotten_bars = int(np.argmax(1.0 - np.cumsum(weights) < HISTORY_WEIGHT)) + 1
    return Formula(function, (source,), parameters, forgotten_bars)


_RSI_BARS = 14
_ATR_BARS = 14
_ROC_BARS = 12
_VOLUME_BARS = 20
_FAST_BARS = 12
_SLOW_BARS = 26
_SIGNAL_BARS = 9
_SLOW_WEIGHT = 2.0 / (_SLOW_BARS + 1)
_SIGNAL_WEIGHT = 2.0 / (_SIGNAL_BARS + 1)
_BAND_BARS = c.BAND_PERIOD_BARS
_STDS = c.BAND_WIDTH_STDS
_CLOSE_MOMENTS = "close_moments"
_ROLLED_MOMENTS = "rolled_moments"
_WAVES: Final = [
    (name, {"period_s": formulas.PERIODS_S[period], "num_waves": num_waves, "is_cosine": is_cosine})
    for period, waves in c.WAVES.items()
    for num_waves in waves
    for name, is_cosine in zip(c.wave_columns(period, num_waves), (False, True), strict=True)
]

_FORMULAS: Final[dict[str, Formula]] = {
    _CLOSE_MOMENTS: _over(formulas.close_moments, _BAND_BARS, c.CLOSE),
    _ROLLED_MOMENTS: _over(formulas.rolled_moments, _BAND_BARS, c.CLOSE, num_steps=c.MAX_ROLLED_STEPS),
    c.BB_UPPER: _of(formulas.bollinger_band, c.CLOSE, _CLOSE_MOMENTS, stds=_STDS),
    c.BB_LOWER: _of(formulas.bollinger_band, c.CLOSE, _CLOSE_MOMENTS, stds=-_STDS),
    "macd": _averaged(formulas.macd, [_SLOW_WEIGHT], c.CLOSE, fast_bars=_FAST_BARS, slow_bars=_SLOW_BARS),
    "macd_signal": _averaged(
        formulas.macd_signal, [_SLOW_WEIGHT, _SIGNAL_WEIGHT], "macd", signal_bars=_SIGNAL_BARS
    ),
    "atr": _over(formulas.atr, _ATR_BARS, c.HIGH, c.LOW, c.CLOSE, late=1),
    "bb_width": _of(formulas.relative_deviation, c.CLOSE, _CLOSE_MOMENTS, stds=2.0 * _STDS),
    c.VOLATILITY: _of(formulas.relative_deviation, c.CLOSE, _CLOSE_MOMENTS, stds=1.0),
    "volume_norm": _over(formulas.volume_norm, _VOLUME_BARS, c.VOLUME),
    "rsi": _averaged(formulas.rsi, [1.0 / _RSI_BARS], c.CLOSE, period_bars=_RSI_BARS),
    "roc": _over(formulas.roc, _ROC_BARS, c.CLOSE, late=1),
    "bb_position": _of(formulas.band_position, _CLOSE_MOMENTS, stds=_STDS),
    c.RECENT_RANGE: _of(formulas.recent_range, *(f"range_deviation_{bars}" for bars in c.RANGE_BARS[1:])),
    **{
        f"range_deviation_{bars}": replace(_over(formulas.range_deviation, bars, c.HIGH, c.LOW), version=2)
        for bars in c.RANGE_BARS
    },
    **{
        f"realised_deviation_{bars}": _over(formulas.realised_deviation, bars, c.CLOSE, late=1)
        for bars in c.REALISED_BARS
    },
    **{
        f"{name}_{bars}": _of(formulas.share_of_recent, f"{name}_deviation_{bars}", c.RECENT_RANGE)
        for name, periods in (("range", c.RANGE_BARS), ("realised", c.REALISED_BARS))
        for bars in periods
    },
    **{f"move_{bars}": _over(formulas.move, bars, c.CLOSE, c.RECENT_RANGE, late=1) for bars in c.MOVE_BARS},
    **{
        name: replace(_of(formulas.wave, c.OPEN_TIME, **parameters), version=2) for name, parameters in _WAVES
    },
    **{
        name: _of(function, _ROLLED_MOMENTS, c.RECENT_RANGE, step=step)
        for step in range(1, c.MAX_ROLLED_STEPS + 1)
        for name, function in zip(
            c.rolled_columns(step), (formulas.rolled_middle, formulas.rolled_deviation), strict=True
        )
    },
}
"""Formulas of columns, and of stages, which several columns share and which are never stored."""

_MEANINGS: Final = packaged_yaml("v8.profile", "meanings.yaml")

FEATURES: Final[Registry[Feature]] = _Features(
    "feature",
    [
        Feature(name, sentence, group["source"], Kind[group["kind"]], _FORMULAS.get(name))
        for group in _MEANINGS
        for name, sentence in group["features"].items()
    ],
    reserved=_FORMULAS,
)
"""All columns that a profile may name; `in` also accepts those of the package `ta` and of covariates."""

_SHIPPED: Final = dict(FEATURES)
"""Features of v8 itself: the tests prove that they do not look ahead."""


@dataclass(frozen=True)
class FeatureSet:
    """Checked feature columns, in the requested order."""

    ancestry: Mapping[str, Ancestry]  # of each column, by its name
    warmup_bars: int  # first rows of a segment in which a column has no value yet, in bars
    reading_volume: tuple[str, ...]  # the columns that are computed from the volume
    covariate_inputs: tuple[str, ...]  # covariates from which columns are computed, each once
    digest: str  # identifies the columns and their definitions; 64 hex digits

    @classmethod
    def of(cls, columns: Sequence[str]) -> Self:
        """Check columns, and resolve what they are computed from.

        Raises:
            DataError: If a column is unknown, repeated, or of a plug-in and faulty; or if there is none.
        """
        by_name = {name: ancestry(name) for name in check_columns(columns)}
        return cls(
            ancestry=by_name,
            warmup_bars=max(column.warmup_bars for column in by_name.values()),
            reading_volume=tuple(reading_volume(by_name)),
            covariate_inputs=covariate_inputs(by_name),
            digest=digest_json([[name, column.digest] for name, column in by_name.items()]),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, each once."""
        return tuple(self.ancestry)
