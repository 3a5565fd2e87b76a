"""The sample of forecasts: true to table and model, spread over the test span's end, checked on reading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_profiles import demo_data, demo_table, table_with, tiny_profile

from v8.base.errors import ArtifactError
from v8.base.storage import write_json
from v8.data.windows import SeriesData
from v8.forecaster.series_artifact import SAMPLE_BARS, ForecastSample, read_sample, sample_forecasts


def forecast_of(data: SeriesData) -> dict[str, np.ndarray]:
    """Return forecasts that tell their window and step: window number + step / 100."""
    anchors = data.anchors["test"]
    horizon = data.profile.horizon_bars
    shapes = {task: (len(anchors), horizon, values.shape[-1]) for task, values in data.targets_NHC.items()}
    numbers = np.arange(len(anchors))[:, None, None] + np.arange(1, horizon + 1)[None, :, None] / 100
    return {task: np.broadcast_to(numbers, shape).astype(np.float32) for task, shape in shapes.items()}


@pytest.fixture(scope="module")
def data() -> SeriesData:
    return demo_data(tiny_profile(newest_bars=1_200))


@pytest.fixture(scope="module")
def sample(data: SeriesData) -> ForecastSample:
    return sample_forecasts(data, forecast_of(data))


def test_the_sample_ends_with_the_test_span_and_tells_the_actual_values(
    sample: ForecastSample, data: SeriesData
) -> None:
    end = int(data.anchors["test"][-1]) + data.profile.horizon_bars + 1
    rows = slice(end - SAMPLE_BARS, end)
    assert sample.open_time_s == tuple(data.table.open_time_s[rows])
    assert np.array(sample.actual["ohlc"])[:, 3] == pytest.approx(data.table.column("close")[rows], rel=1e-6)
    assert np.array(sample.actual["bands"])[:, 1] == pytest.approx(
        data.table.column("bb_lower")[rows], rel=1e-6
    )


def test_forecasts_lie_one_horizon_apart_and_the_newest_reaches_the_end(
    sample: ForecastSample, data: SeriesData
) -> None:
    horizon = data.profile.horizon_bars
    rows = [one.last_known for one in sample.issued]
    assert rows[-1] == SAMPLE_BARS - 1 - horizon
    assert set(np.diff(rows)) == {horizon}
    assert 19 <= rows[0] < 19 + horizon  # twenty candles lead in


def test_each_forecast_is_the_one_that_was_issued_after_its_row(
    sample: ForecastSample, data: SeriesData
) -> None:
    first = int(data.anchors["test"][-1]) + data.profile.horizon_bars + 1 - SAMPLE_BARS
    for one in sample.issued:
        window = int(np.flatnonzero(data.anchors["test"] == first + one.last_known)[0])
        steps = np.array(one.values["volatility"])[:, 0]
        assert steps == pytest.approx(window + np.arange(1, data.profile.horizon_bars + 1) / 100)


def test_no_forecast_reaches_across_a_hole() -> None:
    from v8.data.windows import prepare_series

    profile = tiny_profile()
    table = demo_table(profile)
    segment = np.zeros(len(table.open_time_s), np.int32)
    segment[-30:] = 1  # a hole thirty rows before the end
    data = prepare_series(table_with(table, segment=segment), profile)
    sample = sample_forecasts(data, forecast_of(data))
    hole = len(sample.open_time_s) - 30
    for one in sample.issued:
        ahead = range(one.last_known, one.last_known + profile.horizon_bars + 1)
        assert hole not in ahead[1:]
    assert any(one.last_known < hole for one in sample.issued)
    assert any(one.last_known >= hole for one in sample.issued)


def test_what_is_written_is_read_again(sample: ForecastSample, tmp_path: Path) -> None:
    write_json(tmp_path / "forecasts.json", sample.to_json(), is_compact=True)
    assert read_sample(tmp_path / "forecasts.json") == sample
    assert (tmp_path / "forecasts.json").stat().st_size < 25_000


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda content: content.pop("actual"), "no such key"),
        (lambda content: content["actual"]["ohlc"].pop(), "rows and forecasts "),
        (lambda content: content["actual"]["ohlc"][0].pop(), "rows and forecasts "),
        (lambda content: content["forecasts"][0].update(last_known=79), "rows and forecasts "),
        (lambda content: content["forecasts"][0]["values"].pop("bands"), "rows and forecasts "),
        (lambda content: content["columns"]["ohlc"].reverse(), "rows and forecasts "),
        (lambda content: content.update(open_time_s=7), r"7 \(must be a valid tuple\)"),
        (lambda content: content["actual"].update(ohlc=[["high"] * 4] * 80), r"'high' \(must be a valid"),
    ],
)
def test_a_damaged_sample_is_refused(
    sample: ForecastSample, tmp_path: Path, change: Callable[[dict[str, Any]], Any], got: str
) -> None:
    content = json.loads(json.dumps(sample.to_json()))
    change(content)
    write_json(tmp_path / "forecasts.json", content)
    pattern = rf"forecasts\.json(, key \S+)?: .* format 2; got {got}"
    with pytest.raises(ArtifactError, match=pattern):
        read_sample(tmp_path / "forecasts.json")
