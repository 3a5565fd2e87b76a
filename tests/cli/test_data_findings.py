"""`data` says of candles what a run would say before it trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from v8.cli.app import app

START_S = 1_704_067_200


def minutes(every: int, leap: float = 1.0) -> pd.DataFrame:
    """3,300 minutes of a random walk that leaps in the middle, of which one in so many is empty."""
    rng = np.random.default_rng(3)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 1e-3, 3_300)))
    close[1_650:] *= leap
    rows = {"open_time": START_S + 60 * np.arange(3_300), "open": close, "high": close, "low": close}
    frame = pd.DataFrame({**rows, "close": close, "volume": 1.0})
    frame.loc[frame.index % every == 0, ["open", "high", "low", "close", "volume"]] = np.nan
    return frame


def printed_by_data(folder: Path) -> list[str]:
    result = CliRunner().invoke(app, ["data", "--source", "files", "--data-dir", str(folder)])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_few_windows_and_old_candles_are_said_once(tmp_path: Path) -> None:
    minutes(every=300).to_csv(tmp_path / "BTCUSDT-1m.csv", index=False)
    lines = printed_by_data(tmp_path)
    (holes,) = (line for line in lines if "270 of 2,902 windows (9 %)" in line)
    assert "profile frontier" in holes
    assert sum("days ago" in line for line in lines) == 1


@pytest.mark.parametrize("leap", [5.0, 0.2])
def test_a_leap_is_said_once_with_its_factor(tmp_path: Path, leap: float) -> None:
    minutes(every=5_000, leap=leap).to_csv(tmp_path / "BTCUSDT-1m.csv", index=False)
    minutes(every=5_000).to_csv(tmp_path / "ETHUSDT-1m.csv", index=False)
    (said,) = (line for line in printed_by_data(tmp_path) if "leaps" in line)
    assert "BTCUSDT-1m to 5 times" in said if leap > 1 else "BTCUSDT-1m to 1/5 of" in said
    assert "ETHUSDT" not in said
