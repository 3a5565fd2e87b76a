"""The small form of `python tests/drills`: real faults and kills; nothing may be lost, silent or a traceback.

What is killed or interrupted starts anew; what is only called is forked (tests/parts/forked_drill.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from programs import run_program

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.drill]

REPOSITORY = Path(__file__).parents[2]
KINDS = ("kills", "interrupts", "archive", "api", "hub", "disk", "server")


def test_nothing_is_lost_silent_or_a_traceback_in_the_small_drill(tmp_path: Path) -> None:
    words = [sys.executable, str(REPOSITORY / "tests" / "parts" / "forked_drill.py"), "--small", "--markdown"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = run_program(words, env=env, timeout=600)
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.splitlines()[-1].endswith(
        " drills, 0 with something lost, silent, hung or a traceback."
    )
    for kind in KINDS:
        assert f"| {kind} (" in process.stdout, process.stdout
    assert list(tmp_path.iterdir()) == []
