"""Scaling: fitted on train rows, invertible, saved, an honest start; and targets in recent ranges by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from float32_steps import assert_same_forecasts
from pydantic import TypeAdapter
from scaled_units import restore_targets
from tiny_profiles import demo_data, demo_table, table_with, tiny_profile, tiny_ranged_profile

from v8.base.errors import SeriesError
from v8.data.features import FeatureTable
from v8.data.market.series import Series
from v8.data.scaling import Scaling, TargetForm, Transform, fit_scaling
from v8.data.span import Span
from v8.data.windows import prepare_series, table_columns
from v8.model.training.step import fleet_loss
from v8.profile.columns import CLOSE, OHLC
from v8.profile.profile import Profile
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


@pytest.mark.parametrize("profile", [tiny_profile(), tiny_ranged_profile()], ids=["anchored", "ranged"])
def test_windows_do_not_know_the_price_level(profile: Profile) -> None:
    """A coin quoted in another unit gives the same network input, targets and weights."""
    table = demo_table(profile)
    in_price_units = {*OHLC, "bb_upper", "bb_lower", "macd", "macd_signal", "atr"} & {*table.columns}
    dearer = table_with(table, **{name: table.column(name) * 1024 for name in in_price_units})
    first, second = (prepare_series(each, profile) for each in (table, dearer))
    np.testing.assert_allclose(second.inputs_NF, first.inputs_NF, atol=1e-4)
    np.testing.assert_array_equal(second.weight_N, first.weight_N)
    for task in profile.tasks:
        np.testing.assert_allclose(second.targets_NHC[task], first.targets_NHC[task], atol=1e-4)


def test_every_kind_of_column_gets_its_transform() -> None:
    transforms = {column.name: column.transform for column in demo_data(tiny_profile()).scaling.columns}
    assert transforms["close"] is transforms["bb_lower"] is Transform.ANCHORED
    assert transforms["macd"] is transforms["atr"] is Transform.RELATIVE
    assert transforms["volatility"] is transforms["bb_width"] is Transform.LOGGED
    assert transforms["rsi"] is Transform.LEVEL


def test_a_price_that_never_moves_cannot_be_scaled_nor_bars_without_any_range_by_it() -> None:
    for profile, values, got in (
        (tiny_profile(), {"close": 7.0, "volatility": 0.0}, "one price throughout"),
        (tiny_ranged_profile(), {"recent_range": 0.0}, "high equal to"),
    ):
        table = demo_table(profile)
        changed = table_with(table, **{name: np.full(len(table), value) for name, value in values.items()})
        with pytest.raises(SeriesError, match=rf"BTCUSDT-15m: .*got {got}"):
            prepare_series(changed, profile)


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


BY_HAND = ("open", "high", "low", "close", "recent_range")


def fit_by_hand(loss: str) -> Scaling:
    """Fit three windows of one step whose last close is 100 and whose recent ranges are 1, 2 and 5 %.

    In recent ranges (1, 2 and 5 of currency) the close moves by 1, 2 and -2, the high by 2, 1 and 4, the
    low by -1, -3 and 0, and the open not at all.
    """
    profile = tiny_profile(
        horizon_bars=1, features=BY_HAND, scaling="ranged", tasks={"ohlc": {"weight": 1.0, "loss": loss}}
    )
    close = np.array([100.0, 101.0, 100.0])
    columns = dict.fromkeys(("open", "high", "low", "close"), close)
    columns |= {"recent_range": np.full(3, 0.02), "volatility": np.full(3, 0.01)}
    runs = {name: (values,) for name, values in columns.items()}
    bars = 900 * np.arange(3), runs, np.zeros(3, np.int32)
    span = Span(FeatureTable(Series.parse("BTCUSDT-15m"), *bars, "made"), profile, np.arange(3))
    actual = np.array([[[100.0, 102, 99, 101]], [[100.0, 102, 94, 104]], [[100.0, 120, 100, 90]]])
    ranges = np.array([0.01, 0.02, 0.05])
    rolled = np.full((3, 1, 4), 100.0)
    closes = np.full((3, 20), 100.0)
    vars(span).update(
        actual={"ohlc": actual}, history_close=closes, naive={"ohlc": rolled}, target_unit=ranges
    )
    return fit_scaling(span, (0, 3), tuple(columns))


def test_the_scale_is_the_mean_distance_from_naive_weighed_by_the_recent_range() -> None:
    # Weights 1, 2 and 5 of 8: close (1 + 2 x 2 + 5 x 2) / 8 = 1.875, high (2 + 2 + 20) / 8 = 3, low
    # (1 + 6 + 0) / 8 = 0.875, open 0; a quarter of their sum is 1.4375.
    task = fit_by_hand("mae").task("ohlc")
    assert (task.form, task.center) == (TargetForm.RANGED, (0.0,) * 4)
    assert task.scale == pytest.approx((1.4375,) * 4)


def test_the_start_is_the_weighted_median() -> None:
    # Half of 8 is reached, in ascending order: close at -2 (5), high at 4 (2 + 1 + 5), low at 0 (2 + 1 + 5).
    # Without weights it would be 1, 2 and -1.
    (start,) = fit_by_hand("mae").task("ohlc").start
    assert start == pytest.approx((0.0, 4 / 1.4375, 0.0, -2 / 1.4375))


def test_the_start_of_squared_losses_is_the_weighted_mean() -> None:
    # Close (1 + 4 - 10) / 8 = -0.625, high (2 + 2 + 20) / 8 = 3, low (-1 - 6) / 8 = -0.875.
    (start,) = fit_by_hand("mse").task("ohlc").start
    assert np.array(start) * 1.4375 == pytest.approx([0.0, 3.0, -0.875, -0.625])


def test_recent_ranges_are_raised_to_a_twentieth_of_the_train_median() -> None:
    scaling = fit_by_hand("mae")
    assert scaling.range_floor == pytest.approx(0.001)
    assert scaling.floored_range(np.array([0.0, 0.0005, 0.003])) == pytest.approx([0.001, 0.001, 0.003])


def test_a_target_is_the_distance_from_naive_in_recent_ranges() -> None:
    data = demo_data(tiny_ranged_profile())
    row = int(data.anchors["validation"][7])
    close, high, recent = (data.table.column(name)[row:] for name in ("close", "high", "recent_range"))
    scale = data.scaling.task("ohlc").scale[0]
    target = data.targets_NHC["ohlc"][row]
    for step in (1, 2, 3):
        unit = float(close[0]) * float(recent[0]) * scale
        assert target[step - 1, 3] == pytest.approx((float(close[step]) - close[0]) / unit, rel=1e-4)
        assert target[step - 1, 1] == pytest.approx((float(high[step]) - close[0]) / unit, rel=1e-4)


def test_a_volatility_target_is_measured_by_the_recent_range_alone() -> None:
    data = demo_data(tiny_ranged_profile())
    rows = data.anchors["validation"][7:8]
    rolled = Span(data.table, data.profile, rows).naive["volatility"][0, :, 0]
    actual = data.table.column("volatility")[rows[0] + 1 : rows[0] + 4]
    unit = float(data.table.column("recent_range")[rows[0]]) * data.scaling.task("volatility").scale[0]
    assert data.targets_NHC["volatility"][rows[0], :, 0] == pytest.approx((actual - rolled) / unit, rel=1e-4)


@pytest.mark.tf
def test_the_naive_forecast_has_a_loss_of_one_a_task_on_train_windows() -> None:
    data = demo_data(tiny_ranged_profile())
    rows = data.anchors["train"]
    actual = {task: target[rows][:, None] for task, target in data.targets_NHC.items()}
    naive = {task: np.zeros_like(target) for task, target in actual.items()}
    loss = np.asarray(fleet_loss(data.profile.tasks, actual, naive, data.weight_N[rows][:, None]))
    # Weights 1, 0.8 and 0.3 of the tasks.
    assert loss.tolist() == pytest.approx([2.1], rel=1e-5)
    alike = np.asarray(fleet_loss(data.profile.tasks, actual, naive, np.ones((len(rows), 1), np.float32)))
    assert alike.tolist() != pytest.approx([2.1], rel=1e-3)


def test_a_window_weighs_its_recent_range_and_the_train_mean_is_one() -> None:
    data = demo_data(tiny_ranged_profile())
    recent = data.table.column("recent_range")
    assert (recent > data.scaling.range_floor).all()
    np.testing.assert_allclose(data.weight_N / recent, data.weight_N[0] / recent[0], rtol=1e-5)
    assert data.weight_N[data.anchors["train"]].mean() == pytest.approx(1.0, rel=1e-5)
    assert data.weight_N.dtype == np.float32
    assert data.weight_N.max() > 1.2 * data.weight_N.min()


@pytest.mark.parametrize("way", ["anchored", "standard", "minmax"])
def test_all_windows_weigh_one_where_targets_are_not_divided_by_the_range(way: str) -> None:
    data = demo_data(tiny_ranged_profile(scaling=way))
    assert set(data.weight_N.tolist()) == {1.0}
    assert data.scaling.range_floor == 0.0


def test_a_dead_market_weighs_little_and_has_finite_targets() -> None:
    profile = tiny_ranged_profile()
    table = demo_table(profile)
    recent = table.column("recent_range").copy()
    recent[100:130] = 0.0
    data = prepare_series(table_with(table, recent_range=recent), profile)
    # A twentieth of the median, over a mean near the median: never nothing, which would be filling.
    assert 0.03 < data.weight_N[100:130].max() < 0.06
    assert data.weight_N.min() == data.weight_N[100]
    assert all(np.isfinite(target).all() for target in data.targets_NHC.values())
