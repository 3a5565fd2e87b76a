"""Drills with an exchange on loopback whose API is faulty until it is repaired: wrong candles, a wrong time.

A `predict --source live` that meets the fault either fails with an error message or prints the forecast of an
exchange without faults. What it stores of the fault must not outlive it: after the repair, the same command
prints that forecast. The exchange's time is in 2040, so that it differs from the clock of any machine.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
from exchange_api import ApiFault, ExchangeApi
from later_candles import BEGIN_S, with_future

from drills.ground import SERIES, Ground, Place, add, train_on_past
from v8.profile.columns import OHLC

KIND = "api"
NUM_PAST = 1_600
NOW_S = 2_208_988_800 + 420
"""2040-01-01T00:07:00Z."""

BAR_S = 3_600
DAY_S = 86_400
PRICE_TIMES = 1e6
"""The demo market's prices may be tiny; an exchange writes eight decimals."""

FOR_EVER = 40
"""Answers; a call asks for far fewer."""

Rows = list[list[Any]]


@dataclass(frozen=True)
class Misbehaviour:
    """What an API does wrong.

    Args:
        rows: Changes the rows of an answer.
        body: Sent instead of an answer.
        time_off_s: Seconds that its time is off.
        of: What it answers so.
        num_times: How often, after the question for the newest candle.
        is_believed: Whether a first call cannot know better.
    """

    rows: Callable[[Rows], Any] | None = None
    body: bytes | None = None
    time_off_s: float = 0.0
    of: str = "klines"
    num_times: int = FOR_EVER
    is_believed: bool = False

    def faults(self) -> list[ApiFault]:
        """Return it as the exchange takes it."""
        body = self.body
        if self.time_off_s:
            body = json.dumps({"serverTime": int((NOW_S + self.time_off_s) * 1_000)}).encode()
        first = [ApiFault()] if self.of == "klines" else []
        return [*first, *[ApiFault(rows=self.rows, body=body, of=f"/api/v3/{self.of}")] * self.num_times]


def times(factor: float, rows: Rows) -> Rows:
    rows[-1][1:5] = [f"{float(price) * factor:.12f}" for price in rows[-1][1:5]]
    return rows


def newest(place: int, value: Any, rows: Rows) -> Rows:
    rows[-1][place] = value
    return rows


def with_running(rows: Rows) -> Rows:
    last = rows[-1]
    return [*rows, [last[0] + BAR_S * 1_000, *last[1:6], last[6] + BAR_S * 1_000, *last[7:]]]


ONCE = partial(Misbehaviour, num_times=1)
SMALL = {
    "the newest candle x 900 once": ONCE(partial(times, 900.0)),
    "/time 30 days back": Misbehaviour(time_off_s=-30 * DAY_S, of="time"),
    "half of the rows once": ONCE(lambda rows: rows[: len(rows) // 2]),
}
USUAL = {
    "the newest candle / 900 once": ONCE(partial(times, 1 / 900)),
    "the newest candle x 1.5 once": ONCE(partial(times, 1.5)),
    "the newest candle x 900 twice, then as it is": Misbehaviour(
        partial(times, 900.0), num_times=2, is_believed=True
    ),
    "every other answer without its first half": Misbehaviour(lambda rows: rows[len(rows) // 2 :]),
    "no rows": Misbehaviour(lambda rows: []),
    "newest first": Misbehaviour(lambda rows: rows[::-1]),
    "a row twice": Misbehaviour(lambda rows: [*rows, rows[-1]]),
    "the running candle among the closed": Misbehaviour(with_running),
    "a price of 0": Misbehaviour(partial(newest, 3, "0.0")),
    "a price below 0": Misbehaviour(partial(newest, 3, "-1.0")),
    "a volume below 0": Misbehaviour(partial(newest, 5, "-1.0")),
    "a price NaN": Misbehaviour(partial(newest, 4, "NaN")),
    "a low above the high": Misbehaviour(lambda rows: newest(3, rows[-1][2] + "1", rows)),
    "numbers instead of texts": Misbehaviour(partial(newest, 4, 1.0)),
    "rows of six fields": Misbehaviour(lambda rows: [row[:6] for row in rows]),
    "a page instead of candles": Misbehaviour(body=b"<!doctype html><title>Please log in</title>"),
    "candles cut off": Misbehaviour(body=b'[[2208985200000,"1.0","1.'),
    "/time an hour back": Misbehaviour(time_off_s=-BAR_S, of="time"),
    "/time a day ahead": Misbehaviour(time_off_s=DAY_S, of="time"),
    "/time an hour ahead": Misbehaviour(time_off_s=BAR_S, of="time"),
    "/time 30 days ahead": Misbehaviour(time_off_s=30 * DAY_S, of="time"),
    "/time empty": Misbehaviour(body=b"{}", of="time"),
    "/time in seconds": Misbehaviour(body=b'{"serverTime": 2208989220}', of="time"),
    "/time no number": Misbehaviour(body=b'{"serverTime": "now"}', of="time"),
}


@cache
def candles() -> pd.DataFrame:
    """Return candles of the demo market as if they were of the days around `NOW_S`."""
    frame = with_future(SERIES, NUM_PAST, 100)
    frame[list(OHLC)] = (frame[list(OHLC)] * PRICE_TIMES).round(8)
    return frame.set_axis(frame.index + pd.Timedelta(NOW_S // BAR_S * BAR_S - BEGIN_S, unit="s"))


def forecast(place: Place, exchange: ExchangeApi) -> tuple[int | None, str, str]:
    """Forecast once; return the exit code, the messages and the forecast as it is printed."""
    place.more_env.update(V8_REST_URL=exchange.url, V8_VISION_URL=exchange.url)
    ended = place.call(["predict", str(place.run), "--series", SERIES, "--source", "live", "--format", "csv"])
    return ended.status, ended.message, ended.output


def expected(place: Place, run: Path) -> Path:
    """Write the forecast at an exchange that never misbehaves, and return the file."""
    shutil.copytree(run, place.run)
    with ExchangeApi(NOW_S) as exchange:
        exchange.put(SERIES, candles())
        status, message, printed = forecast(place, exchange)
    if status != 0:
        raise RuntimeError(f"the forecast that nobody disturbs ended with {status}: {message}")
    (place.folder / "expected.csv").write_text(printed)
    return place.folder / "expected.csv"


def meet_a_fault(fault: Misbehaviour, ground: Ground, place: Place) -> str:
    run = ground.once("api run", lambda other: train_on_past(other, (SERIES,), NUM_PAST))
    undisturbed = ground.once("api forecast", lambda other: expected(other, run)).read_text()
    shutil.copytree(run, place.run)
    with ExchangeApi(NOW_S) as exchange:
        exchange.put(SERIES, candles())
        exchange.faults = fault.faults()
        status, _, printed = forecast(place, exchange)
        place.require(status in (0, 3), f"exit {status}")
        if status == 0 and not fault.is_believed:
            place.require(printed == undisturbed, f"a false forecast: {printed.splitlines()[1][:80]}")
        exchange.faults = []
        again, message, printed = forecast(place, exchange)
    place.require(again == 0, f"healed, it ended with {again}: {message}")
    place.require(again != 0 or printed == undisturbed, "healed, another forecast")
    return "a sentence; healed, the same forecast" if status else "the same forecast"


for size, faults in (("small", SMALL), ("usual", USUAL)):
    for name, fault in faults.items():
        add(KIND, name, size, meet_a_fault, fault)
