"""The command line: a fixed surface, light starts, one-line errors, exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer.main
from forked import called
from programs import run_program

from v8.base.version import VERSION
from v8.cli.app import app

REPOSITORY = Path(__file__).parents[2]
SURFACE = Path(__file__).with_name("surface.txt")


call = partial(called, cwd=REPOSITORY)


def start(*words: str, module: str = "v8") -> subprocess.CompletedProcess[str]:
    return run_program([sys.executable, "-m", module, *words], cwd=REPOSITORY, timeout=120)


def surface() -> str:
    """Write every command with its arguments and flags, one a line, defaults included."""
    lines = []
    for name, command in sorted(typer.main.get_command(app).commands.items()):
        lines.append(name)
        lines += sorted(f"  {' '.join(shown.opts)} = {shown.default}" for shown in command.params)
    return "\n".join(lines) + "\n"


def test_the_surface_is_the_one_that_was_agreed() -> None:
    # A change here changes what users have in their scripts: write the new surface down on purpose.
    assert surface() == SURFACE.read_text()


@pytest.mark.process
def test_both_ways_to_the_main_job_are_one() -> None:
    long = start("run", "--help")
    short = start("--help", module="v8.run")
    assert long.returncode == short.returncode == 0
    assert long.stdout == short.stdout
    assert "--dry-run" in long.stdout


@pytest.mark.process
def test_help_and_usage_errors_start_neither_tensorflow_nor_pandas() -> None:
    calls = {"--help": 0, "predict --help": 0, "predict runs/aligned --format xml": 2, "run --epochs 0": 2}
    code = (
        "import sys\n"
        "from v8.cli.app import main\n"
        "for words in sys.argv[1:]:\n"
        "    try:\n"
        "        main(words.split())\n"
        "    except SystemExit as end:\n"
        "        print('ended', end.code)\n"
        "print('imported', *sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, *calls], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert lines_of(process.stdout, "ended") == [f"ended {code}" for code in calls.values()]
    (imported,) = lines_of(process.stdout, "imported")
    assert {*imported.split()}.isdisjoint({"tensorflow", "keras", "pandas", "pyarrow"})
    assert "typer" in imported


def lines_of(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{word} ")]


@pytest.mark.process
def test_device_gpu_refuses_to_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    process = call("run", "--source", "demo", "--device", "gpu", "--runs", str(tmp_path / "runs"))
    assert process.returncode == 2
    assert re.search("error: --device gpu: .*; got no driver ", process.stderr)
    assert not (tmp_path / "runs").exists()


@pytest.mark.process
def test_data_tells_each_series_and_exits_3_when_one_has_none(tmp_path: Path) -> None:
    process = call("data", "--source", "files", "--data-dir", str(tmp_path), "--series", "BTCUSDT-15m")
    assert process.returncode == 3
    assert "1 of 1 series " in process.stdout
    shown: Any = call("data", "--source", "demo", "--series", "BTCUSDT-15m", "--bars", "200")
    assert shown.returncode == 0
    assert "BTCUSDT-15m: 200 of 200 rows kept" in shown.stdout


@pytest.mark.process
def test_a_folder_s_own_series_are_those_that_are_meant(tmp_path: Path) -> None:
    """At 4c79749 39 series of the default universe failed."""
    for name in ("BTC_USDT-1h.csv", "BINANCE_ETHUSDT, 240.csv"):
        (tmp_path / name).write_text("1704067200,1,2,0.5,1,3\n")
    result: Any = call("data", "--source", "files", "--data-dir", str(tmp_path))
    signs = "Reading candles from files.\nFound 2 series in the folder: BTCUSDT-1h, ETHUSDT-4h\n"
    assert (result.returncode, result.stderr) == (0, signs)
    (tmp_path / "SOLUSDT.csv").write_text("1704067200,1,2,0.5,1,3\n")
    again: Any = call("data", "--source", "files", "--data-dir", str(tmp_path))
    assert (again.returncode, again.stdout) == (0, result.stdout)
    assert again.stderr.startswith(f"{signs}Not read, ") and "SOLUSDT.csv" in again.stderr
    found = [line.partition(":")[0] for line in result.stdout.splitlines()]
    assert found[:2] == ["BTCUSDT-1h", "ETHUSDT-4h"]
    assert found[2].startswith("Too short for a model of profile frontier")  # one candle each
    assert found[3].startswith("The newest candle of 2 series is of 2024-01-01")
    universe = tmp_path / "mine.yaml"
    universe.write_text("series: [BTC/USDT-1h]\n")
    chosen: Any = call("data", "--source", "files", "--data-dir", str(tmp_path), "--universe", str(universe))
    assert (chosen.returncode, chosen.stderr) == (0, "Reading candles from files.\n")
    assert chosen.stdout.startswith("BTCUSDT-1h: 1 of 1 rows kept")
    twice = call("data", "--universe", str(universe), "--series", "BTCUSDT-1h")
    assert twice.returncode == 2


@pytest.mark.process
def test_the_version_is_told_without_a_command() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "v8", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(rf"v8 {VERSION}( \(commit [0-9a-f]{{12}}(, changed since)?\))?\n", process.stdout)


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX closes descriptors")
@pytest.mark.parametrize(
    ("words", "status"),
    [("run --list >&-", 0), ("run --list <&- >&- 2>&-", 0), ("run --profile nothing >&- 2>&-", 2)],
)
def test_closed_output_is_led_nowhere_and_changes_no_exit_code(words: str, status: int) -> None:
    """Whoever starts a process may leave out any of the three; at 0bd7e3d that was a traceback."""
    line = f'exec "$0" -m v8 {words}'
    process = run_program(["sh", "-c", line, sys.executable], cwd=REPOSITORY)
    assert (process.returncode, process.stdout, process.stderr) == (status, "", "")


PLUGIN_WITH_A_FAULT = """
import threading
from v8.data.market.sources import SOURCES, SourceKind

def fail():
    raise RuntimeError("GET http://me:s3cret@host/x?apiKey=s3cret \\x1b[31m fails")

def opened():
    threading.Thread(target=fail).start()
    fail()

SOURCES.register(SourceKind("faulty", "a source with a fault", "this test", opened))
"""


@pytest.mark.process
def test_the_traceback_of_a_fault_holds_no_secret(tmp_path: Path) -> None:
    plugin = tmp_path / "faulty.py"
    plugin.write_text(PLUGIN_WITH_A_FAULT)
    words = ("data", "--plugin", str(plugin), "--source", "faulty", "--series", "BTCUSDT-1h")
    for done in (call(*words), start(*words)):
        assert done.returncode == 1
        assert done.stderr.count("RuntimeError: GET http://***@host/x?apiKey=*** \\x1b[31m fails") == 2
        assert "s3cret" not in done.stdout + done.stderr
