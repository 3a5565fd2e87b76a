"""The image, where Docker runs; tests/contracts/test_image.py reads the Dockerfile everywhere."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from programs import run_program

pytestmark = [pytest.mark.process, pytest.mark.nightly]
REPOSITORY = Path(__file__).parents[2]


def test_the_image_trains_serves_and_is_healthy() -> None:
    if (
        not shutil.which("docker")
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs Docker")
    process = run_program(["bash", REPOSITORY / "scripts" / "image", "v8-test"])
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.endswith("The image trains, serves and is healthy.\n")
