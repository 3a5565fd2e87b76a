"""The set-up scripts say what is missing, and install once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with the everyday tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "cat", "dirname", "sha256sum"):
        (folder / tool).symlink_to(shutil.which(tool))
    return folder


def call(script: str, path: Path, venv: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(REPOSITORY / "scripts" / script), *words],
        cwd=venv.parent,
        env={**os.environ, "PATH": str(path), "V8_VENV": str(venv)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", ["run", "test"])
def test_a_machine_without_python_is_told_what_to_install(
    script: str, bare_path: Path, tmp_path: Path
) -> None:
    done = call(script, bare_path, tmp_path / "venv")
    assert done.returncode == 1
    assert done.stderr.startswith("error: needs Python 3.11 or newer with venv; got none on the PATH.")
    assert not (tmp_path / "venv").exists()


def test_installing_happens_once_and_again_only_when_setup_cfg_changes(
    bare_path: Path, tmp_path: Path
) -> None:
    # A stand-in for the virtual environment's Python that writes down what it is asked to do.
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    python.chmod(0o755)
    for word in ("one", "two"):
        assert call("run", bare_path, venv, word).returncode == 0
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[1] for line in asked] == ["pip", "v8.run", "v8.run"]
    assert asked[0].endswith(f"--editable {REPOSITORY}")
    assert asked[1:] == ["-m v8.run one", "-m v8.run two"]
    (venv / ".v8-installed").write_text("another setup.cfg")
    assert call("run", bare_path, venv, "three").returncode == 0
    assert (tmp_path / "asked").read_text().count("pip install") == 2


@pytest.mark.parametrize("script", ["scripts/run", "scripts/test", "scripts/check", ".ci/run"])
def test_scripts_can_be_started(script: str) -> None:
    assert os.access(REPOSITORY / script, os.X_OK)
    subprocess.run(["bash", "-n", str(REPOSITORY / script)], check=True)
