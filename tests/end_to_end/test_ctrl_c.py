"""Ctrl-C wherever a command may be: it ends within seconds, twice at once, and says how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from broken_http import RawServer, drip
from deaf import DEAF
from tiny_profiles import tiny_profile

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]
HANG_S = 20.0
"""A command that lives longer after Ctrl-C waits for something; each would wait for minutes."""


@pytest.fixture
def dripping() -> Iterator[str]:
    """Serve an archive that answers everything, a byte a second for ever; return its address."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n"
    with closing(RawServer([head, *drip(b"x", 1.0, 4_000)])) as server:
        yield server.url


def start(folder: Path, *words: str, archive: str = "", before: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start a command in a folder of its own, all its output in one pipe; words may come before Python's."""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "V8_HOME": str(folder / "home"), "NO_PROXY": "*"}
    return subprocess.Popen(
        [*before, sys.executable, "-u", "-m", "v8", *words],
        cwd=folder,
        env={**env, "V8_VISION_URL": archive},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def interrupt(
    process: subprocess.Popen[str], after: str, numbers: Sequence[int] = (signal.SIGINT,)
) -> tuple[int, str]:
    """Send Ctrl-C, or each signal given, when a line comes; return exit status and what was said since."""
    assert process.stdout is not None
    try:
        for number in numbers:
            while after not in (line := process.stdout.readline()):
                assert line, f"ended without {after!r}"
            process.send_signal(number)
        rest, _ = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, rest


RUN = ("run", "--profile", "frontier", "--smoke", "--series", "BTCUSDT-15m")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (RUN, "interrupted: runs/frontier-smoke is saved. Continue with: python -m v8 run"),
        pytest.param(
            ("data", "--series", "BTCUSDT-15m"), "interrupted: every file", marks=pytest.mark.nightly
        ),
        pytest.param(
            ("compare-profiles", "--profiles", "frontier", "--series", "BTCUSDT-15m"),
            "interrupted: every file",
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["run", "data", "compare-profiles"],
)
def test_a_command_that_waits_for_a_dripping_archive_counts_and_ends(
    tmp_path: Path, dripping: str, words: tuple[str, ...], said: str
) -> None:
    """At 4c79749 the wait had no limit and no word, and the process lived on after Ctrl-C."""
    process = start(tmp_path, *words, archive=dripping)
    status, output = interrupt(process, "waiting for BTCUSDT-15m-")
    assert status == 130, output
    assert output.count(said) == 1
    assert "Traceback" not in output


@pytest.mark.nightly
def test_a_command_that_was_started_deaf_to_ctrl_c_ends_by_sigterm_alone(
    tmp_path: Path, dripping: str
) -> None:
    """It counts on after a Ctrl-C that was meant for another program."""
    process = start(tmp_path, "data", "--series", "BTCUSDT-15m", archive=dripping, before=DEAF)
    status, output = interrupt(process, "waiting for BTCUSDT-15m-", (signal.SIGINT, signal.SIGTERM))
    assert status == 130, output
    assert output.count("interrupted: ") == 1
    assert "Traceback" not in output


@pytest.mark.nightly
def test_a_run_that_compiles_ends(tmp_path: Path) -> None:
    """The compiler is no place where Python looks for signals."""
    words = ("run", "--profile", "aligned", "--source", "demo", "--series", "BTCUSDT-15m", "--workers", "1")
    # With more epochs it would be measured first how loops run fastest, and without a format, which.
    words += ("--epochs", "1", "--precision", "float32")
    status, output = interrupt(start(tmp_path, *words), "BTCUSDT-15m: started")
    assert status == 130, output
    assert output.count("interrupted: runs/aligned is saved. Continue with: python -m v8 run") == 1
    assert "Traceback" not in output


@pytest.mark.nightly
def test_workers_end_with_their_run(tmp_path: Path) -> None:
    """Its network is compiled in seconds, and would be trained for hours."""
    profile = tiny_profile(training={"epochs": 100_000})
    (tmp_path / "tiny.yaml").write_text(profile.model_dump_json())  # JSON is YAML
    two = ("--series", "BTCUSDT-15m", "--series", "ETHUSDT-1h", "--workers", "2")
    process = start(tmp_path, "run", "--profile", "tiny.yaml", "--source", "demo", *two)
    # The pipe is the workers' standard output, too: its end is the end of all of them.
    status, output = interrupt(process, "ETHUSDT-1h: started")
    assert status == 130, output
    assert output.count("interrupted: runs/tiny is saved.") == 1
