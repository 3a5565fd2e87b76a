"""Forecasts of one's own beside naive and the best baseline: of a model, of a frame, of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import v8
from v8.base.errors import ArgumentError
from v8.data.features.table import compute_table
from v8.data.windows.dataset import SeriesData, prepare_series, table_columns
from v8.model.evaluation.evaluation import evaluate_windows
from v8.profile.profile import Profile

SERIES = "BTCUSDT-15m"


class Halfway:
    """Forecasts half of the way from zero, which is near the naive forecast, to the targets."""

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def predict(self, dataset: Any, verbose: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        batches = [targets for _, targets in dataset.as_numpy_iterator()]
        return {task: self.share * np.concatenate([each[task] for each in batches]) for task in batches[0]}


@pytest.fixture(scope="module")
def profile(make_profile: Callable[..., Profile]) -> Profile:
    return make_profile()


@pytest.fixture(scope="module")
def data(trained_run: Any, profile: Profile) -> SeriesData:
    return prepare_series(compute_table(trained_run.candles, table_columns(profile)), profile)


def frame_of(data: SeriesData, **methods: np.ndarray[Any, Any]) -> pd.DataFrame:
    """Lay out closes of every window of the test span, shape (N, H), as Nixtla does."""
    span = data.spans["test"]
    opens_s = span.table.open_time_s[span.anchors].astype(np.int64)
    steps = np.arange(1, span.horizon_bars + 1)
    ds = opens_s[:, None] + steps * span.table.series.bar_s
    keys = {
        "unique_id": SERIES,
        "ds": pd.to_datetime(ds.ravel(), unit="s"),
        "cutoff": pd.to_datetime(np.repeat(opens_s, len(steps)), unit="s"),
    }
    return pd.DataFrame(keys | {name: values.ravel() for name, values in methods.items()})


@pytest.mark.tf
@pytest.mark.parametrize("scaling", ["anchored", "ranged", "standard"])
def test_outputs_become_prices_whatever_the_scaling(
    scaling: str, trained_run: Any, make_profile: Callable[..., Profile]
) -> None:
    features = (*make_profile().features, *(["recent_range"] if scaling == "ranged" else []))
    profile = make_profile(scaling=scaling, features=features)
    table = v8.evaluate(Halfway(1.0), trained_run.candles, profile, series=SERIES)
    mine = table[table["method"] == "model"]
    assert mine["task"].tolist() == list(profile.tasks)
    assert (mine["relative_mae"] < 1e-3).all()  # targets are in single precision


@pytest.mark.tf
def test_a_model_has_the_numbers_of_an_evaluation(
    trained_run: Any, profile: Profile, data: SeriesData
) -> None:
    table = v8.evaluate(Halfway(), trained_run.candles, profile, series=SERIES).set_index(["task", "method"])
    span = data.spans["test"]
    forecasts = {
        task: data.scaling.unscale_targets(span, task, 0.5 * data.scaling.scale_targets(span, task))
        for task in profile.tasks
    }
    evaluation, _ = evaluate_windows(data, forecasts)
    for task in profile.tasks:
        row = table.loc[task, "model"]
        assert row["num_windows"] == evaluation.num_windows
        for baseline, ending in (("naive", ""), (evaluation.best_baseline(task), "_to_best")):
            expected = evaluation.relative_error(task, baseline=baseline)
            assert row[f"relative_mae{ending}"] == pytest.approx(expected, rel=1e-4)
            assert table.loc[task, baseline][f"relative_mae{ending}"] == 1.0
    assert table.index.get_level_values("task").unique().tolist() == list(profile.tasks)


@pytest.mark.tf
def test_frames_and_models_stand_on_one_table_on_the_windows_that_all_have(
    trained_run: Any, profile: Profile, data: SeriesData
) -> None:
    span = data.spans["test"]
    close = span.actual["ohlc"][:, :, 3]
    naive = np.repeat(span.last_close[:, None], span.horizon_bars, axis=1)
    frame = frame_of(data, perfect=close, still=naive, **{"still-lo-90": 0 * naive})
    frame = frame[frame["cutoff"] >= frame["cutoff"].iloc[10 * span.horizon_bars]]
    frame.loc[frame.index[-1], "still"] = np.nan  # its last window is not whole
    table = v8.evaluate({"mine": Halfway(), "frame": frame}, trained_run.candles, profile, series=SERIES)
    assert set(table["method"]) == {"mine", "perfect", "still", "naive", "range_paths"}
    assert set(table["task"]) == {"close"}
    assert set(table["num_windows"]) == {len(span) - 11} and set(table["num_steps"]) == {span.horizon_bars}
    by_method = table.set_index("method")
    assert by_method.loc["perfect", "mae"] == 0.0 and table["method"].iloc[0] == "perfect"
    assert by_method.loc["still", "relative_mae"] == pytest.approx(1.0)
    # Fewer steps, where a method has no more.
    short = frame[frame["ds"] - frame["cutoff"] <= pd.Timedelta(minutes=15)][["ds", "cutoff", "perfect"]]
    assert set(v8.evaluate(short, trained_run.candles, profile, series=SERIES)["num_steps"]) == {1}


@pytest.mark.tf
def test_what_is_no_forecast_is_refused(trained_run: Any, profile: Profile, data: SeriesData) -> None:
    def refused(forecasts: Any, **options: Any) -> str:
        with pytest.raises(ArgumentError) as error:
            v8.evaluate(forecasts, trained_run.candles, profile, **{"series": SERIES} | options)
        return str(error.value)

    frame = frame_of(data, mine=np.ones((len(data.spans["test"]), data.spans["test"].horizon_bars)))
    assert "got [1.0]" in refused([1.0])
    assert "an empty mapping" in refused({})
    assert "got the columns" in refused(frame[["ds", "mine"]])
    assert "no series=" in refused(frame, series=None)
    assert "0 of mine" in refused(frame.assign(unique_id="ETHUSDT-15m"))
    assert "got 'closed'" in refused(frame, column="closed")

    class Narrow(Halfway):
        def predict(self, dataset: Any, verbose: int = 0) -> Any:
            return {task: values[:, :1] for task, values in super().predict(dataset).items()}

    assert "has an output ohlc of shape" in refused(Narrow())
