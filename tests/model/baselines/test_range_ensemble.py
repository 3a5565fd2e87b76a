"""The two formulas of `calibration: ensemble`, and who has how much say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_profiles import demo_data, tiny_profile

from v8.data.features import FeatureTable, compute_table
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.data.span import Span
from v8.data.windows import SeriesData, prepare_series, table_columns
from v8.model.baselines.paths import (
    NUM_SERIES_BUFFERS,
    SERIES_LIMIT,
    mirrored_path_quantiles,
    mirrored_returns,
    path_quantiles,
)
from v8.model.baselines.ranges import (
    MEMBERS,
    RangeFormula,
    RangeTerms,
    conformal_widths,
    fit_formulas,
    fit_log_ranges,
    fit_shares,
    fit_with_waves,
    mix,
    range_terms,
    resampled_bars,
    trusted_share,
)
from v8.profile.columns import RANGE_BARS, WAVE_COLUMNS, outer, split_wave
from v8.profile.profile import load_profile
from v8.profile.tasks import TASKS


@pytest.fixture
def data() -> SeriesData:
    return demo_data(tiny_profile("dense_newest", calibration="ensemble"))


@pytest.fixture
def ensemble(data: SeriesData) -> RangeFormula:
    return fit_formulas(data.spans["train"])


def test_a_window_tells_its_own_ranges_and_features_the_longer_ones() -> None:
    terms = range_terms(tiny_profile("dense_newest"))
    assert (terms.from_candles, terms.from_features) == ((1, 5, 20), ())
    longer = ("recent_range", "range_60", "range_240", "range_5", "day_sin_1")
    terms = range_terms(tiny_profile("dense_newest", features=("open", "high", "low", "close", *longer)))
    assert (terms.from_candles, terms.from_features, terms.waves) == ((1, 5, 20), (60, 240), ("day_sin_1",))


def test_what_does_not_know_the_level_goes_back_to_that_of_the_train_span_by_half() -> None:
    rng = np.random.default_rng(3)
    drawn_WL = rng.normal(size=(200, 5))
    terms_WL = np.concatenate([np.ones((200, 1)), drawn_WL[:, 1:]], axis=1)
    actual_L1 = np.array([[-2.0], [0.1], [0.2], [0.3], [0.5]])  # a constant, three ranges, a wave
    logs_W1 = terms_WL @ actual_L1
    knowing = RangeTerms((1, 5), (240,), ("day_sin_1",))
    other = RangeTerms((1, 5, 20), (), ("day_sin_1",))
    np.testing.assert_allclose(fit_log_ranges(terms_WL, logs_W1, knowing), actual_L1)
    half_L1 = fit_log_ranges(terms_WL, logs_W1, other)
    # Least squares says .6 of a move of all ranges lasts; what knows no level says that all of it does.
    assert half_L1[1:4].sum() == pytest.approx((0.6 + 1.0) / 2)
    # And a law of that kind is found as it is.
    whole_L1 = np.array([[-2.0], [0.1], [0.2], [0.7], [0.5]])
    np.testing.assert_allclose(fit_log_ranges(terms_WL, terms_WL @ whole_L1, other), whole_L1)


def test_the_longest_window_alone_knows_the_level() -> None:
    longer = ("open", "high", "low", "close", "recent_range", "range_240")
    assert not range_terms(tiny_profile("dense_newest")).has_level
    assert range_terms(tiny_profile("dense_newest", features=longer)).has_level
    assert range_terms(tiny_profile("dense_newest", lookback_bars=240, newest_bars=3000)).has_level


def test_a_long_range_is_the_same_from_a_feature_as_from_candles() -> None:
    """With roots of mean squares the shipped profile was behind the baseline that reads candles."""
    train = frontier_data("ETHUSDT-15m", 3_000).spans["train"]
    of_features = range_terms(train.profile)
    assert of_features.from_features == (60, 240)
    of_candles = RangeTerms(RANGE_BARS, waves=WAVE_COLUMNS)
    has_all_candles = train.anchors >= max(RANGE_BARS)
    terms_WL, candle_terms_WL = (terms.terms(train, 1e-6) for terms in (of_features, of_candles))
    np.testing.assert_allclose(terms_WL[has_all_candles], candle_terms_WL[has_all_candles], rtol=1e-6)


def test_formulas_are_nearer_than_naive(data: SeriesData, ensemble: RangeFormula) -> None:
    span = data.spans["test"]
    for forecast in (ensemble.regress(span), ensemble.member_forecasts(span, {})[0]["paths"]):
        for task, actual in span.actual.items():
            assert np.abs(forecast[task] - actual).mean() < np.abs(span.naive[task] - actual).mean()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_half_of_the_paths_say_to_the_bit_what_they_and_their_mirror_images_say(
    data: SeriesData, ensemble: RangeFormula, dtype: type
) -> None:
    train = data.spans["train"]
    test = data.spans["test"]
    chosen = np.arange(0, len(train), 3)
    resampled_PHC = resampled_bars(train, ensemble.ranges(train), chosen).astype(dtype)
    resampled_HCP = np.moveaxis(resampled_PHC, 0, -1)
    ranges_WH = ensemble.ranges(test).astype(dtype)
    moved = ranges_WH[:, :, None, None] * resampled_HCP
    history = test.history_close.astype(dtype)
    by_candles = replace(
        TASKS["ohlc"], on_paths=lambda xp, task, closes, summed_up: summed_up(closes.candles)
    )
    levels = (0.05, 0.25, 0.5, 0.77, 0.995)
    for tasks in ([TASKS[name] for name in data.profile.tasks], [by_candles]):
        expected = path_quantiles(np, levels, tasks, history, moved)
        half_HCP = resampled_HCP[..., : len(chosen)]
        quantiles = mirrored_path_quantiles(levels, tasks, history, ranges_WH, half_HCP)
        assert quantiles.keys() == expected.keys()
        for task, values in expected.items():
            assert quantiles[task].dtype == values.dtype
            np.testing.assert_array_equal(quantiles[task], values)


@pytest.mark.parametrize(("dtype", "share"), [(np.float32, 1.5e-7), (np.float64, 2e-9)])
def test_returns_of_log_ratios_and_of_their_mirror_images_are_expm1(dtype: type, share: float) -> None:
    sizes_P = np.concatenate([np.geomspace(1e-8, 3.0, 500), [SERIES_LIMIT, 0.0]])
    logs_WP = np.stack([sizes_P, -sizes_P]).astype(dtype)
    returns_WP = np.empty((2, 2 * logs_WP.shape[1]), dtype)
    mirrored_returns(logs_WP, np.empty((NUM_SERIES_BUFFERS, *logs_WP.shape), dtype), returns_WP)
    exact_WP = np.expm1(np.concatenate([logs_WP, -logs_WP], axis=1).astype(np.float64))
    np.testing.assert_allclose(returns_WP, exact_WP, rtol=share, atol=0.0)


def test_only_the_past_is_read(data: SeriesData, ensemble: RangeFormula) -> None:
    """Candles after a window's last known row change nothing of its forecast."""
    span = data.spans["test"]
    first = Span(span.table, span.profile, span.anchors[:1])
    cut = Span(_until(data, int(span.anchors[0])), span.profile, span.anchors[:1])
    for task, forecast in ensemble.member_forecasts(first, {})[0]["paths"].items():
        np.testing.assert_array_equal(forecast, ensemble.member_forecasts(cut, {})[0]["paths"][task])
        np.testing.assert_array_equal(ensemble.regress(first)[task], ensemble.regress(cut)[task])


