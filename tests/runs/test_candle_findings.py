"""What is said of candles before a run trains: once for all series that share it, nothing of sound ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.profile.profile import load_profile
from v8.runs.reading import age_findings, candle_findings, hole_findings, leap_findings

START_S = 1_704_067_200
DAY_S = 86_400
FRONTIER = load_profile("frontier")


def walk(name: str, *, num: int = 3_300, every: int = 0, leap: float = 1.0, end_s: int = 0) -> Candles:
    """Minutes of which one in so many is missing, whose price leaps in the middle."""
    rng = np.random.default_rng(len(name))
    close = 100 * np.exp(np.cumsum(rng.normal(0, 1e-3, num))) * np.where(np.arange(num) < num // 2, 1, leap)
    start_s = end_s - 60 * num if end_s else START_S
    rows = {"open_time": start_s + 60 * np.arange(num), "open": close, "high": close, "low": close}
    frame = pd.DataFrame({**rows, "close": close, "volume": 1.0})
    kept = frame[np.arange(num) % every != 0] if every else frame
    return check_candles(kept, Series(name, "1m"), source="files")


def end_of(candles: Candles) -> int:
    return int(candles.open_time_s[-1]) + 60


def test_nothing_is_said_of_sound_candles() -> None:
    sound = [walk("BTCUSDT"), walk("ETHUSDT")]
    assert list(candle_findings(FRONTIER, sound, end_of(sound[0]) + 2 * DAY_S)) == []


def test_a_series_with_few_windows_is_named_with_its_counts_and_a_profile_that_keeps_more() -> None:
    (sentence,) = hole_findings(FRONTIER, [walk("BTCUSDT", every=300), walk("ETHUSDT")])
    assert sentence.startswith("BTCUSDT-1m: ")
    assert "(9 %): 209 to train on, 30 to validate, 31 to test" in sentence
    assert "v3 keeps 8" in sentence
    assert "ETHUSDT" not in sentence


def test_forty_series_with_holes_are_one_sentence() -> None:
    many = [walk(f"A{number}USDT", every=300) for number in range(40)]
    (sentence,) = hole_findings(FRONTIER, many)
    assert "40 series" in sentence
    assert len(sentence) < 500


def test_leaps_are_pointed_out_once_with_their_factor() -> None:
    (alone,) = leap_findings([walk("LUNAUSDT", leap=1_000.0), walk("BTCUSDT")])
    assert "LUNAUSDT-1m to 1,000 times" in alone
    assert "1,650 candles" in alone
    (both,) = leap_findings([walk("LUNAUSDT", leap=1_000.0), walk("SHIBUSDT", leap=0.2)])
    assert "1/5 of" in both


def test_a_symbol_that_was_listed_again_is_said_to_be_another_coin() -> None:
    luna = walk("LUNAUSDT").with_report(relisted_at="2022-05-31T06:00:00Z", relisted_factor=168_000.0)
    (sentence,) = leap_findings([luna])
    assert "LUNAUSDT-1m at 2022-05-31T06:00:00Z, at 170,000 times" in sentence


def test_a_series_whose_last_candle_is_812_days_old_is_said_to_be_old() -> None:
    old = walk("MATICUSDT")
    (sentence,) = age_findings([old], end_of(old) + 812 * DAY_S)
    assert "MATICUSDT-1m" in sentence
    assert "812 days" in sentence
    midnight = walk("MATICUSDT", end_s=START_S + 90 * DAY_S)  # its newest candle opens at 23:59
    assert end_of(midnight) == START_S + 90 * DAY_S
    (sentence,) = age_findings([midnight], START_S + 1_000 * DAY_S)
    assert "of 2024-03-30" in sentence
    assert list(candle_findings(FRONTIER, [old], end_of(old) + 812 * DAY_S, has_own_end=True)) == []


def test_forty_old_series_are_one_sentence_and_those_that_ended_before_another() -> None:
    now_s = START_S + 1_000 * DAY_S
    many = [walk(f"A{number}USDT", end_s=now_s - 100 * DAY_S) for number in range(40)]
    (sentence,) = age_findings(many, now_s)
    assert "40 series" in sentence
    early = [walk("LUNAUSDT", end_s=now_s - 900 * DAY_S), walk("FTTUSDT", end_s=now_s - 110 * DAY_S)]
    late, all_old = age_findings([*many, *early], now_s)
    assert late.index("LUNAUSDT-1m") < late.index("FTTUSDT-1m")
    assert "40 series" in all_old


def test_series_that_ended_are_said_although_others_are_current() -> None:
    now_s = START_S + 1_000 * DAY_S
    current = walk("BTCUSDT", end_s=now_s - 600)
    ended = walk("LUNAUSDT", end_s=now_s - 20 * DAY_S)
    (sentence,) = age_findings([current, ended], now_s)
    assert "LUNAUSDT-1m on " in sentence
    assert list(age_findings([current], now_s)) == []


def test_candles_that_a_run_is_pinned_to_are_not_called_old() -> None:
    pinned = walk("BTCUSDT")
    pinned = replace(pinned, report=replace(pinned.report, num_newer=500))
    assert list(age_findings([pinned], end_of(pinned) + 812 * DAY_S)) == []
