"""Drills of the published live record: days that others changed in its dataset, receivers that never end.

A day that differs from the ledger is refused with exit code 5 and left unchanged, except for one that holds
its rows twice, which `--repair` sends again. Sending messages to a receiver may take 300 s in all; the others
wait for the next call.
"""

# ruff: noqa: E402 - Hub, receiver and entries are next to the tests
from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from drills.ground import DRILLS, REPOSITORY, Drill, Ground, Place
from drills.ledger import NAMES, NUM_LATER, NUM_PAST, train

sys.path[:0] = [str(REPOSITORY / "tests" / "publish" / "hub"), str(REPOSITORY / "tests" / "parts")]

import loopback
from broken_http import RawServer, drip
from exchange_api import ExchangeApi
from later_candles import BEGIN_S, with_future
from ledger_entries import FIRST_S, made_entry
from watched_replay import AFTER_CLOSE_S, MOVED_CLOCK
from webhooks import SECRET, WebhookReceiver

from v8.annexes.live.ledger.database import Ledger

KIND = "record"
REPO = "someone/record"
DATASET = "datasets/someone/record"
NUM_CLOSES = 20
MANY_ROWS = 5_000_000
RECEIVER_LIMIT_S = 300.0
STARTS_S = 120.0
"""A command needs this long for all else, on a machine with other work."""

Change = Callable[[bytes], bytes]
"""What somebody makes of a day that was published."""


def _written(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    return stream.getvalue()


def _read(content: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(content))


def with_list(content: bytes) -> bytes:
    """Make a column of lists."""
    table = _read(content).replace_schema_metadata(None)
    place = table.schema.get_field_index("close")
    return _written(table.set_column(place, "close", pa.array([[1, 2]] * len(table))))


def with_mapping(content: bytes) -> bytes:
    """Make a column of mappings."""
    table = _read(content).replace_schema_metadata(None)
    place = table.schema.get_field_index("close")
    return _written(table.set_column(place, "close", pa.array([{"a": 1}] * len(table))))


def with_many_rows(content: bytes) -> bytes:
    """Repeat the first row, millions of times in kilobytes."""
    row = _read(content).slice(0, 1).replace_schema_metadata(None)
    return _written(pa.concat_tables([row] * 1_000).combine_chunks().take(pa.array([0] * MANY_ROWS)))


def with_words(content: bytes) -> bytes:
    """Write what is no JSON where pandas describes the columns, and another row."""
    changed = pd.read_parquet(io.BytesIO(content)).assign(close=1.0)
    table = pa.Table.from_pandas(changed, preserve_index=False)
    return _written(table.replace_schema_metadata({"pandas": b"{zz"}))


def twice(content: bytes) -> bytes:
    """Put all rows behind themselves."""
    return _written(pa.concat_tables([_read(content)] * 2))


CHANGES: dict[str, Change] = {
    "a column of lists": with_list,
    "a column of mappings": with_mapping,
    "5 million rows in a small file": with_many_rows,
    "metadata `{zz` and other rows": with_words,
    "no Parquet": lambda content: b"PAR1 and nothing else",
}


def publish_over(change: Change, is_repairable: bool, ground: Ground, place: Place) -> str:
    """Publish a ledger, let somebody change a day in the repository, and publish again."""
    ledger = place.runs / "ledger.sqlite"
    path = f"forecasts/{pd.Timestamp(FIRST_S, unit='s'):%Y-%m-%d}.parquet"
    with Ledger.open_to_write(ledger) as book:
        for close in range(NUM_CLOSES):
            book.add(made_entry(close))
    words = ["track", str(place.runs / "tiny"), "--ledger", str(ledger), "--publish", REPO]
    with loopback.LoopbackHub() as hub:
        place.more_env |= {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": loopback.WRITE_TOKEN,
            "HF_HOME": str(place.folder.parent / "hf-home"),
        }
        first = place.call(words)
        place.require(first.status == 0, f"publishing ended with {first.status}: {first.message}")
        good = hub.files(DATASET)[path]
        hub.commit(DATASET, {path: change(good)})
        changed = hub.files(DATASET)[path]
        refused = place.call(words)
        place.require(refused.status == 5, f"exit {refused.status}: {refused.message}")
        place.require(path in refused.errors, "the day is not named")
        repaired = place.call([*words, "--repair"])
        expected = (0, good) if is_repairable else (5, changed)
        place.require(
            (repaired.status, hub.files(DATASET)[path]) == expected,
            f"--repair ended with {repaired.status}: {repaired.message}",
        )
    return (
        "refused with the day; repaired" if is_repairable else "refused with the day, and left as it stands"
    )


DRIPS: dict[str, Sequence[bytes | float]] = {
    "a header of 1 byte/s": [b"HTTP/1.1 200 OK\r\nX: ", *drip(b"x", 1.0, 1_000)],
    "100 Continue for ever": [b"HTTP/1.1 100 Continue\r\n\r\n", 0.5] * 2_000,
}


def post_to(pieces: Sequence[bytes | float], ground: Ground, place: Place) -> str:
    """Post to a receiver that never ends its answer, then to one that takes everything."""
    train(place)
    place.more_env["V8_POST_SECRET"] = SECRET
    words = ["forecast", str(place.run), "--ledger", str(place.runs / "ledger.sqlite"), "--post"]
    with ExchangeApi() as exchange:
        for name in NAMES:
            exchange.put(name, with_future(name, NUM_PAST, NUM_LATER))
        place.more_env.update(V8_REST_URL=exchange.url, V8_VISION_URL=exchange.url)
        exchange.now_s = BEGIN_S + AFTER_CLOSE_S
        with closing(RawServer(list(pieces))) as dripping:
            met = place.call([*words, dripping.url], program=(str(MOVED_CLOCK),))
        place.require(met.status == 5, f"exit {met.status}: {met.message}")
        place.require(met.seconds < RECEIVER_LIMIT_S + STARTS_S, f"took {met.seconds:.0f} s")
        with WebhookReceiver() as receiver:
            healed = place.call([*words, receiver.url], program=(str(MOVED_CLOCK),))
            place.require(healed.status == 0, f"healed, it ended with {healed.status}: {healed.message}")
            if len({*receiver.forecasts}) != len(NAMES) or len(receiver.forecasts) != len(NAMES):
                place.lost.append(f"messages: {len(receiver.forecasts)} of {len(NAMES)}")
    return "gave up in a sentence; healed, every message once"


DRILLS.append(Drill(KIND, "a day with all rows twice", partial(publish_over, twice, True), "small"))
for _fault, _change in CHANGES.items():
    DRILLS.append(Drill(KIND, f"a day with {_fault}", partial(publish_over, _change, False), "usual"))
for _fault, _pieces in DRIPS.items():
    DRILLS.append(Drill(KIND, f"--post: {_fault}", partial(post_to, _pieces), "long"))