def test_the_fit_sees_the_train_span_alone(data: SeriesData, ensemble: RangeFormula) -> None:
    last = int(data.spans["train"].anchors[-1]) + data.profile.horizon_bars
    train = Span(_until(data, last), data.profile, data.spans["train"].anchors)
    again = fit_formulas(train)
    np.testing.assert_array_equal(again.path_LH, ensemble.path_LH)
    np.testing.assert_array_equal(again.resampled_PHC, ensemble.resampled_PHC)


def test_no_range_beyond_those_of_the_train_span_is_forecast(
    data: SeriesData, ensemble: RangeFormula
) -> None:
    train = data.spans["train"]
    high, low = (np.moveaxis(train.actual["ohlc"], -1, 0)[place] for place in (1, 2))
    constant_L1 = np.array([[9.0], *[[0.0]] * (len(ensemble.path_LH) - 1)])
    path_LH = ensemble.path_LH + constant_L1
    wild = replace(ensemble, path_LH=path_LH)
    assert wild.ranges(train).max() == pytest.approx(np.log(high / low).max())


def said_by(span: Span, best: str, others: float, its: float) -> dict[str, dict[str, np.ndarray]]:
    """Let a member err by one share of the actual values, and the others by another."""
    errors = {name: its if name == best else others for name in MEMBERS}
    return {
        name: {task: values + error * np.abs(values) for task, values in span.actual.items()}
        for name, error in errors.items()
    }


