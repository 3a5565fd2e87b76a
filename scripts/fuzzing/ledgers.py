"""A small ledger, one or several of whose bytes are others, and all that reads and adds to one."""

from __future__ import annotations

import functools
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from v8.app.places import LedgerReader
from v8.live.entries import Entry, Issuer, Score
from v8.live.ledger import Ledger
from v8.live.record import live_record

LEDGER: Final = "ledger.sqlite"

_ISSUER: Final = Issuer(
    place="./tiny",
    series="BTCUSDT-15m",
    model_sha256="0" * 64,
    revision=None,
    seen_until_s=1_690_000_000,
    profile="tiny",
    profile_digest="1" * 64,
    source="live",
    bar_s=900,
    horizon_bars=2,
    tasks={"ohlc": ("open", "high", "low", "close"), "volatility": ("volatility",)},
    forecasters=("model", "roll_forward", "har"),
)


def _entry(number: int) -> Entry:
    issued_for_s = 1_700_006_400 + number * _ISSUER.bar_s
    values = np.full((len(_ISSUER.forecasters), _ISSUER.num_values), 100.0 + number, np.float32)
    return Entry(_ISSUER, issued_for_s, issued_for_s + 5, "2" * 64, values)


def _add_score(ledger: Ledger) -> None:
    for number, entry in [*ledger.pending(_ISSUER.place, _ISSUER.series).items()][:3]:
        losses = np.ones((len(_ISSUER.forecasters), len(_ISSUER.tasks)))
        ledger.add_score(number, Score(entry.due_s, "3" * 64, entry.values[0], losses))


@functools.cache
def _sound() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / LEDGER
        with Ledger.open_to_write(path) as ledger:
            for number in range(4):
                ledger.add(_entry(number))
            _add_score(ledger)
        return path.read_bytes()


def changed_ledger(random: Random) -> bytes:
    """Return a ledger with a byte that is another, often one of its schema or of what is not empty."""
    content = bytearray(_sound())
    written = [place for place, byte in enumerate(content) if byte]
    for _ in range(random.choice((1, 1, 1, 2, 20))):
        place = random.choice((random.choice(written), random.choice(written), random.randrange(4_096)))
        content[place] = random.choice(
            (0xFF, 0, content[place] ^ 1, content[place] ^ 0x80, random.randrange(256))
        )
    return bytes(content[: random.randrange(len(content))] if random.random() < 0.05 else content)


def use_ledger(path: Path) -> None:
    """Read all that a ledger tells, as reports, pages and the live record do, and add to it."""
    place = _ISSUER.place
    LedgerReader(path, place)()
    with Ledger.open(path) as ledger:
        ledger.places()
        for series in ledger.series(place):
            ledger.newest(place, series), ledger.pending(place, series), ledger.tally(place, series)
            ledger.issued_since(place, series, 0), ledger.scored(place, series)
            ledger.newest_truths(place, series, 9), ledger.entry(place, series, _entry(1).issued_for_s)
        live_record(ledger, place)
    with Ledger.open_to_write(path) as ledger:
        ledger.add(_entry(9))
        _add_score(ledger)
