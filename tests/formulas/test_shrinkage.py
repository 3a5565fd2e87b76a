"""Shrinkage: closed forms against a fine grid, and what follows for networks that learned nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scaled_units import shrink

from v8.formulas.shrinkage import Shrinkage, TaskShrinkage, fit_shrinkage
from v8.profile import Profile, TaskSettings
from v8.windows.scaling import Scaling, TargetForm, TaskScaling

LOSSES = ["mae", "mse", "huber"]


def _scaling(start: np.ndarray) -> Scaling:
    rows = tuple(tuple(float(cell) for cell in row) for row in start)
    task = TaskScaling("ohlc", TargetForm.ROLL_FORWARD, (0.0,) * 4, (1.0,) * 4, rows, rows)
    return Scaling((), (task,), 1.0, 1.0)


@pytest.fixture
def make_candles_profile(make_profile: Callable[..., Profile]) -> Callable[[str], Profile]:
    """Return a maker of profiles with candles only, under a loss."""

    def make(loss: str) -> Profile:
        profile = make_profile(tasks={"ohlc": {"weight": 1.0, "loss": "mae"}})
        return profile.model_copy(update={"tasks": {"ohlc": TaskSettings(weight=1.0, loss=loss)}})

    return make


def _loss(loss: str, residual: np.ndarray) -> float:
    size = np.abs(residual)
    if loss == "mse":
        return float((size**2).mean())
    if loss == "mae":
        return float(size.mean())
    return float(np.where(size <= 1, size**2 / 2, size - 0.5).mean())


@given(
    seed=st.integers(0, 10_000), loss=st.sampled_from(LOSSES), share=st.sampled_from([-0.5, 0.0, 0.4, 1.5])
)
@settings(max_examples=40, deadline=None)
def test_no_factor_from_0_to_1_has_a_smaller_loss(
    make_profile: Callable[..., Profile], seed: int, loss: str, share: float
) -> None:
    rng = np.random.default_rng(seed)
    start = rng.normal(0, 1, (2, 4))
    said = rng.normal(0, 1.5, (30, 2, 4))
    truth = (start + share * said + rng.normal(0, 1, said.shape)).astype(np.float32)
    forecast = (start + said).astype(np.float32)
    profile = make_profile(tasks={"ohlc": {"weight": 1.0, "loss": loss}})
    (task,) = fit_shrinkage(profile, _scaling(start), {"ohlc": truth}, {"ohlc": forecast}).tasks
    for step, factor in enumerate(task.factors):
        assert 0 <= factor <= 1
        losses = [
            _loss(loss, truth[:, step] - start[step] - trial * (forecast[:, step] - start[step]))
            for trial in [factor, *np.linspace(0, 1, 501)]
        ]
        assert losses[0] <= min(losses) + 1e-9


def test_factors_are_those_worked_out_by_hand(make_candles_profile: Callable[[str], Profile]) -> None:
    # One step; start 0, so truth and forecast are what is asked and what is said.
    asked, said = np.array([1.0, 1, 3, 0]), np.array([2.0, 1, 4, 1])
    arrays = [values.reshape(1, 1, 4).astype(np.float32) for values in (asked, said)]
    fitted = {
        loss: fit_shrinkage(
            make_candles_profile(loss), _scaling(np.zeros((1, 4))), {"ohlc": arrays[0]}, {"ohlc": arrays[1]}
        )
        .tasks[0]
        .factors
        for loss in LOSSES
    }
    # Projection: (2 + 1 + 12 + 0) / (4 + 1 + 16 + 1) = 15 / 22.
    assert fitted["mse"] == pytest.approx((15 / 22,))
    # Ratios 0, 1/2, 3/4, 1 with weights 1, 2, 4, 1: half of 8 is reached at 3/4.
    assert fitted["mae"] == pytest.approx((0.75,))
    # No residual is beyond 1 at 15 / 22 (3 - 60 / 22 = 0.27, 1 - 30 / 22 = -0.36), so Huber is squared.
    assert fitted["huber"] == pytest.approx((15 / 22,))


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_wrong_gets_0_what_is_right_1_and_what_says_nothing_0(
    make_candles_profile: Callable[[str], Profile], loss: str
) -> None:
    rng = np.random.default_rng(1)
    start = rng.normal(size=(3, 4))
    moved = np.abs(rng.normal(1, 0.2, (50, 3, 4)))
    truth = start + moved
    # Step 1 says the opposite, step 2 the truth, step 3 the constant.
    forecast = np.stack([start[0] - moved[:, 0], truth[:, 1], start[2] + 0 * moved[:, 2]], axis=1)
    shrinkage = fit_shrinkage(
        make_candles_profile(loss),
        _scaling(start),
        {"ohlc": truth.astype(np.float32)},
        {"ohlc": forecast.astype(np.float64)},
    )
    assert shrinkage.tasks[0].factors == pytest.approx((0.0, 1.0, 0.0), abs=1e-6)


def test_shrinking_moves_towards_the_start_by_step() -> None:
    start = np.array([[1.0] * 4, [2.0] * 4])
    shrinkage = Shrinkage((TaskShrinkage("ohlc", (0.25, 1.0)),))
    scaled = {"ohlc": np.full((1, 2, 4), 5.0, np.float32)}
    # 1 + 0.25 x (5 - 1) = 2; 2 + 1 x (5 - 2) = 5.
    np.testing.assert_array_equal(
        shrink(shrinkage, scaled, _scaling(start))["ohlc"], [[[2.0] * 4, [5.0] * 4]]
    )


def test_shrinkage_survives_its_file() -> None:
    shrinkage = Shrinkage((TaskShrinkage("ohlc", (0.1, 1 / 3)),))
    assert TypeAdapter(Shrinkage).validate_python(json.loads(json.dumps(asdict(shrinkage)))) == shrinkage
    assert replace(shrinkage, tasks=()) != shrinkage


@pytest.mark.parametrize(
    ("share", "factor"), [(-1.0, 0.25), (0.0, 0.25), (0.6, 0.55), (1.0, 0.75), (2.0, 0.75)]
)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_blend_goes_half_of_the_way_from_the_fitted_factor_to_equal_shares(
    make_candles_profile: Callable[[str], Profile], loss: str, share: float, factor: float
) -> None:
    rng = np.random.default_rng(4)
    rival, said = rng.normal(0, 1, (2, 40, 2, 4))
    (task,) = fit_shrinkage(
        make_candles_profile(loss),
        _scaling(np.full((2, 4), 9.0)),  # the constant is not what it is moved towards
        {"ohlc": rival + share * said},
        {"ohlc": rival + said},
        rivals={"ohlc": rival},
    ).tasks
    # The truth lies at `share` of the way from the rival to the network; at most all of it is kept.
    assert task.factors == pytest.approx((factor, factor), abs=1e-6)
    assert task.anchor == "regression"


def test_blending_moves_towards_the_rival_of_each_window() -> None:
    rival = np.array([[[0.0] * 4, [1.0] * 4], [[2.0] * 4, [3.0] * 4]])
    made = shrink(
        Shrinkage((TaskShrinkage("ohlc", (0.25, 0.75), "regression"),)),
        {"ohlc": np.full((2, 2, 4), 5.0, np.float32)},
        _scaling(np.zeros((2, 4))),
        {"ohlc": rival},
    )
    # 0 + 0.25 x 5 = 1.25, 1 + 0.75 x 4 = 4; 2 + 0.25 x 3 = 2.75, 3 + 0.75 x 2 = 4.5.
    np.testing.assert_array_equal(made["ohlc"], [[[1.25] * 4, [4.0] * 4], [[2.75] * 4, [4.5] * 4]])
