"""The registry: every column, its warm-up, its identity and its meaning."""

from __future__ import annotations

import gc
import re
import weakref

import numpy as np
import pytest
from indicator_values import compute
from walked_market import walked_market

from v8.base.errors import DataError
from v8.profile import formulas
from v8.profile.columns import OHLC, OPEN_TIME, VOLUME
from v8.profile.indicators import (
    _FORMULAS,
    FEATURES,
    HISTORY_WEIGHT,
    ancestry,
    check_columns,
    computed_rows,
    definitions,
    formula_of,
    warmup_bars,
)

INDICATORS = [name for name, feature in FEATURES.items() if feature.formula]

# Exponential averages: how far they are from their limit, by the weights of their newest value.
RECURSIVE = {"rsi": [1 / 14], "macd": [2 / 27], "macd_signal": [2 / 27, 2 / 10]}


def walk(num_rows: int) -> dict[str, np.ndarray]:
    frame = walked_market(0, num_rows, price=100.0, sizes=(0.01,))
    return {str(name): frame[name].to_numpy(np.float64) for name in frame}


def test_every_known_column_is_a_price_or_a_registered_indicator() -> None:
    assert {*INDICATORS, *OHLC} == set(FEATURES)
    assert not set(INDICATORS) & set(OHLC)


def test_warm_ups_are_the_rows_before_the_first_valid_one() -> None:
    # The average of 20 needs 19 rows before; a change over 12 needs 12; 14 true ranges need 14 and
    # one close before the first of them.
    expected = {"bb_upper": 19, "bb_lower": 19, "bb_width": 19, "bb_position": 19, "volatility": 19}
    expected |= {"volume_norm": 19, "roc": 12, "atr": 14}
    # 240 bars need 239 before the newest; 240 returns need the close before the first of them, too.
    shares = ["range_1", "range_240", "realised_5", "realised_60", "move_1", "move_60"]
    shares += ["recent_range", "rolled_middle_1", "rolled_deviation_18"]
    expected |= dict.fromkeys(shares, 239) | {"realised_240": 240, "day_sin_1": 0, "week_cos_2": 0}
    # RSI: (13/14)^187 = 9.57e-7 is the first power below 1e-6. MACD: (25/27)^180 = 9.63e-7. The signal
    # smooths the MACD again, which makes the tail a little longer.
    expected |= {"rsi": 187, "macd": 180, "macd_signal": 185}
    assert {name: warmup_bars([name]) for name in expected} == expected
    assert (warmup_bars(FEATURES), warmup_bars(OHLC)) == (240, 0)


@pytest.mark.parametrize("name", RECURSIVE)
def test_history_before_the_warm_up_weighs_less_than_a_millionth_and_no_bar_is_wasted(name: str) -> None:
    # A step from 0 to 1 shows the weight of everything before it: one minus the response.
    warmup = warmup_bars([name])
    response = np.concatenate([[0.0], np.ones(warmup)])
    for weight in RECURSIVE[name]:
        response = formulas.ewm_mean(response, weight)
    assert 1 - response[warmup] < HISTORY_WEIGHT <= 1 - response[warmup - 1]


@pytest.mark.parametrize("name", sorted(INDICATORS))
def test_a_truncated_history_changes_nothing_that_outlasts_the_warm_up(name: str) -> None:
    candles = walk(900)
    cut = 400
    whole = compute([name], candles)[name][cut:]
    late = compute([name], {column: values[cut:] for column, values in candles.items()})[name]
    warmup = warmup_bars([name])
    assert np.isnan(late[:warmup]).all()
    if name not in RECURSIVE:
        np.testing.assert_array_equal(late[warmup:], whole[warmup:])
    # Forgotten to a millionth of what was before: here of prices that differ by up to about 30.
    np.testing.assert_allclose(late[warmup:], whole[warmup:], rtol=0, atol=100 * HISTORY_WEIGHT)


@pytest.mark.parametrize("name", sorted(INDICATORS))
def test_every_indicator_is_finite_in_a_dead_market(name: str) -> None:
    flat = walk(300) | {column: np.full(300, 1e-5) for column in OHLC} | {"volume": np.zeros(300)}
    values = compute([name], flat)[name]
    assert np.isfinite(values[warmup_bars([name]) :]).all()


def test_computed_columns_that_nobody_needs_go_at_once() -> None:
    columns = computed_rows(INDICATORS, walk(300))
    gone = [weakref.ref(values) for values in columns.values()]
    gc.disable()  # a cycle would wait for the collector, with 200 MB of a million rows
    try:
        del columns
        assert not any(each() is not None for each in gone)
    finally:
        gc.enable()


def test_columns_together_equal_columns_alone() -> None:
    candles = walk(300)
    together = compute(INDICATORS, candles)
    for name in INDICATORS:
        np.testing.assert_array_equal(compute([name], candles)[name], together[name])


def test_definitions_differ_by_parameter_and_by_name() -> None:
    digests = {ancestry(name).digest for name in INDICATORS}
    assert len(digests) == len(INDICATORS)
    assert ancestry("close").digest == "close"


def test_every_column_has_a_sentence_with_its_unit() -> None:
    sentences = definitions(FEATURES)
    assert list(sentences) == list(FEATURES)
    for name, sentence in sentences.items():
        assert sentence.startswith(f"{name}: ")
        units = ("quote currency", "unitless", "percent", "0 to 100")
        named = any(unit in sentence for unit in units)
        assert named, f"meanings.yaml: {sentence!r} must name its unit, one of {units}"


def test_every_formula_is_a_column_or_read_by_one() -> None:
    read = {name for feature in FEATURES.values() if feature.formula for name in feature.formula.inputs}
    read |= {name for formula in _FORMULAS.values() for name in formula.inputs}
    idle = {*_FORMULAS} - {*FEATURES} - read
    assert not idle, f"give {sorted(idle)} a kind and a sentence in meanings.yaml: no profile can name them"


def test_a_sentence_tells_the_numbers_of_its_formula() -> None:
    told = ("period_bars", "step", "num_waves", "fast_bars", "slow_bars", "signal_bars")
    for name in {*INDICATORS} - {"bb_position"}:  # it speaks of the bands
        stages = [each for each in formula_of(name).inputs if each not in {*FEATURES, OPEN_TIME, VOLUME}]
        read = map(formula_of, [name, *stages])
        numbers = {str(each.parameters[key]) for each in read for key in told if key in each.parameters}
        missing = numbers - set(re.findall(r"[0-9]+", FEATURES[name].sentence))
        assert not missing, (
            f"meanings.yaml: the sentence of {name} must name {sorted(missing)} of its formula"
        )


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["close", "volatilty"], "'volatilty' .* volatility; got 'close', 'volatilty'"),
        (["close", "qqqqqqqq"], ".*'qqqqqqqq'.*got 'close', 'qqqqqqqq'"),
        ([], ".*got none"),
    ],
)
def test_columns_that_there_are_not_are_refused(names: list[str], words: str) -> None:
    with pytest.raises(DataError, match=f"feature columns: {words}"):
        check_columns(names)
