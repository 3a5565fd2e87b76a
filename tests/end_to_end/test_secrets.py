"""The password of an archive opens it, and is in no file and in no line afterwards."""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from local_server import LocalServer, QuietHandler

pytestmark = pytest.mark.process

GOOD = "BTCUSDT-15m"
BAD = "XRPUSDT-15m"
GONE = "ADAUSDT-1h"
PASSWORD = "s3cr3t"


def zipped(candles: Path, name: str) -> bytes:
    """Pack the candles of a user's file as the archive does: twelve columns, the last six of no use to us."""
    frame = pd.read_csv(candles, index_col=0, parse_dates=True)
    frame.insert(0, "opened", frame.index.astype("datetime64[ms, UTC]").astype("int64"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        rows = frame.assign(**{f"unused_{number}": 0 for number in range(6)}).to_csv(
            index=False, header=False
        )
        archive.writestr(f"{name}.csv", rows)
    return buffer.getvalue()


@pytest.fixture
def guarded_archive(workplace: Any) -> Iterator[str]:
    """Serve December 2024 of two series, one of them in a bad zip, to who knows the password; the host."""
    files = {}
    for series, month in (
        (GOOD, zipped(workplace.candles / f"{GOOD}.csv", f"{GOOD}-2024-12")),
        (BAD, b"no zip"),
    ):
        folder = f"/data/spot/monthly/klines/{series.replace('-', '/')}"
        files[f"{folder}/{series}-2024-12.zip"] = month
        promise = f"{hashlib.sha256(month).hexdigest()}  {series}-2024-12.zip\n"
        files[f"{folder}/{series}-2024-12.zip.CHECKSUM"] = promise.encode()
    opens = f"Basic {b64encode(f'me:{PASSWORD}'.encode()).decode()}"

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            content = files.get(self.path)
            is_open = self.headers["Authorization"] == opens
            self.send_response(403 if not is_open else 404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"")

    with LocalServer(Handler) as server:
        yield f"127.0.0.1:{server.server_port}"


@pytest.mark.nightly
def test_the_password_of_an_archive_is_written_nowhere(
    workplace: Any, guarded_archive: str, tmp_path: Path
) -> None:
    """At 4c79749: console, run.json, report.html, error.txt, a folder of the cache."""
    home = tmp_path / "home of its own"
    compiled = Path(workplace.env["V8_HOME"]) / "programs"
    if compiled.exists():
        shutil.copytree(compiled, home / "programs", ignore=shutil.ignore_patterns("passing-*"))
    address = f"http://me:{PASSWORD}@{guarded_archive}"
    workplace.env = {**workplace.env, "V8_HOME": str(home), "V8_VISION_URL": address, "NO_PROXY": "*"}
    three = [word for name in (GOOD, BAD, GONE) for word in ("--series", name)]
    options = ["--profile", str(workplace.profile), "--runs", str(tmp_path / "runs")]
    result = workplace.call(["run", *options, "--epochs", "1", "--workers", "1", *three])
    assert result.returncode == 4, result.stdout + result.stderr
    data = workplace.call(["data", *three])
    assert data.returncode == 3
    assert guarded_archive in result.stdout  # the messages do say which archive it was
    run = tmp_path / "runs" / "tiny"
    assert (run / "report.html").exists()
    assert guarded_archive in (run / BAD / "error.txt").read_text()
    for text in (result.stdout, result.stderr, data.stdout, data.stderr):
        assert PASSWORD not in text
    files = [path for folder in (run, home) for path in folder.rglob("*")]
    assert any(path.suffix == ".zip" for path in files)
    for path in files:
        assert PASSWORD not in str(path)
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes()
