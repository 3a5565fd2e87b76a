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

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Final

import numpy as np
import yaml

from v8 import columns as c
from v8.arrays import FloatArray
from v8.columns import beside, is_covariate, is_given, parted
from v8.errors import DataError, listed, message_of
from v8.features import formulas, ta_features
from v8.features.examination import BAR_S, made_market, row_that_changes, row_that_looks_ahead
from v8.features.formulas import Feature, Formula, Kind
from v8.features.ta_features import RESOLUTION
from v8.plugins import digest_of
from v8.registry import Registry, nearest
from v8.storage import digest_json, packaged

HISTORY_WEIGHT: Final = 1e-6  # share of a recursive indicator that rows before the warm-up may still have
MOST_OF_PACKAGE: Final = 100  # columns of the package `ta`: each is examined, in up to a few seconds

_LONGEST_WARMUP_BARS = 4096


@dataclass(frozen=True)
class Ancestry:
    """What follows for a column or stage from its formula and those of all that it is computed from."""

    given: tuple[str, ...]  # columns that it is computed from in the end
    warmup_bars: int  # of its own and of what it is computed from
    reach_bars: int | None  # before a row, that it depends on; None for all of its piece
    digest: str  # identity of what it means, 64 hex digits; a column that is given is its own definition


@cache
def ancestry(name: str) -> Ancestry:
    """Follow a column or stage back to the columns that are given."""
    if is_given(name):
        return Ancestry((name,), 0, 0, name)
    formula = formula_of(name)
    sources = [ancestry(source) for source in formula.inputs]
    warmup = max((formula.warmup_bars, *(source.warmup_bars for source in sources)))
    reaches = [source.reach_bars for source in sources if source.reach_bars is not None]
    is_windowed = formula.is_windowed and len(reaches) == len(sources)
    definition = {
        "name": name,
        "inputs": [source.digest for source in sources],
        "parameters": dict(formula.parameters),
        "warmup_bars": warmup,
        "version": formula.version,
        **digest_of(formula.function),
    }
    return Ancestry(
        tuple(dict.fromkeys(given for source in sources for given in source.given)),
        warmup,
        formula.warmup_bars + max(reaches, default=0) if is_windowed else None,
        digest_json(definition),
    )


def warmup_bars(columns: Iterable[str]) -> int:
    """Return how many first rows of a contiguous piece are not valid in at least one column, in bars.

    >>> warmup_bars(["close", "roc", "volatility"])
    19
    """
    return max((ancestry(name).warmup_bars for name in columns), default=0)


def reading_volume(columns: Iterable[str]) -> list[str]:
    """List the columns that are computed from the volume.

    >>> reading_volume(["close", "volume_norm", "rsi"])
    ['volume_norm']
    """
    return [name for name in columns if not is_covariate(name) and c.VOLUME in ancestry(name).given]


def needed_beside(columns: Iterable[str]) -> tuple[str, ...]:
    """List the columns that must lie beside candles for some columns, each once.

    >>> needed_beside(["close", "roc", "BTCUSDT.range_20", "csv.funding_rate"])
    ('BTCUSDT.high', 'BTCUSDT.low', 'csv.funding_rate')
    """
    found = (given for name in columns if is_covariate(name) for given in ancestry(name).given)
    return tuple(name for name in dict.fromkeys(found) if is_covariate(name))


