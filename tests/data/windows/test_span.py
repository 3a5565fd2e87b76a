"""Spans: what followed the windows, and variances of bars worked out by hand."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from rolled import naive
from tiny_profiles import demo_data, demo_table, table_with, tiny_profile, tiny_ranged_profile

from v8.data import span as span_module
from v8.data.features import FeatureTable
from v8.data.market.series import Series
from v8.data.span import LARGEST_KEPT_BYTES, PerTask, Span
from v8.data.windows import SeriesData
from v8.model.baselines.baselines import BASELINES
from v8.profile.columns import OHLC
from v8.profile.tasks import TASKS

SpanMaker = Callable[..., Span]


@pytest.fixture
def span_of() -> SpanMaker:
    """Return a maker of spans with a window at every one of some bars, shape (R, 4), or some of them."""
    profile = tiny_profile(tasks={"ohlc": {"weight": 1.0, "loss": "mae"}})

    def make(ohlc: np.ndarray, segment: list[int] | None = None, rows: list[int] | None = None) -> Span:
        table = FeatureTable(
            series=Series.parse("BTCUSDT-15m"),
            open_time_s=900 * np.arange(len(ohlc)),
            # In float64, to which a table does not object: sums by hand agree to more digits.
            chunks={name: (prices,) for name, prices in zip(OHLC, ohlc.T, strict=True)},
            segment=np.array(segment or [0] * len(ohlc), np.int32),
            digest="made",
        )
        return Span(table, profile, np.array(range(len(ohlc)) if rows is None else rows))

    return make


def _bars(closes: list[float], ratios: list[float]) -> np.ndarray:
    """Bars that open at their close; high over low is the ratio given."""
    close = np.array(closes)
    ratio = np.array(ratios)
    return np.stack([close, close * np.sqrt(ratio), close / np.sqrt(ratio), close], axis=1)


def test_the_variance_of_a_range_is_pi_over_8_of_its_mean_squared(span_of: SpanMaker) -> None:
    # log ranges 0.01, 0.03, 0.05: means over two bars 0.01 (one bar there is), 0.02, 0.04.
    span = span_of(_bars([10.0, 10.0, 10.0], list(np.exp([0.01, 0.03, 0.05]))))
    expected = np.pi / 8 * np.array([0.01, 0.02, 0.04]) ** 2
    np.testing.assert_allclose(span.range_variance(2), expected, rtol=1e-12)


def test_a_random_walk_s_variance_is_found_from_its_ranges(span_of: SpanMaker) -> None:
    rng = np.random.default_rng(2)
    paths = np.cumsum(rng.normal(0, 1e-3, (4_000, 400)), axis=1)
    top = np.maximum(paths.max(axis=1), 0)
    bottom = np.minimum(paths.min(axis=1), 0)
    ohlc = np.exp(np.stack([top * 0, top, bottom, paths[:, -1]], axis=1))
    variance = span_of(ohlc).range_variance(4_000)[-1]
    # 400 steps of 1e-6; steps miss the extremes between them, about 5 % of the variance.
    assert variance == pytest.approx(4e-4, rel=0.1)


def test_the_weighted_variance_follows_riskmetrics_and_leaves_out_holes(span_of: SpanMaker) -> None:
    # Returns 1 %, 2 %; then a hole, whose 50 % says nothing; then 4 %.
    closes = np.exp(np.cumsum([0.0, 0.01, 0.02, 0.50, 0.04]))
    span = span_of(_bars(list(closes), [1.0] * 5), [0, 0, 0, 1, 1])
    expected = [
        0.0,
        1e-4,
        (4e-4 + 0.94 * 1e-4) / 1.94,
        (4e-4 + 0.94 * 1e-4) / 1.94,
        (16e-4 + 0.94 * 4e-4 + 0.94**2 * 1e-4) / (1 + 0.94 + 0.94**2),
    ]
    np.testing.assert_allclose(span.ewma_variance, expected, rtol=1e-10)


def test_what_is_known_at_some_windows_is_what_is_known_at_them_among_all(span_of: SpanMaker) -> None:
    rng = np.random.default_rng(5)
    ohlc = _bars(list(np.exp(rng.normal(0, 0.1, 60))), list(np.exp(rng.uniform(0, 0.1, 60))))
    every = span_of(ohlc)
    some = span_of(ohlc, rows=[25, 26, 40])
    assert (len(every), len(some)) == (60, 3)
    np.testing.assert_array_equal(some.range_variance(5), every.range_variance(5)[[25, 26, 40]])
    np.testing.assert_array_equal(some.ewma_variance, every.ewma_variance[[25, 26, 40]])
    np.testing.assert_array_equal(some.last_close, ohlc[[25, 26, 40], 3])
    np.testing.assert_array_equal(some.history_close[1], ohlc[7:27, 3])
    np.testing.assert_array_equal(some.known_values(("low", "high")), ohlc[[25, 26, 40]][:, [2, 1]])


def test_a_window_near_the_first_row_repeats_the_oldest_close(span_of: SpanMaker) -> None:
    # Only candles are forecast with so few bars, and they need the last close alone.
    span = span_of(_bars([7.0, 8.0, 9.0], [1.1] * 3))
    assert span.history_close[2].tolist() == [7.0] * 18 + [8.0, 9.0]
    assert span.last_close.tolist() == [7.0, 8.0, 9.0]


def test_windows_are_numbered_by_the_bars_since_the_epoch(span_of: SpanMaker) -> None:
    assert span_of(_bars([1.0] * 9, [1.1] * 9), rows=[2, 3, 7]).bar_numbers.tolist() == [2, 3, 7]


def test_a_span_of_a_series_holds_bars_windows_and_what_followed_them() -> None:
    data = demo_data(tiny_profile())
    ohlc = data.table.select(("open", "high", "low", "close")).astype(np.float64)
    for name, span in data.spans.items():
        np.testing.assert_array_equal(span.anchors, data.anchors[name])
        assert span.table is data.table
        # The newest close known and the candle after it, of every window.
        np.testing.assert_array_equal(span.last_close, ohlc[span.anchors, 3])
        np.testing.assert_array_equal(span.actual["ohlc"][:, 0], ohlc[span.anchors + 1])
        np.testing.assert_array_equal(
            span.actual["volatility"][:, 2, 0], data.table.column("volatility")[span.anchors + 3]
        )
        assert set(span.actual) == {"ohlc", "bands", "volatility"}
        assert list(span.naive) == ["ohlc", "bands", "volatility"]
        assert {values.dtype for values in span.actual.values()} == {np.dtype(np.float64)}
        first, end = data.split[name]
        assert first <= span.anchors.min() - data.profile.lookback_bars + 1
        assert span.anchors.max() + data.profile.horizon_bars < end
    assert data.spans["train"].anchors.max() < data.split["validation"][0]


def test_raw_windows_hold_the_features_of_the_rows_up_to_their_anchor() -> None:
    data = demo_data(tiny_profile())
    span = Span(data.table, data.profile, data.anchors["test"][:4])
    windows = span.raw_windows()
    last = int(span.anchors[3])
    assert (windows.shape, windows.dtype) == ((4, 20, len(data.profile.features)), np.dtype(np.float32))
    expected = data.table.select(data.profile.features)[last - 19 : last + 1]
    np.testing.assert_array_equal(windows[3], expected)
    np.testing.assert_array_equal(windows, data.spans["test"].raw_windows()[:4])


def test_what_is_rolled_forward_follows_from_the_closes_and_the_tasks_of_the_profile() -> None:
    span = demo_data(tiny_profile()).spans["test"]
    expected = naive(np, [TASKS[task] for task in span.profile.tasks], span.history_close, 3)
    for task, values in span.naive.items():
        np.testing.assert_array_equal(values, expected[task])
    # Half the distance between the bands is two deviations.
    path = np.concatenate([span.history_close[5], np.repeat(span.last_close[5], 3)])
    deviations = [path[step : step + 20].std(ddof=1) / path[-1] for step in (1, 2, 3)]
    assert span.naive_deviation[5] == pytest.approx(deviations, rel=1e-9)


def test_what_is_known_at_a_window_does_not_change_with_later_rows() -> None:
    profile = tiny_ranged_profile()
    table = demo_table(profile)
    row = 400
    changed = {name: table.column(name).copy() for name in table.columns}
    for values in changed.values():
        values[row + 1 :] *= 3
    rows = np.array([row])
    one, other = (Span(each, profile, rows) for each in (table, table_with(table, **changed)))
    for name in ("history_close", "target_unit", "ewma_variance", "naive_deviation", "bar_numbers"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.range_variance(60), other.range_variance(60))
    np.testing.assert_array_equal(one.raw_windows(), other.raw_windows())
    # The converse, so that the test cannot pass by comparing nothing: what followed differs.
    assert (one.actual["ohlc"] != other.actual["ohlc"]).all()


def test_the_unit_of_targets_is_the_recent_range_of_ranged_profiles_and_one_of_others() -> None:
    span = demo_data(tiny_ranged_profile()).spans["test"]
    np.testing.assert_array_equal(span.target_unit, span.table.column("recent_range")[span.anchors])
    plain = Span(span.table, span.profile.model_copy(update={"scaling": "anchored"}), span.anchors)
    assert set(plain.target_unit.tolist()) == {1.0}


def test_a_span_that_nobody_needs_goes_at_once_with_all_that_it_kept(span_of: SpanMaker) -> None:
    span = span_of(np.full((40, 4), 100.0), rows=[25])
    assert span.actual["ohlc"].shape == span.naive["ohlc"].shape
    gone = weakref.ref(span)
    gc.disable()  # a cycle would wait for the collector, with the gigabytes of a long series
    try:
        del span
        assert gone() is None
    finally:
        gc.enable()


def test_in_parts_everything_has_the_same_value_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = tiny_ranged_profile("dense_newest")
    whole = demo_data(profile)
    moves = whole.spans["train"].moves()
    forecasts = {name: _forecast(whole, name) for name in ("scaled", "drift", "har", "range_paths")}
    monkeypatch.setattr("v8.data.span.WINDOWS_AT_ONCE", 50)
    monkeypatch.setattr("v8.model.baselines.baselines.WINDOWS_AT_ONCE", 50)
    in_parts = demo_data(profile)
    train = in_parts.spans["train"]
    assert len(train) > 3 * 50
    assert [len(piece) for _, piece in train.pieces()][:2] == [50, 50]
    assert in_parts.scaling == whole.scaling
    for task, targets in whole.targets_NHC.items():
        np.testing.assert_array_equal(in_parts.targets_NHC[task], targets)
        np.testing.assert_array_equal(train.moves()[task], moves[task])
    for name, by_task in forecasts.items():
        for task, values in _forecast(in_parts, name).items():
            np.testing.assert_array_equal(values, by_task[task])
    np.testing.assert_array_equal(train.last_close, train.history_close[:, -1])


def _forecast(data: SeriesData, baseline: str) -> Mapping[str, np.ndarray]:
    """Fit a baseline to the train span, and forecast the test span."""
    return BASELINES[baseline].fitted(data.spans["train"], data.scaling)(data.spans["test"])


def test_what_is_small_is_computed_once_and_what_is_large_each_time() -> None:
    asked: list[str] = []
    num_large = LARGEST_KEPT_BYTES // 8 + 1

    def compute(task: str) -> np.ndarray:
        asked.append(task)
        return np.zeros(num_large if task == "large" else 1)  # untouched zeros take no memory

    arrays = PerTask(["small", "large"], compute)
    for _ in range(2):
        assert {task: len(values) for task, values in arrays.items()} == {"small": 1, "large": num_large}
    assert asked == ["small", "large", "large"]
    assert list(arrays) == ["small", "large"]
    assert "other" not in arrays
    with pytest.raises(KeyError, match="other"):
        arrays["other"]


def test_a_span_of_many_windows_forgets_what_it_kept_and_computes_the_same_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = demo_data(tiny_profile())
    train, test = data.spans["train"], data.spans["test"]
    monkeypatch.setattr(span_module, "WINDOWS_AT_ONCE", len(test))
    for span in (train, test):
        kept = weakref.ref(span.naive_deviation)
        before = span.naive_deviation.copy()
        span.forget_many()
        assert (kept() is None) == (span is train)  # few windows take no memory worth a computation
        np.testing.assert_array_equal(span.naive_deviation, before)
