"""Drills with SIGKILL of `forecast --every`: its ledger must equal that of an undisturbed one.

An exchange on loopback serves two timeframes; its clock moves on by a close when all rows of the previous one
are in the ledger. Every row is compared: when it was written, every number of the model and of every
baseline, and every score.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from exchange_api import ExchangeApi
from later_candles import BEGIN_S, with_future
from watched_replay import AFTER_CLOSE_S, MOVED_CLOCK, WatchedReplay, ledger_rows

from drills.ground import Ground, Place, drill, kill, train_on_past

KIND = "ledger"
NAMES = ("BTCUSDT-15m", "ETHUSDT-1h")
NUM_PAST = 1_600
NUM_LATER = 200
NUM_CLOSES = 24
KILLS_OF_SIZE = {"small": 1, "usual": 10, "long": 10}
LATEST_S = 12.0
"""Seconds after a close up to which a process is killed: it has started, compiled and forecast by then."""


@contextmanager
def exchange_of(place: Place) -> Iterator[ExchangeApi]:
    """Train both series on the past, and serve what follows."""
    train_on_past(place, NAMES, NUM_PAST)
    with ExchangeApi() as exchange:
        for name in NAMES:
            exchange.put(name, with_future(name, NUM_PAST, NUM_LATER))
        place.more_env.update(V8_REST_URL=exchange.url, V8_VISION_URL=exchange.url)
        yield exchange


def watch(
    place: Place,
    exchange: ExchangeApi,
    name: str,
    kills: Mapping[int, float],
    at_close: Callable[[int], object] = lambda number: None,
) -> dict[str, Any]:
    """Watch the run through all closes; return the rows of the ledger."""
    exchange.now_s = BEGIN_S + AFTER_CLOSE_S
    ledger = place.runs / name
    words = ["forecast", str(place.run), "--every", "--ledger", str(ledger)]

    def start() -> subprocess.Popen[bytes]:
        return place.start(words, program=(str(MOVED_CLOCK),))

    replay = WatchedReplay(exchange, ledger, "./tiny", start)
    try:
        replay.go(NAMES, NUM_CLOSES, kills, at_close)
    finally:
        kill(replay.process)
        place.finish(replay.process, is_killed=True)
    return ledger_rows(ledger)


@drill(KIND, "`forecast --every` over two timeframes killed at random times")
def kill_a_watch(ground: Ground, place: Place) -> str:
    with exchange_of(place) as exchange:
        straight = watch(place, exchange, "straight.sqlite", {})
        closes = place.chance.sample(range(NUM_CLOSES), KILLS_OF_SIZE[ground.size])
        # Half of the kills come while a process that has been there for long forecasts and writes.
        kills = {close: place.chance.uniform(0, place.chance.choice((1.0, LATEST_S))) for close in closes}
        killed = watch(place, exchange, "killed.sqlite", kills)
    for table, expected in straight.items():
        place.require(len(expected) > 0, f"no {table}")
        if killed[table] != expected:
            num = sum(row not in killed[table] for row in expected)
            place.lost.append(f"{num} of {len(expected)} {table}, {len(killed[table])} found")
    num_rows = sum(map(len, straight.values()))
    return f"{len(kills)} kills, the same {num_rows} rows to the bit"


@drill(KIND, "`track --backup` and a changed bit beside `forecast --every`")
def back_up_a_watch(ground: Ground, place: Place) -> str:
    """Copy the ledger of a watch at some closes; then change bits of the copy, each of which must be seen."""
    ledger = place.runs / "watched.sqlite"
    copy = place.folder / "copy.sqlite"
    copied_rows: list[dict[str, list[Any]]] = []
    words = ["track", "--ledger", str(ledger), "--backup", str(copy)]

    def back_up(number: int) -> None:
        if number % 8:
            return
        backup = place.call(words)
        place.require(backup.status == 0, f"the backup ended with {backup.status}: {backup.message}")
        copied_rows.append(ledger_rows(copy))

    with exchange_of(place) as exchange:
        rows = watch(place, exchange, ledger.name, {}, back_up)
    for number, copied in enumerate(copied_rows):
        issued = 8 * number + 1  # closes of the shorter timeframe
        place.require(len(copied["forecasts"]) >= issued, f"{len(copied['forecasts'])} after {issued} closes")
        place.require(
            all(row in rows["forecasts"] for row in copied["forecasts"]), "a copy holds other forecasts"
        )
    place.require(place.call(words).status == 0, "the last backup")
    place.require(ledger_rows(copy) == rows, "the last copy holds other rows")
    content = copy.read_bytes()
    losses = next(row[5] for row in rows["scores"] if row[5])
    for _ in range(4):
        changed = bytearray(content)
        changed[content.index(losses) + place.chance.randrange(len(losses))] ^= 1 << place.chance.randrange(8)
        copy.write_bytes(changed)
        seen = place.call(["track", str(place.run), "--ledger", str(copy)])
        place.require((seen.status, seen.output) == (3, ""), f"a changed bit: {seen.status}, {seen.message}")
    return f"{len(copied_rows)} copies while it was written, 4 changed bits refused"
