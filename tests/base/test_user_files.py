"""What stands in the place of a file and is none is refused or done without; nothing waits for it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ledger_entries import ISSUER, made_entry

from v8.annexes.live.app.service import LedgerReader
from v8.annexes.live.ledger import Ledger
from v8.base.errors import V8Error
from v8.base.records import open_given, read_given
from v8.base.storage import FolderLock, WriterLock, digest_file, write_text
from v8.data.feature_store import FeatureStore
from v8.data.features import compute_table
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.data.market.store import CandleStore
from v8.model.training.state import Checkpoint
from v8.runs.machine import cached_measurement

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes in folders are a matter of Unix")

HANGS_S = 60.0
SERIES = Series("BTCUSDT", "15m")
OTHER_KIND = "a pipe, a socket or a device in the place of a file"


def said(call: Callable[[], Any]) -> str:
    """Call, and return what it refused, nothing if it did not; it must not wait for somebody to write."""
    messages: list[str] = []

    def carry_out() -> None:
        try:
            call()
        except (V8Error, OSError) as error:
            messages.append(str(error))
        else:
            messages.append("")

    thread = threading.Thread(target=carry_out, daemon=True)
    thread.start()
    thread.join(HANGS_S)
    assert messages, "it waits for a writer, or raised something else"
    return messages[0]


@contextmanager
def in_place_of(path: Path, kind: str) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
        yield
        path.rmdir()
        return
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            listening.bind(os.path.relpath(path))  # a socket's name is short
        yield
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
def test_what_is_no_file_is_neither_read_nor_replaced(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x"
    expected = "a folder in the place of a file" if kind == "folder" else OTHER_KIND
    with in_place_of(path, kind):
        for call in (
            lambda: read_given(path, 100),
            lambda: open_given(path).__enter__(),
            lambda: digest_file(path),
            lambda: write_text(path, "mine"),
        ):
            assert expected in said(call)
        assert path.exists() and not path.is_file()
        assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def locks(folder: Path) -> dict[Path, Callable[[], object]]:
    def held(lock: Any) -> None:
        lock.release()

    rule = {"rule": "one at a time", "fix": "Wait"}
    return {
        folder / "run" / ".lock": lambda: held(FolderLock(folder / "run")),
        folder / "run" / ".lock-holder": lambda: held(FolderLock(folder / "run")),
        folder / ".l.sqlite.lock": lambda: held(WriterLock(folder / "l.sqlite", **rule)),
        folder / ".l.sqlite.lock-holder": lambda: held(WriterLock(folder / "l.sqlite", **rule)),
    }


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_lock_is_a_file(place: int, kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    path, call = [*locks(tmp_path).items()][place]
    with in_place_of(path, kind):
        assert said(call) == (
            f"{path}: must be written; got {OTHER_KIND}. "
            "Free some space or choose another place, and repeat the same command; what was finished is kept."
        )
    assert said(call) == ""


@pytest.mark.parametrize("beside", ["", "-wal", "-shm", "-journal"])
def test_a_ledger_and_what_lies_beside_it_are_files(beside: str, tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    with Ledger.open_to_write(path) as ledger:
        ledger.add(made_entry())
    with in_place_of(path.with_name(path.name + beside), "pipe"):
        for call in (
            lambda: Ledger.open(path).close(),
            lambda: Ledger.open_to_write(path).close(),
            LedgerReader(path, ISSUER.place),
        ):
            assert "pipe" in said(call)


def test_what_only_saves_time_is_done_without(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    kind = float
    candles = open_source("demo").candles(SERIES, 300)
    cached_measurement(kind, "speed", {}, lambda: 1.0)
    (measured,) = (tmp_path / "machine").iterdir()
    store = FeatureStore()
    with in_place_of(measured, "pipe"), in_place_of(store.path(candles), "pipe"):
        found: list[Any] = []
        assert said(lambda: found.append(cached_measurement(kind, "speed", {}, lambda: 2.0))) == ""
        assert said(lambda: found.append(store.table(candles, ["close", "rsi"]))) == ""
    assert found[0] == 2.0
    assert (found[1].column("rsi") == compute_table(candles, ["close", "rsi"]).column("rsi")).all()
    assert f" cache {tmp_path}: {OTHER_KIND}" in caplog.text


def test_a_pipe_in_the_place_of_kept_candles_is_set_aside(tmp_path: Path, caplog: Any) -> None:
    store = CandleStore(tmp_path)
    with in_place_of(store.path(SERIES), "pipe"):
        assert said(lambda: store.read(SERIES)) == ""
        assert said(lambda: store.read(SERIES, is_locked=True)) == ""
    assert (tmp_path / f"{SERIES}.damaged-1.parquet").exists()
    assert "was damaged" in caplog.text


@pytest.mark.tf
def test_a_pipe_in_the_place_of_a_checkpoint_or_a_leaderboard_is_refused(
    trained_run: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    from v8.api.runs import Run

    with in_place_of(tmp_path / "checkpoint.npz", "pipe"):
        assert f"got {OTHER_KIND}" in said(lambda: Checkpoint.load(tmp_path / "checkpoint.npz", {}))
    run = Run(trained_run.path)
    run.path = tmp_path
    with in_place_of(tmp_path / "leaderboard.csv", "pipe"):
        assert f"got {OTHER_KIND}" in said(lambda: run.leaderboard)
    pd.DataFrame({"series": ["a"], "x": [1]}).to_csv(tmp_path / "leaderboard.csv")
    assert [*run.leaderboard.index] == ["a"]
