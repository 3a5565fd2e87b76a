"""Features of plug-ins: what looks ahead, changes or has another length is refused before training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from v8.base.arrays import FloatArray
from v8.base.errors import DataError, ProfileError
from v8.profile import indicators
from v8.profile.formulas import Feature, Formula, Kind
from v8.profile.indicators import FEATURES, ancestry, computed_rows, fault_of
from v8.profile.profile import Profile, load_profile


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    """Return what registers a feature `mine`, a function of the close."""

    def enter(function: Callable[..., Any], inputs: tuple[str, ...] = ("close",), **options: Any) -> None:
        formula = Formula(function, inputs, **options)
        FEATURES.register(Feature("mine", "a toy", "this test", Kind.CENTRED, formula))

    ancestry.cache_clear()
    yield enter
    del FEATURES["mine"]
    ancestry.cache_clear()


def with_mine(name: str = "mine") -> Profile:
    profile = load_profile("aligned")
    return profile.but(features=(*profile.features, name))


def moved(close: FloatArray) -> FloatArray:
    return np.diff(np.log(close), prepend=np.log(close[:1]))


def mean_of_twenty(close: FloatArray) -> FloatArray:
    return pd.Series(close).rolling(20).mean().to_numpy() / close


def ten_ahead(close: FloatArray) -> FloatArray:
    return np.concatenate([close[10:], close[-10:]]) / close


def thousand_ahead(close: FloatArray) -> FloatArray:
    return pd.Series(close).shift(-1_000).fillna(1.0).to_numpy()


def beside_the_mean(close: FloatArray) -> FloatArray:
    return close / close.mean()


def in_order(close: FloatArray) -> FloatArray:
    return np.sort(close)


def by_chance(close: FloatArray) -> FloatArray:
    return np.random.default_rng().normal(size=len(close))


def shorter(close: FloatArray) -> FloatArray:
    return close[:-3]


def since_the_first(close: FloatArray) -> FloatArray:
    return np.cumsum(close)


def in_place(close: FloatArray) -> FloatArray:
    close *= 2.0
    return close


def falling(close: FloatArray) -> FloatArray:
    raise SystemExit(0)


def test_those_of_the_past_are_taken(register: Any) -> None:
    register(moved)
    assert "mine" in with_mine().features
    assert "BTCUSDT.mine" in with_mine("BTCUSDT.mine").features


def test_a_warm_up_is_not_looked_at(register: Any) -> None:
    register(mean_of_twenty, warmup_bars=19)
    assert "mine" in with_mine().features


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (ten_ahead, "'mine' looks ahead: .* row 1 of 4,096 "),
        (thousand_ahead, "'mine' looks ahead: .* row 1 of 4,096 "),
        (beside_the_mean, "'mine' looks ahead: .* row 1 of 4,096 "),
        (in_order, "'mine' looks ahead: .* row 1 of 4,096 "),
        (by_chance, "'mine' has another value .* row 1 of 4,096 "),
        (shorter, " 4,096 candles; .* 4,093 values"),
        (lambda close: close[-1], " 4,096 candles; .*one value"),
        (lambda close: close[:, None], r"it returned the shape \(4096, 1\)"),
        (lambda close: None, "it returned one value"),
        (mean_of_twenty, "'mine' has no finite .* row 1 of 4,096, .* 0"),
        (since_the_first, "'mine' depends on where the table begins: .* 2,048 candles"),
        (in_place, "'mine' fails with ValueError: .*read-only"),
        (falling, "'mine' fails with SystemExit: 0"),
    ],
)
def test_others_are_refused_when_the_profile_is_read(function: Any, words: str, register: Any) -> None:
    register(function)
    for name in ("mine", "BTCUSDT.mine"):
        with pytest.raises(ProfileError, match=f"key features: .*{words}"):
            with_mine(name)


def test_one_without_a_formula_or_of_unknown_columns_is_refused(register: Any) -> None:
    register(moved, ("closing",))
    with pytest.raises(ProfileError, match=r"key features: 'mine' .*from closing"):
        with_mine()
    FEATURES["mine"] = Feature("mine", "a toy", "this test", Kind.CENTRED)
    with pytest.raises(ProfileError, match="'mine' needs a formula"):
        with_mine()


def test_a_warm_up_below_zero_is_refused(register: Any) -> None:
    register(moved, warmup_bars=-5)
    with pytest.raises(ProfileError, match=r"key features: 'mine' .*warmup_bars.* -5"):
        with_mine()


def test_each_is_examined_once(register: Any) -> None:
    calls: list[int] = []

    def counted(close: FloatArray) -> FloatArray:
        calls.append(len(close))
        return moved(close)

    register(counted)
    assert fault_of(["mine"]) is None
    num_calls = len(calls)
    assert fault_of(["mine", "close"]) is None and fault_of(["BTCUSDT.mine"]) is None
    assert 0 < num_calls == len(calls)


def test_ours_are_not_examined() -> None:
    indicators._examined.clear()
    assert fault_of(load_profile("frontier").features) is None
    assert not indicators._examined


def test_a_length_that_only_real_candles_bring_out_is_refused_with_both(register: Any) -> None:
    register(lambda close: close if len(close) > 3_000 else close[:-3])
    candles = {"open_time": np.arange(10.0), "close": np.arange(1.0, 11.0)}
    words = "feature mine: .* 10 candles; got 7 values"
    with pytest.raises(DataError, match=words):
        computed_rows(["mine"], candles)
