"""A small ledger of which some bytes are changed, and everything that reads it or adds to it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from ledger_entries import FIRST_S, ISSUER, made_entry, made_score

from fuzzing.cases import Case
from v8.annexes.live.app.service import LedgerReader
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.record import live_record

LEDGER: Final = "ledger.sqlite"


def _add_score(ledger: Ledger) -> None:
    for number, entry in [*ledger.pending(ISSUER.place, ISSUER.series).items()][:3]:
        losses = [[1.0] * len(ISSUER.tasks)] * len(ISSUER.forecasters)
        ledger.add_score(number, made_score(losses, entry))


@functools.cache
def _sound() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / LEDGER
        with Ledger.open_to_write(path) as ledger:
            for number in range(4):
                ledger.add(made_entry(number))
            _add_score(ledger)
        return path.read_bytes()


def _told(ledger: Ledger) -> str:
    """Return the live record and all forecasts with their scores."""
    rows = [json.dumps(live_record(ledger, ISSUER.place).to_json())]
    for entry, score in ledger.forecasts_of_day(ISSUER.place, ISSUER.series, FIRST_S):
        rows.append(json.dumps(entry.to_json()))
        rows.append(f"{score.scored_s} {score.actual_digest} {score.losses}" if score else "")
    return "\n".join(rows)


@functools.cache
def _sound_record() -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / LEDGER
        path.write_bytes(_sound())
        with Ledger.open(path) as ledger:
            return _told(ledger)


def ledger_case(random: Random) -> Case:
    """Change bytes of a ledger, often of its schema or of what is not empty."""
    content = bytearray(_sound())
    written = [place for place, byte in enumerate(content) if byte]
    for _ in range(random.choice((1, 1, 1, 2, 20))):
        place = random.choice((random.choice(written), random.choice(written), random.randrange(4_096)))
        content[place] = random.choice(
            (0xFF, 0, content[place] ^ 1, content[place] ^ 0x80, random.randrange(256))
        )
    if random.random() < 0.05:
        del content[random.randrange(len(content)) :]
    return Case("bytes", {LEDGER: bytes(content)})


def use_ledger(path: Path) -> None:
    """Read all that a ledger holds, as reports, pages and the live record do, and add to it."""
    place = ISSUER.place
    LedgerReader(path, place)()
    with Ledger.open(path) as ledger:
        ledger.places()
        for series in ledger.series(place):
            ledger.newest(place, series), ledger.pending(place, series), ledger.count_forecasts(place, series)
            ledger.scored(place, series), ledger.newest_actual_values(place, series, 9)
        live_record(ledger, place)
        ledger.require_intact()
        record = _told(ledger)
    if record != _sound_record():
        raise AssertionError("a changed ledger says something else")
    with Ledger.open_to_write(path) as ledger:
        ledger.add(made_entry(9))
        _add_score(ledger)
