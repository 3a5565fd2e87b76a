"""The main job on a Python that lacks what only a Unix has, with a console of a code page, as on Windows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.process]

SERIES = ("BTCUSDT-15m", "ETHUSDT-1h")

SITECUSTOMIZE = """
import builtins, signal

ABSENT = {"fcntl", "resource", "grp", "pwd", "syslog", "termios"}
import_any = builtins.__import__

def import_as_on_windows(name, globals=None, *more, **named):
    # The psutil of a Unix needs them, that of Windows does not.
    if name in ABSENT and not (globals or {}).get("__name__", "").startswith("psutil"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return import_any(name, globals, *more, **named)

builtins.__import__ = import_as_on_windows
del signal.pthread_sigmask
"""


def test_workers_train_evaluate_and_save_without_fcntl_resource_and_signal_masks(
    workplace: Any, tmp_path: Path
) -> None:
    """Its own processes load the blocker too: it lies on their path, under the name Python starts with."""
    blocker = tmp_path / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(SITECUSTOMIZE)
    workplace.env = {**workplace.env, "PYTHONPATH": f"{blocker}:{workplace.env['PYTHONPATH']}"}
    workplace.env |= {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}  # what a console of Windows takes
    chosen = [word for name in SERIES for word in ("--series", name)]
    words = ["--profile", str(workplace.profile), "--source", "demo", "--epochs", "1", "--workers", "2"]
    call = ["run", *words, *chosen, "--runs", str(tmp_path / "elsewhere")]
    done = workplace.call_anew(call)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in SERIES:
        folder = tmp_path / "elsewhere" / "tiny" / name
        assert (folder / "model.keras").exists()
        training = json.loads((folder / "metadata.json").read_text())["training"]
        assert training["peak_memory_bytes"] > 1e6
    again = workplace.call_anew(call)
    assert again.returncode == 0, again.stderr
    assert "2 of 2 series are already finished" in again.stdout
