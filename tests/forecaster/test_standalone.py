"""`features.py` without v8 computes what the feature store computes."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from walked_market import checked, walked_market

from v8.data.feature_store import FeatureStore
from v8.data.market.candles import Candles
from v8.data.market.companions import Companions
from v8.forecaster.standalone import features_code, obstacle
from v8.profile.indicators import FEATURES, covariate_inputs, warmup_bars
from v8.profile.profile import load_profile, profile_names
from v8.profile.tasks import TASKS

NUM_ROWS = 700
EVERY = tuple(FEATURES)
LATER = "2030-01-01"


def module_of(features: tuple[str, ...], lookback_bars: int = 20) -> Any:
    tasks = {name: task.columns for name, task in TASKS.items()}
    code = features_code(
        profile="mine",
        features=features,
        lookback_bars=lookback_bars,
        horizon_bars=2,
        tasks=tasks,
        quantiles=(0.05, 0.5, 0.95),
    )
    module = ModuleType("features")
    exec(compile(code, "features.py", "exec"), vars(module))
    return module


def assert_equal_to_the_store(inputs: pd.DataFrame, candles: Candles, folder: Path) -> None:
    table = FeatureStore(folder).table(candles, tuple(inputs.columns))
    newest = table.segment == table.segment[-1]  # the file leaves out what lies before a gap
    opens = pd.to_datetime(table.open_time_s[newest], unit="s", utc=True)
    assert list(inputs.index) == list(opens)
    assert (inputs.dtypes == np.float32).all()
    stored = table.select(tuple(inputs.columns))[newest]
    np.testing.assert_allclose(inputs.to_numpy(), stored, rtol=1e-6, atol=0.0)


def test_every_feature_is_that_of_the_store(tmp_path: Path) -> None:
    frame = walked_market(1, NUM_ROWS)
    assert_equal_to_the_store(module_of(EVERY).compute(frame, now=LATER), checked(frame, "ETHUSDT"), tmp_path)


def test_after_a_gap_only_later_candles_count(tmp_path: Path) -> None:
    frame = walked_market(5, NUM_ROWS).drop(index=range(350, 353))
    assert_equal_to_the_store(module_of(EVERY).compute(frame, now=LATER), checked(frame, "ETHUSDT"), tmp_path)


def test_other_series_and_tables_are_read_too(tmp_path: Path) -> None:
    frame = walked_market(6, NUM_ROWS)
    bitcoin = walked_market(60, NUM_ROWS).drop(index=[100])
    names = ("close", "range_5", "BTCUSDT.close", "BTCUSDT.rolled_middle_3", "BTCUSDT.rsi")
    companions = Companions(covariate_inputs(names), in_memory={"BTCUSDT": bitcoin})
    joined = companions.joined(checked(frame, "ETHUSDT"))
    inputs = module_of(names).compute(frame, {"BTCUSDT": bitcoin}, now=LATER)
    assert_equal_to_the_store(inputs, joined, tmp_path)
    module = module_of(("close", "csv.rate"))
    rated = frame.assign(**{"csv.rate": np.where(frame.index == 400, np.nan, -0.5)})
    assert len(module.compute(rated, now=LATER)) == 299  # row 400 is left out, like a gap
    with pytest.raises(ValueError, match="candles of BTCUSDT"):
        module_of(names).compute(frame, now=LATER)


def test_every_shipped_profile_has_a_file_that_imports_numpy_and_pandas_alone() -> None:
    for name in profile_names():
        profile = load_profile(name)
        assert obstacle(profile.features) == ""
        code = features_code(
            profile=name,
            features=profile.features,
            lookback_bars=profile.lookback_bars,
            horizon_bars=profile.horizon_bars,
            tasks={},
            quantiles=(),
        )
        tree = ast.parse(code)
        imported = {
            (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        assert imported <= {"numpy", "pandas", "functools", "typing", "collections.abc"}
        module = module_of(profile.features)
        assert warmup_bars(profile.features) == module.WARMUP_BARS


def test_open_times_may_be_text_times_or_numbers_and_rows_in_any_order() -> None:
    frame = walked_market(7, NUM_ROWS)
    module = module_of(("close", "day_sin_1"))
    expected = module.compute(frame, now=LATER)
    times = pd.to_datetime(frame["open_time"], unit="s", utc=True)
    for other in (
        frame.assign(open_time=frame["open_time"] * 1_000),
        frame.assign(open_time=times.dt.strftime("%Y-%m-%d %H:%M:%S")),
        frame.assign(open_time=times).set_index("open_time"),
        frame.iloc[::-1],
    ):
        pd.testing.assert_frame_equal(module.compute(other, now=LATER), expected, check_index_type=False)


def test_a_candle_that_is_open_is_left_out() -> None:
    frame = walked_market(8, NUM_ROWS)
    newest = pd.Timestamp(int(frame["open_time"].iloc[-1]), unit="s", tz="UTC")
    module = module_of(("close",))
    assert module.compute(frame, now=newest).index[-1] == newest - pd.Timedelta(minutes=15)
    assert module.compute(frame, now=newest + pd.Timedelta(minutes=15)).index[-1] == newest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="close"), "; lacks close"),
        (lambda frame: frame.assign(close=-1.0), "close has values .* above zero"),
        (lambda frame: pd.concat([frame, frame.tail(1)]), "open time occurs twice"),
        (lambda frame: frame.head(10), "20 closed candles .*; got 10"),
        (lambda frame: frame.head(1), "got 0"),
        (lambda frame: frame.drop(columns="open_time"), "needs a column open_time"),
    ],
)
def test_candles_that_cannot_be_used_are_refused(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module_of(("close",)).compute(change(walked_market(9, NUM_ROWS)), now=LATER)


def test_outputs_become_a_table_of_the_coming_bars() -> None:
    module = module_of(("close",))
    inputs = module.compute(walked_market(10, NUM_ROWS), now=LATER)
    assert module.window(inputs).shape == (1, 20, 1)
    outputs: dict[str, Any] = {}
    for task, definition in TASKS.items():
        num_columns = len(definition.columns)
        outputs[task] = np.arange(2.0 * num_columns).reshape(1, 2, num_columns)
        outputs[f"{task}_quantiles"] = np.arange(6.0 * num_columns).reshape(1, 2, 3, num_columns)
    table = module.forecast_table(outputs, inputs)
    assert table.index[0] == inputs.index[-1] + pd.Timedelta(minutes=15)
    assert table["close"].tolist() == [3.0, 7.0]
    assert table["close_q95"].tolist() == [11.0, 23.0]  # (step * 3 levels + level 2) * 4 columns + column 3
    assert "close_q50" not in table.columns


def test_features_of_packages_and_plugins_have_no_file() -> None:
    assert obstacle(["close", "BTCUSDT.ta.rsi"]).startswith("BTCUSDT.ta.rsi is ")
    assert obstacle(["no_such_feature"]).startswith("no_such_feature is ")
