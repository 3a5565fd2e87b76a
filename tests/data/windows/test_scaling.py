"""Scaling: fitted on train rows, invertible, saved, an honest start."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from float32_steps import assert_same_forecasts
from pydantic import TypeAdapter
from scaled_units import restore_targets
from tiny_profiles import demo_data, demo_table, table_with, tiny_profile

from v8.base.errors import SeriesError
from v8.data.scaling import Scaling, Transform
from v8.data.span import Span
from v8.data.windows import prepare_series, table_columns
from v8.profile.columns import CLOSE
from v8.profile.tasks import TASKS

WAYS = ["anchored", "ranged", "standard", "minmax"]
FEATURES = ("open", "high", "low", "close", "rsi", "macd", "bb_upper", "atr", "volume_norm", "recent_range")


@pytest.mark.parametrize("way", WAYS)
def test_g1_constants_ignore_everything_after_the_train_span(way: str) -> None:
    profile = tiny_profile(scaling=way, features=FEATURES)
    table = demo_table(profile)
    data = prepare_series(table, profile)
    end = data.split["train"][1]
    changed = {}
    for name in table.columns:
        changed[name] = table.column(name).copy()
        changed[name][end:] *= 3
    assert prepare_series(table_with(table, **changed), profile).scaling == data.scaling
    # The converse, so that the test cannot pass by ignoring everything: the last train row matters.
    changed[CLOSE][end - 1] *= 3
    assert prepare_series(table_with(table, **changed), profile).scaling != data.scaling


def test_series_of_one_profile_share_their_structure_and_ways_differ_in_it() -> None:
    structures = []
    for way in WAYS:
        profile = tiny_profile(scaling=way, features=FEATURES)
        one, other = (demo_data(profile, series=name).scaling for name in ("BTCUSDT-15m", "PEPEUSDT-1h"))
        assert one != other
        assert one.structure == other.structure
        structures.append(one.structure)
    # Both ways of the lineage are plain levels; they differ in how the constants are fitted.
    assert structures[2] == structures[3]
    assert len(set(structures)) == 3


@pytest.mark.parametrize("way", WAYS)
def test_g1_a_target_survives_the_round_trip(way: str) -> None:
    data = demo_data(tiny_profile(scaling=way, features=FEATURES))
    span = data.spans["test"]
    scaled = {task: data.scaling.scale_targets(span, task) for task in span.actual}
    restored = restore_targets(data.scaling, span, scaled)
    assert set(scaled) == set(restored) == set(data.profile.tasks)
    for task in span.actual:
        assert scaled[task].tobytes() == data.targets_NHC[task][span.anchors].tobytes()
    assert_same_forecasts(restored, span.actual, span.last_close)


@pytest.mark.parametrize("way", WAYS)
def test_g1_constants_survive_being_saved(way: str) -> None:
    scaling = demo_data(tiny_profile(scaling=way, features=FEATURES)).scaling
    assert TypeAdapter(Scaling).validate_python(json.loads(json.dumps(asdict(scaling)))) == scaling


def test_g4_targets_hold_the_columns_their_names_say() -> None:
    data = demo_data(tiny_profile())
    anchor = data.anchors["train"][5:6]
    for task, actual in Span(data.table, data.profile, anchor).actual.items():
        for number, name in enumerate(TASKS[task].columns):
            expected = data.table.column(name)[anchor[0] + 1 : anchor[0] + 4]
            assert actual[0, :, number].tolist() == expected.astype(np.float64).tolist()
    assert TASKS["bands"].columns == ("bb_upper", "bb_lower")
    assert TASKS["volatility"].columns == ("volatility",)


@pytest.mark.parametrize(("loss", "typical"), [("mae", np.median), ("huber", np.median), ("mse", np.mean)])
def test_the_start_is_the_best_constant_of_the_loss(loss: str, typical: Callable[..., np.ndarray]) -> None:
    tasks = {task: {"weight": 1.0, "loss": loss} for task in TASKS}
    data = demo_data(tiny_profile(tasks=tasks))
    for task in TASKS:
        residuals = data.targets_NHC[task][data.anchors["train"]]
        np.testing.assert_allclose(
            np.array(data.scaling.task(task).start), typical(residuals, axis=0), atol=2e-6
        )


def test_anchored_targets_have_unit_size_and_one_scale_a_task() -> None:
    data = demo_data(tiny_profile())
    for task in data.scaling.tasks:
        assert len(set(task.scale)) == 1
        size = data.targets_NHC[task.task][data.anchors["train"]].var(axis=0).mean()
        assert size == pytest.approx(1.0, abs=1e-4)


def test_anchored_windows_do_not_know_the_price_level() -> None:
    """A coin quoted in another unit gives the same network input."""
    profile = tiny_profile()
    table = demo_table(profile)
    in_price_units = ["open", "high", "low", "close", "bb_upper", "bb_lower", "macd", "macd_signal", "atr"]
    dearer = table_with(table, **{name: table.column(name) * 1024 for name in in_price_units})
    first, second = (prepare_series(each, profile) for each in (table, dearer))
    np.testing.assert_allclose(second.inputs_NF, first.inputs_NF, atol=1e-4)
    for task in profile.tasks:
        np.testing.assert_allclose(second.targets_NHC[task], first.targets_NHC[task], atol=1e-4)


def test_every_kind_of_column_gets_its_transform() -> None:
    transforms = {column.name: column.transform for column in demo_data(tiny_profile()).scaling.columns}
    assert transforms["close"] is transforms["bb_lower"] is Transform.ANCHORED
    assert transforms["macd"] is transforms["atr"] is Transform.RELATIVE
    assert transforms["volatility"] is transforms["bb_width"] is Transform.LOGGED
    assert transforms["rsi"] is Transform.LEVEL


def test_a_price_that_never_moves_cannot_be_scaled() -> None:
    profile = tiny_profile()
    table = demo_table(profile)
    flat = table_with(table, close=np.full(len(table), 7.0), volatility=np.zeros(len(table)))
    with pytest.raises(SeriesError, match=r"BTCUSDT-15m: .*got one price throughout"):
        prepare_series(flat, profile)


def test_a_dead_hour_does_not_rule_the_loss() -> None:
    """Twenty equal closes have volatility zero; its logarithm is floored at 5 % of the median."""
    profile = tiny_profile()
    table = demo_table(profile)
    volatility = table.column("volatility").copy()
    volatility[100:130] = 0.0
    data = prepare_series(table_with(table, volatility=volatility), profile)
    assert np.isfinite(data.inputs_NF).all()
    assert np.abs(data.targets_NHC["volatility"]).max() < 20


def test_the_table_holds_features_targets_close_and_volatility_once() -> None:
    names = table_columns(tiny_profile(features=("open", "high", "low", "close", "rsi")))
    assert names == ("open", "high", "low", "close", "rsi", "bb_upper", "bb_lower", "volatility")