def definitions(columns: Iterable[str]) -> dict[str, str]:
    """Return one sentence per column, unit included, for the metadata of a saved model."""
    return {name: f"{name}: {FEATURES[name].sentence}" for name in columns}


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return names, in the wanted order; a `DataError` if they break a rule of `fault_of`."""
    fault = fault_of(columns)
    if fault:
        got = listed([repr(name) for name in columns]) or "none"
        fix = "Name known features, each once"
        raise DataError(where="feature columns", rule=fault, got=got, fix=fix)
    return tuple(columns)


def fault_of(columns: Sequence[str]) -> str | None:
    """Say in one sentence why columns cannot be named together; None if they can.

    None is named, one twice, an unknown one, one of a plug-in that does not pass its examination, or so many
    of the package `ta` that they would take minutes to examine, as a stranger's file may.
    """
    num = sum(map(is_of_package, columns))
    if num > MOST_OF_PACKAGE:
        return f"must hold at most {MOST_OF_PACKAGE} features of the package ta, not {num}"
    if len(counts := Counter(columns)) < len(columns):
        return f"{counts.most_common(1)[0][0]!r} is listed twice; a repeated column adds nothing"
    unknown = (why_unknown(name) for name in columns if name not in FEATURES)
    refused = (fault for fault in map(_fault_of_own, columns) if fault)
    return next(chain(unknown, refused), None if columns else "must hold a feature, such as close")


def why_unknown(name: str) -> str:
    """Say in one sentence why a name is no feature, and which may have been meant."""
    origin, plain = parted(name)
    if origin:
        return f"{name!r} is no feature of {origin}: {why_unknown(plain)}"
    if ta_features.is_package_name(name):
        return ta_features.refusal(name)
    near = _alike(name)
    return f"{name!r} is no feature" + (f"; did you mean {near}" if near else ", which `features` lists")


def _alike(name: str) -> str | None:
    symbol, _, plain = name.partition(".")
    if plain in FEATURES and c.is_symbol(c.plain_symbol(symbol)):
        return beside(c.plain_symbol(symbol), plain)
    return ta_features.suggestion(name) or nearest(name, FEATURES)


def is_of_package(name: str) -> bool:
    """Tell whether a name is meant for the package `ta`, of the series' own candles or of others.

    >>> is_of_package("ta.adx"), is_of_package("BTCUSDT.ta.adx"), is_of_package("BTCUSDT.rsi")
    (True, True, False)
    """
    return ta_features.is_package_name(parted(name)[1])


def computed_rows(columns: Iterable[str], candles: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Compute indicators of candles that may begin within a piece; what stands in a warm-up means nothing.

    Candles are open time (seconds), open, high, low, close and volume, each of shape (N,), and so are the
    results, float64. Stages are computed once for all columns, and two columns may be one array. Functions
    are handed read-only arrays.

    Raises:
        DataError: If a function does not return one value for each candle.
    """
    known = {name: _read_only(values) for name, values in candles.items()}
    num_rows = len(next(iter(known.values())))

    def resolved(name: str) -> FloatArray:
        if name not in known:
            formula = formula_of(name)
            found = formula.function(*map(resolved, formula.inputs), **formula.parameters)
            plain = parted(name)[1]
            is_stage = plain in _FORMULAS and plain not in FEATURES
            known[name] = _read_only(_require_length(name, found, num_rows, is_stage=is_stage))
        return known[name]

    return {name: resolved(name) for name in columns}


def _require_length(name: str, found: FloatArray, num_rows: int, *, is_stage: bool) -> FloatArray:
    """Return values of which there is one for each row; a stage may have further axes before that one."""
    shape = np.shape(found)
    if shape == (num_rows,) or (is_stage and shape[-1:] == (num_rows,)):
        return found if isinstance(found, np.ndarray) else np.asarray(found)
    got = f"{shape[0]:,} values" if len(shape) == 1 else "one value" if not shape else f"the shape {shape}"
    rule = f"its function returns one value for each of the {num_rows:,} candles"
    fix = "Mend the function"
    raise DataError(where=f"feature {name}", rule=rule, got=got, fix=f"{fix}; NaN stands in a warm-up")


def _read_only(values: FloatArray) -> FloatArray:
    view = values.view()
    view.setflags(write=False)
    return view


EXAMINED_ROWS: Final = 4_096
"""Candles behind the warm-up on which a plug-in's feature is examined; looks as far ahead are found."""

_examined: Final[dict[str, tuple[Feature, str | None]]] = {}
"""Features of plug-ins that this process has examined, each with its fault."""


def _fault_of_own(name: str) -> str | None:
    """Say in one sentence why a feature of a plug-in is refused; None for others, and where all is well.

    Each is examined once a process, of the series' own candles or of others.
    """
    feature = dict.get(FEATURES, parted(name)[1])
    if feature is None or _SHIPPED.get(feature.name) is feature:
        return None
    known = _examined.get(feature.name)
    if known is None or known[0] is not feature:
        known = _examined[feature.name] = feature, _examination(feature)
    return known[1]


def _examination(feature: Feature) -> str | None:
    name = feature.name
    if feature.formula is None:
        return f"{name!r} needs a formula: only prices of the candle itself have none"
    unknown = [each for each in feature.formula.inputs if not is_given(each) and each not in FEATURES]
    unknown = [each for each in unknown if each not in _FORMULAS]
    if unknown:
        return f"{name!r} is computed from {listed(unknown)}, of which there is no column"
    try:
        return _fault_of_values(name)
    except DataError as error:
        return f"{name!r} cannot be used: {error.rule}; it returned {error.got}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - of any kind: it is another's code
        return f"{name!r} fails with {type(error).__name__}: {message_of(error)}"


