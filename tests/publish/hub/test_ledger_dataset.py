"""The live record on the Hub: one commit a day, rows that are only ever added, and a card that reads them."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard
from ledger_entries import FIRST_S, ISSUER, made_entry, made_score
from typer.testing import CliRunner

from v8.annexes.live.entries import Entry, Score
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.record import live_record
from v8.annexes.live.reporting import LedgerDataset
from v8.base.errors import PublishError
from v8.base.wording import number
from v8.cli.app import app
from v8.profile.formulas import DAY_S
from v8.publish.hub.client import HubRetryPolicy
from v8.publish.hub.publish import Published, publish

REPO = "someone/record"
NAME = "datasets/someone/record"
FIRST = "2023-11-15"
SECOND = "2023-11-16"
RETRIES = HubRetryPolicy(sleep=lambda seconds: None)
CLOSES = 96
"""Closes of a day."""

LOSSES = [[1.0, 4.0], [2.0, 2.0], [4.0, 1.0]]

Send = Callable[..., Published]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open_to_write(tmp_path / "ledger.sqlite") as opened:
        opened._connection.execute("PRAGMA synchronous = OFF")  # no power is cut in these tests
        yield opened


@pytest.fixture
def send(ledger: Ledger, tmp_path: Path) -> Send:
    """Publish a ledger, so many days after the first, at noon."""

    def sent(book: Ledger = ledger, *, day: int = 0, is_repairing: bool = False) -> Published:
        folder = tmp_path / f"staged-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        staged = LedgerDataset(
            folder, REPO, book, book.path.with_name("tiny"), FIRST_S + day * DAY_S + DAY_S // 2, is_repairing
        )
        return publish(staged, REPO, is_private=False, retries=RETRIES)

    return sent


def fill(ledger: Ledger, closes: range, *, scored: bool = True, entry: Any = made_entry) -> None:
    for close in closes:
        one: Entry = entry(close)
        assert ledger.add(one)
        ((at, _),) = ledger.pending(ISSUER.place, one.issuer.series, one.issued_for_s).items()
        if scored:
            ledger.add_score(at, made_score(LOSSES, one))


def rows(hub: Any, path: str, revision: str = "main") -> pd.DataFrame:
    return pd.read_parquet(io.BytesIO(hub.files(NAME, revision)[path]))


def test_two_days_are_two_commits_and_the_second_only_adds(hub: Any, ledger: Ledger, send: Send) -> None:
    fill(ledger, range(40))
    first = send()
    assert first.url == f"{hub.url}/datasets/{REPO}/commit/{hub.commits(NAME)[0].oid}"
    fill(ledger, range(40, CLOSES + 30))
    second = send(day=1)
    assert second.sent is not None
    assert second.sent.files == {
        "added": [f"forecasts/{SECOND}.parquet", f"scores/{SECOND}.parquet"],
        "changed": ["README.md", f"forecasts/{FIRST}.parquet", f"scores/{FIRST}.parquet"],
        "kept": [".gitattributes"],
        "removed": [],
    }
    for kind in ("forecasts", "scores"):
        then, now = (rows(hub, f"{kind}/{FIRST}.parquet", each.oid) for each in hub.commits(NAME))
        pd.testing.assert_frame_equal(now.head(len(then)), then)
    # Closes times forecasters times bars ahead; closes times forecasters times tasks.
    assert [len(rows(hub, f"forecasts/{day}.parquet")) for day in (FIRST, SECOND)] == [96 * 3 * 2, 30 * 3 * 2]
    assert len(rows(hub, f"scores/{SECOND}.parquet")) == 30 * 3 * 2
    assert [commit.title for commit in hub.commits(NAME)] == [
        f"Forecasts up to {day}" for day in (FIRST, SECOND)
    ]


def test_what_the_ledger_holds_is_what_is_read_back(hub: Any, ledger: Ledger, send: Send) -> None:
    fill(ledger, range(2), scored=False)
    ((first, entry), (second, _)) = ledger.pending(ISSUER.place, ISSUER.series).items()
    ledger.add_score(first, made_score(LOSSES, entry))
    ledger.add_score(second, Score(FIRST_S + DAY_S, None, None, None))  # whose candles never came
    send()
    found = rows(hub, f"forecasts/{FIRST}.parquet")
    har = found[(found.forecaster == "har") & (found.issued_for == pd.Timestamp(FIRST_S, unit="s", tz="UTC"))]
    said = entry.issuer.split(entry.values[2])
    np.testing.assert_array_equal(har[["open", "high", "low", "close"]], said["ohlc"])
    np.testing.assert_array_equal(har["volatility"], said["volatility"][:, 0])
    assert har["bb_upper"].isna().all()
    assert [*har["step"]] == [1, 2]
    assert [*har["open_time"].dt.strftime("%H:%M:%S")] == ["00:00:00", "00:15:00"]
    assert har["written_at"].iloc[0] == pd.Timestamp(FIRST_S + 5, unit="s", tz="UTC")
    assert set(found["candles_digest"]) == {"2" * 64}
    scores = rows(hub, f"scores/{FIRST}.parquet")
    losses = scores.pivot(index=["issued_for", "forecaster"], columns="task", values="loss")
    np.testing.assert_array_equal(losses.to_numpy()[:3], [LOSSES[2], LOSSES[0], LOSSES[1]])  # by name
    assert scores["loss"].isna().sum() == 6
    assert scores["actual_digest"].isna().sum() == 6
    text = f"{found.to_csv()}{scores.to_csv()}"
    assert ISSUER.place not in text  # a path of somebody's machine is nobody's business


def test_there_is_one_commit_a_day_and_none_where_nothing_is_new(
    hub: Any, ledger: Ledger, send: Send
) -> None:
    fill(ledger, range(10))
    send()
    fill(ledger, range(10, 20))
    assert send().sent is None  # it waits for tomorrow
    assert send(day=1).sent is not None
    hub.forget()
    assert send(day=1).sent is None
    assert len(hub.commits(NAME)) == 2
    assert hub.count("resolve") == 0  # what is listed with the same digest is not downloaded
    assert len(rows(hub, f"forecasts/{FIRST}.parquet")) == 20 * 3 * 2


def test_scores_come_later_and_their_forecasts_stay_as_they_were(
    hub: Any, ledger: Ledger, send: Send
) -> None:
    fill(ledger, range(4), scored=False)
    send()
    assert "config_name: scores" not in hub.files(NAME)["README.md"].decode()
    for at, entry in ledger.pending(ISSUER.place, ISSUER.series).items():
        ledger.add_score(at, made_score(LOSSES, entry))
    assert send(day=1).sent.files["added"] == [f"scores/{FIRST}.parquet"]  # type: ignore[union-attr]
    files = [hub.files(NAME, each.oid)[f"forecasts/{FIRST}.parquet"] for each in hub.commits(NAME)]
    assert files[0] == files[1]


def changed(number: int, delay_s: int = 5) -> Entry:
    entry = made_entry(number, delay_s=delay_s)
    return replace(entry, values=entry.values + (number == 3))


def test_a_ledger_that_says_something_else_than_was_published_is_refused(
    hub: Any, ledger: Ledger, send: Send, tmp_path: Path
) -> None:
    fill(ledger, range(10))
    send()
    with Ledger.open_to_write(tmp_path / "other.sqlite") as other:
        fill(other, range(20), entry=changed)
        with pytest.raises(PublishError) as refused:
            send(other, day=1)
    error = refused.value
    # The one that differs: three forecasters, two bars ahead.
    assert error.where == REPO
    assert re.fullmatch(rf"6 of 60 rows .* in forecasts/{FIRST}\.parquet", error.got)
    assert len(hub.commits(NAME)) == 1


def test_a_ledger_that_lacks_rows_is_refused_on_the_day_of_its_commit_too(
    hub: Any, ledger: Ledger, send: Send, tmp_path: Path
) -> None:
    fill(ledger, range(CLOSES + 10))
    send(day=1)
    with Ledger.open_to_write(tmp_path / "shorter.sqlite") as shorter:
        fill(shorter, range(CLOSES + 9))
        with pytest.raises(PublishError, match=r"someone/record: .*got 6 of 60 rows"):
            send(shorter, day=1)
    with Ledger.open_to_write(tmp_path / "day.sqlite") as day:
        fill(day, range(CLOSES))
        with pytest.raises(PublishError, match=rf"got 2 files .*: forecasts/{SECOND}"):
            send(day, day=2)
    assert len(hub.commits(NAME)) == 1


def test_rows_that_others_wrote_otherwise_are_no_difference(hub: Any, ledger: Ledger, send: Send) -> None:
    """The bytes of a file are those of whatever version of the writer wrote it."""
    fill(ledger, range(10))
    send()
    path = f"forecasts/{FIRST}.parquet"
    stream = io.BytesIO()
    rows(hub, path).to_parquet(stream, index=False, compression="gzip")
    hub.commit(NAME, {path: stream.getvalue()})
    assert send(day=1).sent is None
    hub.commit(NAME, {path: b"no table"})
    with pytest.raises(PublishError, match=rf"got a file without rows, in {path}"):
        send(day=1)


def parquet_of(frame: pd.DataFrame) -> bytes:
    stream = io.BytesIO()
    frame.to_parquet(stream, index=False)
    return stream.getvalue()


def doubled(hub: Any, path: str) -> bytes:
    """Return a day file with itself behind itself."""
    return parquet_of(pd.concat([rows(hub, path)] * 2))


def test_rows_that_stand_there_twice_are_refused_and_sent_again_where_asked(
    hub: Any, ledger: Ledger, send: Send
) -> None:
    """At 967f431 there was nothing to send, and the rows stayed twice for ever."""
    fill(ledger, range(CLOSES))
    send()
    path = f"forecasts/{FIRST}.parquet"
    good = rows(hub, path)
    hub.commit(NAME, {path: doubled(hub, path)})
    assert len(rows(hub, path)) == 2 * len(good)
    for day in (0, 1):
        with pytest.raises(PublishError, match=rf"got rows more .* in {path}\. .* --repair"):
            send(day=day)
    assert len(hub.commits(NAME)) == 2
    assert send(is_repairing=True).sent.files["changed"] == [path]  # type: ignore[union-attr]
    pd.testing.assert_frame_equal(rows(hub, path), good)
    assert send(is_repairing=True).sent is None


def test_track_names_the_day_with_exit_code_5_and_repairs_it(hub: Any, ledger: Ledger, send: Send) -> None:
    fill(ledger, range(10))
    send()
    path = f"forecasts/{FIRST}.parquet"
    good = hub.files(NAME)[path]
    hub.commit(NAME, {path: doubled(hub, path)})
    words = ["track", str(ledger.path.with_name("tiny")), "--ledger", str(ledger.path), "--publish", REPO]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 5
    assert re.search(rf"got rows more .* in {path}", refused.stderr)
    assert "--repair" in refused.stderr
    repaired = CliRunner().invoke(app, [*words, "--repair"])
    assert repaired.exit_code == 0, repaired.stderr
    assert hub.files(NAME)[path] == good
    result = CliRunner().invoke(app, [*words[:-2], "--repair"])
    assert (result.exit_code, "--repair: repairs what was published" in result.stderr) == (2, True)


def test_a_repair_never_takes_away_a_row_that_the_ledger_lacks(hub: Any, ledger: Ledger, send: Send) -> None:
    fill(ledger, range(10))
    send()
    path = f"forecasts/{FIRST}.parquet"
    strange = rows(hub, path).head(1).assign(close=1.0)
    hub.commit(NAME, {path: parquet_of(pd.concat([rows(hub, path)] * 2 + [strange]))})
    with pytest.raises(PublishError, match=rf"got 1 of 121 rows .*, in {path}"):
        send(day=1, is_repairing=True)
    assert len(hub.commits(NAME)) == 2


def repeated(content: bytes, num_rows: int) -> bytes:
    """Return a small file of many rows, each the first of a table."""
    row = pq.read_table(io.BytesIO(content)).slice(0, 1).replace_schema_metadata(None)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, row.schema, compression="zstd") as writer:
        block = pa.concat_tables([row] * 100_000).combine_chunks()
        for _ in range(num_rows // len(block)):
            writer.write_table(block)
    return sink.getvalue()


def test_a_small_file_of_very_many_rows_is_refused_by_its_footer(
    hub: Any, ledger: Ledger, send: Send
) -> None:
    """At 967f431 such a file of 19 kB took 2.7 GB, and one of 224 kB over 150 s."""
    fill(ledger, range(10))
    send()
    path = f"forecasts/{FIRST}.parquet"
    content = repeated(hub.files(NAME)[path], 5_000_000)
    hub.commit(NAME, {path: content})
    said = rf"got 5,000,000 rows where at most 480 are read, in {path}"
    for is_repairing in (False, True):
        with pytest.raises(PublishError, match=said):
            send(day=1, is_repairing=is_repairing)


def test_other_columns_and_values_are_one_sentence(hub: Any, ledger: Ledger, send: Send) -> None:
    """At 967f431 lists, mappings and bytes were a TypeError."""
    fill(ledger, range(10))
    send()
    path = f"forecasts/{FIRST}.parquet"
    good = rows(hub, path)
    odd = {r"list<.*>": [1, 2], r"struct<.*>": {"a": 1}, "binary": b"\xff\xfe"}
    changes = {
        "other columns: extra": good.assign(extra=1),
        "other columns: close": good.drop(columns="close"),
        r"a text of 100,000 bytes in series": good.assign(series="x" * 100_000),
    } | {
        f"{kind} in {name}": good.assign(**{name: [value] * len(good)})
        for kind, value in odd.items()
        for name in ("close", "series")
    }
    for said, frame in changes.items():
        hub.commit(NAME, {path: parquet_of(frame)})
        with pytest.raises(PublishError, match=f"got {said}, in {path}"):
            send(day=1)


def test_a_dataset_of_another_project_is_left_alone(hub: Any, ledger: Ledger, send: Send) -> None:
    hub.create(NAME, {"data.csv": b"mine"})
    fill(ledger, range(10))
    with pytest.raises(PublishError, match=r"someone/record: .*got one with other.*data.csv"):
        send()
    assert len(hub.commits(NAME)) == 1


def test_the_card_tells_the_record_beside_naive_and_the_best_baseline(
    hub: Any, ledger: Ledger, send: Send
) -> None:
    fill(ledger, range(CLOSES))
    send()
    card = DatasetCard(hub.files(NAME)["README.md"].decode())
    assert (card.data.license, card.data.task_categories) == ("mit", ["time-series-forecasting"])
    assert [one["data_files"] for one in card.data.configs] == ["forecasts/*.parquet", "scores/*.parquet"]
    assert hub.warnings == []
    live = live_record(ledger, ISSUER.place).tasks["volatility"]
    header, row = (
        next(line for line in card.text.splitlines() if line.startswith(begin)).strip("| ").split(" | ")
        for begin in ("| series | scored", f"| {ISSUER.series}")
    )
    assert header[3:6] == ["ohlc × naive", "volatility × naive", "volatility × har"]
    assert [cell.strip() for cell in row[4:6]] == [
        number(live.naive.relative_mae),
        number(live.best.relative_mae),
    ]
    assert "96 forecasts issued, 96 scored, 0 late" in card.text
    assert ISSUER.place not in card.content
    assert f"### Volatility, {ISSUER.series.rpartition('-')[2]}" in card.text.split("one board")[1]
    compile(card.text.split("```python\n")[1].split("```")[0], "card", "exec")
