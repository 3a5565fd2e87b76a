"""The password of an archive opens it, and is in no file and in no line afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from exchange_api import ExchangeApi
from later_candles import BEGIN_S

pytestmark = pytest.mark.process

GOOD = "BTCUSDT-15m"
BAD = "XRPUSDT-15m"
GONE = "ADAUSDT-1h"
PASSWORD = "s3cr3t"


@pytest.fixture
def guarded_archive(workplace: Any) -> Iterator[str]:
    """Serve December 2024 of two series, one of them in a bad zip, to who knows the password; the host."""
    frame = pd.read_csv(workplace.candles / f"{GOOD}.csv", index_col=0, parse_dates=True)
    with ExchangeApi(BEGIN_S) as exchange:
        exchange.password = ("me", PASSWORD)
        for series in (GOOD, BAD):
            exchange.put(series, frame)
        exchange.put_zip(f"{BAD}-2024-12", b"no zip")
        yield f"127.0.0.1:{exchange.server_port}"


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