def _fault_of_values(name: str) -> str | None:
    """Compute a feature of a plug-in on a market made for that, and say what is wrong with its values."""
    warmup = ancestry(name).warmup_bars
    num_rows = warmup + EXAMINED_ROWS
    market = dict(made_market(num_rows))
    market[c.OPEN_TIME] = BAR_S * np.arange(num_rows, dtype=np.float64)
    for given in ancestry(name).given:
        # What lies beside the candles is another walk here, which is none of theirs.
        market.setdefault(given, market.get(parted(given)[1], market[c.CLOSE])[::-1].copy())

    def compute(market: Mapping[str, FloatArray]) -> FloatArray:
        with np.errstate(all="ignore"):  # what comes of that is looked at, not printed
            return np.asarray(computed_rows([name], market)[name], np.float64)

    values = compute(market)
    of_rows = f"of {num_rows:,}"
    strange = np.flatnonzero(~np.isfinite(values[warmup:]))
    if len(strange):
        row = warmup + int(strange[0]) + 1
        return f"{name!r} has no finite value at row {row:,} {of_rows}, behind its warm-up of {warmup:,}"
    changing = row_that_changes(compute, market, first=warmup, resolution=RESOLUTION)
    if changing is not None:
        return f"{name!r} has another value at row {changing + 1:,} {of_rows} each time it is computed"
    nums_known = warmup + 1, warmup + EXAMINED_ROWS // 2 + 7, num_rows - 1
    ahead = row_that_looks_ahead(compute, market, nums_known, first=warmup, resolution=RESOLUTION)
    if ahead is not None:
        return f"{name!r} looks ahead: its value at row {ahead + 1:,} {of_rows} changes with later candles"
    return None


def plain_names(columns: Iterable[str]) -> tuple[str, ...]:
    """Return names in the one way to write each, in the same order; unknown ones stay as they are."""
    return tuple(beside(origin, ta_features.one_way(plain)) for origin, plain in map(parted, columns))


def formula_of(name: str) -> Formula:
    """Return the formula of a stage, or of a feature that is not given."""
    origin, plain = parted(name)
    found = (FEATURES[plain].formula if plain in FEATURES else None) or _FORMULAS[plain]
    return _of_origin(found, origin) if origin else found


def _of_origin(formula: Formula, origin: str) -> Formula:
    """Return a formula that reads the columns of an origin; bars open everywhere at the same time."""
    inputs = (name if name == c.OPEN_TIME else beside(origin, name) for name in formula.inputs)
    return replace(formula, inputs=tuple(inputs))


class _Features(Registry[Feature]):
    """Features by name: a table of ours; those of the package `ta` and covariates are made when named."""

    def __contains__(self, name: object) -> bool:
        origin, plain = parted(str(name))
        if origin:
            return origin == c.USER or (plain in self and not is_covariate(plain))
        of_package = ta_features.is_package_name(plain) and not ta_features.refusal(plain)
        return super().__contains__(name) or of_package

    def __missing__(self, name: str) -> Feature:
        origin, plain = parted(name)
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
    return Formula(function, inputs, parameters, is_windowed=True)


def _over(
    function: Callable[..., FloatArray], bars: int, *inputs: str, late: int = 0, **parameters: float
) -> Formula:
    """Return a formula of the newest `bars`, and of `late` ones before them."""
    return Formula(function, inputs, {"period_bars": bars, **parameters}, bars - 1 + late, is_windowed=True)


def _averaged(
    function: Callable[..., FloatArray], newest_weights: Sequence[float], source: str, **parameters: float
) -> Formula:
    """Return a formula of exponential averages, valid when a chain of these weights has forgotten its begin.

    The chain's weights by lag are the convolution of (1 - w)^lag * w; what lies n or more bars back
    weighs one minus the sum of the first n.
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
        f"range_deviation_{bars}": _over(formulas.range_deviation, bars, c.HIGH, c.LOW)
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
    **{name: replace(_of(formulas.wave, c.OPEN_TIME, **told), version=2) for name, told in _WAVES},
    **{
        name: _of(function, _ROLLED_MOMENTS, c.RECENT_RANGE, step=step)
        for step in range(1, c.MAX_ROLLED_STEPS + 1)
        for name, function in zip(
            c.rolled_columns(step), (formulas.rolled_middle, formulas.rolled_deviation), strict=True
        )
    },
}
"""How columns are computed, and the stages that several of them share, which are never stored."""

_MEANINGS: Final = yaml.safe_load(packaged("v8.features", "meanings.yaml"))

FEATURES: Final[Registry[Feature]] = _Features(
    "feature",
    [
        Feature(name, sentence, told["source"], Kind[told["kind"]], _FORMULAS.get(name))
        for told in _MEANINGS
        for name, sentence in told["features"].items()
    ],
    reserved=_FORMULAS,
)
"""Every column a profile may name; those of the package `ta` and covariates are in it, but not listed."""

_SHIPPED: Final = dict(FEATURES)
"""Features that v8 itself brings: tests show that they see nothing of the future."""