@pytest.mark.parametrize("best", MEMBERS)
def test_the_one_that_was_nearer_has_the_most_say(data: SeriesData, best: str) -> None:
    span = data.spans["validation"]
    shares = fit_shares(span, said_by(span, best, 0.01, 0.0099))
    for shares_MH in shares.values():
        np.testing.assert_allclose(shares_MH.sum(axis=0), 1.0)
        share_H = shares_MH[MEMBERS.index(best)]
        # Half of the way: the nearer network gets half, a formula three quarters of what is left.
        np.testing.assert_allclose(share_H, 0.5 if best == "network" else 0.75)


@pytest.mark.parametrize("best", MEMBERS)
@pytest.mark.parametrize("its", [0.0, 0.0002])
def test_what_loses_to_one_of_its_members_leaves_the_word_to_that_one(
    data: SeriesData, best: str, its: float
) -> None:
    span = data.spans["validation"]
    said = said_by(span, best, 0.01, its)
    shares = fit_shares(span, said)
    for task, shares_MH in shares.items():
        np.testing.assert_array_equal(shares_MH[MEMBERS.index(best)], 1.0)
        np.testing.assert_array_equal(shares_MH.sum(axis=0), 1.0)
        np.testing.assert_array_equal(mix(shares, said)[task], said[best][task])


def test_a_fold_that_the_train_span_does_not_hold_four_times_is_not_fitted() -> None:
    """3,000 bars of 1m hold a day twice: fitted freely, the error of ranges is 11 times the naive one."""
    data = frontier_data("SOLUSDT-1m", 3_000)
    train = data.spans["train"]
    span = data.spans["test"]
    ensemble = fit_formulas(train)
    num_ranges = range_terms(data.profile).num_ranges
    np.testing.assert_array_equal(ensemble.path_LH[1 + num_ranges :], 0.0)
    assert (ensemble.path_LH[: 1 + num_ranges] != 0).all()
    for forecast in (ensemble.regress(span), ensemble.member_forecasts(span, {})[0]["paths"]):
        for task, actual in span.actual.items():
            assert np.abs(forecast[task] - actual).mean() < np.abs(span.naive[task] - actual).mean()


@pytest.mark.parametrize(
    ("series", "num_bars", "unfitted"),
    [
        # The train span holds 9 days: too few for single hours.
        ("ETHUSDT-15m", 1_500, {"fine day", "hour", "week", "fine week"}),
        ("ETHUSDT-15m", 3_000, {"week", "fine week"}),  # 20 days
        ("ETHUSDT-1h", 3_000, {"hour", "fine week"}),  # 80 days; a wave an hour has less than two bars
        ("ETHUSDT-1h", 8_000, {"hour"}),  # 32 weeks
    ],
)
def test_waves_that_the_train_span_can_show_are_fitted(
    series: str, num_bars: int, unfitted: set[str]
) -> None:
    ensemble = fit_formulas(frontier_data(series, num_bars).spans["train"])
    assert ensemble.range_terms.waves == WAVE_COLUMNS
    coefficients_XH = ensemble.path_LH[1 + ensemble.range_terms.num_ranges :]
    kinds: dict[bool, set[str]] = {True: set(), False: set()}
    for name, coefficients_H in zip(WAVE_COLUMNS, coefficients_XH, strict=True):
        if name != "day_sin_48":  # two bars of 15m are half an hour, whose sine is zero at both
            kinds[bool(np.abs(coefficients_H).max() > 1e-9)].add(kind_of(name))
    assert kinds[False] == unfitted
    assert kinds[True] == {"day", "fine day", "hour", "week", "fine week"} - unfitted


