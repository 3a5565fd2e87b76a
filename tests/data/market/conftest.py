"""Generated raw candles and a candle archive on loopback for the tests of this room; no real prices."""

from __future__ import annotations

import hashlib
import io
import threading
import time
import zipfile
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
from local_server import LocalServer, QuietHandler

START_S = 1_704_067_200
"""2024-01-01T00:00:00Z, a Monday."""

UNUSED_COLUMNS = (
    "close_time",
    "quote_volume",
    "count",
    "taker_buy_volume",
    "taker_buy_quote_volume",
    "ignore",
)


@pytest.fixture(scope="session")
def valid_frame():
    """Draw a contiguous random walk: valid_frame(num_bars, bar_s, start_s=..., seed=...)."""
    return draw_frame


def draw_frame(num_bars: int, bar_s: int, *, start_s: int = START_S, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    close = np.round(100 * np.exp(np.cumsum(rng.normal(0, 0.01, num_bars))), 2)
    opened = np.concatenate([[100.0], close[:-1]])
    wick = np.round(rng.exponential(0.3, (2, num_bars)), 2)
    return pd.DataFrame(
        {
            "open_time": (start_s + bar_s * np.arange(num_bars)) * 1_000,
            "open": opened,
            "high": np.maximum(opened, close) + wick[0],
            "low": np.minimum(opened, close) - wick[1] * 0.1,
            "close": close,
            "volume": np.round(rng.exponential(50, num_bars), 3) + 0.001,
        }
    )


def write_rows(frame: pd.DataFrame, *, has_header: bool = False) -> str:
    """Write candles as the archive does: twelve columns, the last six of no use to us."""
    return frame.assign(**dict.fromkeys(UNUSED_COLUMNS, 0)).to_csv(index=False, header=has_header)


def write_zip(members: dict[str, str | bytes]) -> bytes:
    """Pack members by name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@dataclass
class Fault:
    """One wrong answer.

    Args:
        status: Status code; 200 sends the file.
        headers: Headers to add.
        cut_bytes: Bytes to leave out at the end of the promised body.
        content: Sent instead of the file.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut_bytes: int = 0
    content: bytes | None = None


class Archive(LocalServer):
    """A candle archive on loopback whose files, faults and pace the test decides.

    Args:
        delay_s: Seconds every answer takes, so that requests overlap.
    """

    def __init__(self, delay_s: float = 0.0) -> None:
        super().__init__(_Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.requests: list[str] = []
        self.password: tuple[str, str] | None = None
        self.most_at_once = 0
        self._num_now = 0
        self._delay_s = delay_s
        self._lock = threading.Lock()

    def put(self, path: str, content: bytes) -> None:
        """Serve a file and its checksum."""
        name = path.rpartition("/")[2]
        self.files[path] = content
        self.files[f"{path}.CHECKSUM"] = f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode()

    def put_rows(self, series: str, label: str, frame: pd.DataFrame, **options: Any) -> str:
        """Serve the rows of one month (label 2024-08) or day (2024-08-01) and return their path."""
        symbol, timeframe = series.split("-")
        kind = "monthly" if label.count("-") == 1 else "daily"
        stem = f"{series}-{label}"
        path = f"/data/spot/{kind}/klines/{symbol}/{timeframe}/{stem}.zip"
        self.put(path, write_zip({f"{stem}.csv": write_rows(frame, **options)}))
        return path

    def downloads(self) -> list[str]:
        """List the requests for zips."""
        return [path for path in self.requests if path.endswith(".zip")]

    def opens(self, authorization: str | None) -> bool:
        if self.password is None:
            return True
        return authorization == f"Basic {b64encode(':'.join(self.password).encode()).decode()}"

    @contextmanager
    def serving(self, path: str) -> Iterator[Fault]:
        with self._lock:
            self.requests.append(path)
            self._num_now += 1
            self.most_at_once = max(self.most_at_once, self._num_now)
            fault = self.faults[path].pop(0) if self.faults[path] else Fault()
        time.sleep(self._delay_s)
        try:
            yield fault
        finally:
            with self._lock:
                self._num_now -= 1


class _Handler(QuietHandler):
    server: Archive
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        archive = self.server
        if not archive.opens(self.headers["Authorization"]):
            self.send_error(401)
            return
        with archive.serving(self.path) as fault:
            content = archive.files.get(self.path) if fault.content is None else fault.content
            status = 404 if content is None else fault.status
            content = content or b""
            self.send_response(status)
            for name, value in fault.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) - fault.cut_bytes])
            self.close_connection = fault.cut_bytes > 0


@pytest.fixture
def archive(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Archive() as served:
        yield served


@pytest.fixture
def slow_archive(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Archive(delay_s=0.02) as served:
        yield served


@pytest.fixture(scope="session")
def make_fault():
    return Fault


@pytest.fixture(scope="session")
def make_zip():
    return write_zip


@pytest.fixture(scope="session")
def make_rows():
    return write_rows
