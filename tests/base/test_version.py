"""The commit a package is of: a checkout's own, or nothing; never a stranger's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from runpy import run_path

import pytest

from v8.base import version

pytestmark = pytest.mark.process


def commit_of(package: Path) -> str:
    found: str = run_path(str(package / "base" / "version.py"))["commit"]()
    return found


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package's folder, as far as it matters here."""
    (tmp_path / "place" / "v8" / "base").mkdir(parents=True)
    shutil.copy(str(version.__file__), tmp_path / "place" / "v8" / "base")
    return tmp_path / "place" / "v8"


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
    process = subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True)
    return process.stdout.strip()


def make_repository(folder: Path) -> str:
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=All")
    return git(folder, "rev-parse", "HEAD")


def test_a_checkout_asks_git_also_after_a_tag_and_says_that_files_were_changed(package: Path) -> None:
    commit = make_repository(package.parent)
    git(package, "tag", "--annotate", "--message=A release", "v1.0.0")
    assert commit_of(package) == commit[:12]
    file = package / "base" / "version.py"
    file.write_text(file.read_text("utf-8") + "\n")
    assert commit_of(package) == f"{commit[:12]}, changed since"


def test_a_package_within_a_repository_of_somebody_else_is_not_of_its_commit(package: Path) -> None:
    make_repository(package.parents[1])
    assert commit_of(package) == ""


def test_without_git_nobody_knows(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repository(package.parent)
    monkeypatch.setenv("PATH", "")
    assert commit_of(package) == ""


def test_a_repository_without_a_commit_is_of_none(package: Path) -> None:
    git(package.parent, "init", "--quiet")
    assert commit_of(package) == ""