def kind_of(wave: str) -> str:
    period, num_waves = split_wave(wave)
    if num_waves >= 24:
        return "hour"
    is_fine = num_waves > {"day": 3, "week": 2}[period]
    return f"fine {period}" if is_fine else period


@pytest.mark.parametrize("num_days", [4, 12])
def test_of_a_rhythm_seen_over_n_days_n_of_n_plus_two_are_left(num_days: int, make_market_span) -> None:
    train = make_market_span(num_train=96 * num_days).train
    terms = RangeTerms((1,), waves=("day_sin_1", "day_cos_2"))
    hours_W = train.table.open_time_s[train.anchors] / 3_600
    assert len(train) == 96 * num_days
    waves_WX = np.stack([np.sin(hours_W * np.pi / 12), np.cos(hours_W * np.pi / 6)], axis=1)
    # A constant, a range that tells nothing, and the waves.
    terms_WL = np.concatenate([np.ones((len(train), 1)), np.zeros((len(train), 1)), waves_WX], axis=1)
    logs_W1 = terms_WL @ np.array([[-6.0], [0.0], [0.3], [-0.1]])
    fitted_L1 = fit_with_waves(train, terms, terms_WL, logs_W1)
    share = num_days / (num_days + 2)
    np.testing.assert_allclose(fitted_L1[[0, 2, 3], 0], [-6.0, 0.3 * share, -0.1 * share])


def frontier_data(series: str, num_bars: int) -> SeriesData:
    profile = load_profile("frontier").with_budget(newest_bars=num_bars)
    candles = DemoSource().candles(Series.parse(series), num_bars)
    return prepare_series(compute_table(candles, table_columns(profile)), profile)


def test_the_level_is_known_to_what_the_shipped_profile_of_ranges_reads() -> None:
    """So that the regression of `frontier` is plain least squares, as its figures were measured."""
    assert range_terms(load_profile("frontier")).has_level
    assert not range_terms(load_profile("aligned")).has_level


def _until(data: SeriesData, last_row: int) -> FeatureTable:
    """Return the table with other candles after a row."""
    table = data.table
    changed = dict(data.table.chunks)
    for name, factor in {"open": 1.5, "high": 1.7, "low": 1.4, "close": 1.5}.items():
        column = table.column(name).copy()
        column[last_row + 1 :] *= factor
        changed[name] = (column,)
    return FeatureTable(table.series, table.open_time_s, changed, table.segment, "changed")


LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def test_stretched_quantiles_hold_their_share_of_later_windows_however_far_they_lay_off() -> None:
    """Truth is Student's t about the median; the forecast believes in half of its spread."""
    rng = np.random.default_rng(1)
    num = 60_000
    units = rng.uniform(0.5, 2.0, (num, 1, 1))
    distances = np.array([-1.0, -0.4, 0.4, 1.0])[:, None] * units[..., None]
    points = {"ohlc": np.zeros((num, 1, 1))}
    actual = {"ohlc": units * rng.standard_t(4, (num, 1, 1))}
    (widths_HLC,) = conformal_widths(LEVELS, actual, points, {"ohlc": distances}).values()
    later_units = rng.uniform(0.5, 2.0, (num, 1, 1))
    later = later_units * rng.standard_t(4, (num, 1, 1))
    kept = 1.0 + (widths_HLC[0, :, 0] - 1.0) / trusted_share(num, 1)
    shares = (later <= np.array([-1.0, -0.4, 0.4, 1.0]) * kept * later_units).mean(axis=0)[0]
    np.testing.assert_allclose(shares, outer(LEVELS), atol=0.01)


def test_a_move_found_in_few_windows_is_kept_in_part() -> None:
    actual = {"ohlc": np.full((100, 10, 4), 2.0)}
    points = {"ohlc": np.zeros((100, 10, 4))}
    distances = {"ohlc": np.ones((100, 10, 2, 4)) * np.array([-1.0, 1.0])[:, None]}
    (widths,) = conformal_widths((0.1, 0.5, 0.9), actual, points, distances).values()
    # Ten windows that do not overlap, and 200 in doubt: of one unit more, and of three fewer.
    np.testing.assert_allclose(widths[:, 1], 1 + 10 / 210)
    np.testing.assert_allclose(widths[:, 0], 1 - 3 * 10 / 210)
