"""An environment that has what v8 needs and no v8: links to the packages that these tests run with.

What is installed into it is installed in earnest, from files that were built in earnest, without a download.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path, PurePath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from programs import run_program

REPOSITORY = Path(__file__).parents[2]
COMMITTER = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
_OURS = ("v8", "__editable__", "_v8")


def checkout_at(folder: Path) -> str:
    """Copy what git tracks or would track into a repository of its own; return the commit of it."""
    listed = _git(REPOSITORY, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    _git(folder, "init", "--quiet")
    _git(folder, "add", "--all")
    _git(folder, *COMMITTER, "commit", "--quiet", "--message=All")
    return _git(folder, "rev-parse", "--short=12", "HEAD").strip()


def _git(folder: Path, *words: str) -> str:
    process = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True)
    return process.stdout


def link_packages(folder: Path, only: Collection[str] | None = None) -> Path:
    """Fill a folder with links to all packages of this environment but v8, or to files of some names."""
    folder.mkdir()
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        is_wanted = only is None or installed.name in only
        if is_wanted and not installed.name.startswith(_OURS) and installed.suffix != ".pth":
            (folder / installed.name).symlink_to(installed)
    return folder


def files_of(requirements: Path) -> set[str]:
    """Name what a file of requirements installs, with all that its packages need in turn."""
    lines = (line.partition("#")[0].strip() for line in requirements.read_text("utf-8").splitlines())
    waiting = [Requirement(line) for line in lines if line]
    names: set[str] = set()
    known: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if name in known or not is_needed:
            continue
        known.add(name)
        package = metadata.distribution(name)
        names |= {PurePath(file).parts[0] for file in package.files or ()}
        waiting += [Requirement(line) for line in package.requires or ()]
    return names


@dataclass(frozen=True)
class BareEnvironment:
    """A virtual environment without v8; `folder` is its own, and `Path.cwd()` of no call is a checkout.

    Args:
        folder: Where it lies, and where calls lie beside it.
    """

    folder: Path

    @classmethod
    def at(cls, folder: Path, only: Collection[str] | None = None) -> BareEnvironment:
        """Make one, with all packages, or with the files of some names."""
        packages = link_packages(folder / "packages", only)
        venv.create(folder / "venv", symlinks=True)
        made = cls(folder)
        (made.site / "packages.pth").write_text(f"{packages}\n")
        made.elsewhere.mkdir()
        return made

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def elsewhere(self) -> Path:
        return self.folder / "elsewhere"

    @cached_property
    def site(self) -> Path:
        (found,) = (self.folder / "venv" / "lib").glob("python*/site-packages")
        return found

    @property
    def env(self) -> Mapping[str, str]:
        """This process's environment without what leads to a checkout, and with caches of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "V8_"))}
        return {**kept, "V8_HOME": str(self.folder / "home"), "CUDA_VISIBLE_DEVICES": "-1"}

    def call(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Call Python with some words, elsewhere, to its end."""
        return run_program([self.python, *words], cwd=self.elsewhere, env=self.env, timeout=300)


def build(checkout: Path, folder: Path) -> tuple[Path, Path]:
    """Build a source distribution, and a wheel from it; return the files."""
    process = run_program([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout])
    assert process.returncode == 0, process.stdout + process.stderr
    (source,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return source, wheel
