"""`python -m v8 data`: what it says of candles before a run; `data update`: what was done, in a table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from exchange_api import NOW_S, ExchangeApi
from narrow import require_narrow
from typer.testing import CliRunner

from v8.cli.app import app
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.data.windows import fewest_bars
from v8.profile.profile import load_profile

NAMES = ("BTCUSDT-15m", "ETHUSDT-1h")


@pytest.fixture
def exchange(exchange_api: ExchangeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> ExchangeApi:
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    for name in NAMES:
        series = Series.parse(name)
        frame = open_source("demo").candles(series, 1_200).to_frame()
        first_s = NOW_S // series.bar_s * series.bar_s - 1_000 * series.bar_s
        frame.insert(0, "open_time", [(first_s + row * series.bar_s) * 1_000 for row in range(1_200)])
        exchange_api.put(name, frame)
    return exchange_api


def update(*words: str, names: tuple[str, ...] = NAMES) -> Any:
    chosen = [word for name in names for word in ("--series", name)]
    return CliRunner().invoke(app, ["data", "update", *chosen, *words])


def test_an_update_says_what_came_what_was_revised_and_what_is_missing(exchange: ExchangeApi) -> None:
    exchange.cut_hole(NAMES[0], NOW_S // 900 * 900 - 20 * 900, NOW_S // 900 * 900 - 18 * 900)
    first = update("--bars", "900")
    assert first.exit_code == 0, first.output
    assert re.search(r"BTCUSDT-15m +997 +2024-09-04T11:45:00Z +997 +0 +0 +3", first.output)
    assert re.search(r"ETHUSDT-1h +1,000 +2024-09-04T11:00:00Z +1,000 +0 +0 +0", first.output)
    assert re.search(r"clock is .* ahead of the exchange's", first.output)
    exchange.now_s += 7_200
    exchange.revise(NAMES[1], NOW_S // 3_600 * 3_600 - 3_600, volume=1.0)
    again = update("--bars", "900")
    assert re.search(r"BTCUSDT-15m +1,005 +2024-09-04T13:45:00Z +8 +0 +0 +3", again.output)
    assert re.search(r"ETHUSDT-1h +1,002 +2024-09-04T13:00:00Z +2 +1 +1 +0", again.output)


@pytest.mark.parametrize("word", ["update", None])
def test_what_the_api_says_now_can_be_accepted(exchange: ExchangeApi, word: str | None) -> None:
    update("--bars", "900")
    changed_s = NOW_S // 900 * 900 - 50 * 900
    exchange.revise(NAMES[0], changed_s, volume=1.0)
    assert re.search(r"BTCUSDT-15m +1,000 .* +0 +0 +0 +0", update("--bars", "900").output)
    words = [word] if word else []
    result = CliRunner().invoke(app, ["data", *words, "--series", NAMES[0], "--accept-revision"])
    assert re.search(r"BTCUSDT-15m +1,000 +2024-09-04T11:45:00Z +0 +1 +1 +0", result.output)
    candles = open_source("live").candles(Series.parse(NAMES[0]), 900)
    assert candles.column("volume")[candles.open_time_s == changed_s] == 1.0


def test_a_series_that_fails_exits_3_and_the_others_are_updated(exchange: ExchangeApi) -> None:
    updated = update("--bars", "900", names=("NOPEUSDT-1h", NAMES[0]))
    assert updated.exit_code == 3
    assert "1 of 2 series " in updated.output
    assert "-1121 Invalid symbol." in " ".join(updated.output.split())
    assert re.search(r"BTCUSDT-15m +1,000", updated.output)
    require_narrow(updated.stdout, "2024-09-04T11:45:00Z")


def test_a_symbol_that_no_exchange_has_fails_alone_and_is_not_asked_for(exchange: ExchangeApi) -> None:
    updated = update("--bars", "900", names=(NAMES[0], "BRK.B-1d", NAMES[1]))
    assert updated.exit_code == 3
    assert "1 of 3 series " in updated.output
    assert "BRK.B-1d" in updated.output
    assert "letters and digits" in updated.output
    assert re.search(r"BTCUSDT-15m +1,000", updated.output)
    assert re.search(r"ETHUSDT-1h +1,000", updated.output)
    assert {asked["symbol"] for asked in exchange.klines_requests()} == {"BTCUSDT", "ETHUSDT"}


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


def test_candles_that_are_too_few_for_a_model_are_named(tmp_path: Path) -> None:
    minutes(every=5_000).iloc[:50].to_csv(tmp_path / "BTCUSDT-1m.csv", index=False)
    minutes(every=5_000).to_csv(tmp_path / "ETHUSDT-1m.csv", index=False)
    (short,) = (line for line in printed_by_data(tmp_path) if line.startswith("Too short"))
    assert f"{fewest_bars(load_profile('frontier')):,} candles" in short
    assert "BTCUSDT-1m" in short and "ETHUSDT" not in short


def test_bars_that_open_at_odd_minutes_are_named(tmp_path: Path) -> None:
    for name, late_min in (("BTCUSDT", 7), ("ETHUSDT", 0)):
        frame = minutes(every=5_000)
        frame["open_time"] = START_S + 3_600 * np.arange(len(frame)) + 60 * late_min
        frame.to_csv(tmp_path / f"{name}-1h.csv", index=False)
    (odd,) = (line for line in printed_by_data(tmp_path) if "bars open" in line)
    assert odd.startswith("BTCUSDT-1h: bars open 7 min")
