"""Publishing a Space: the page of published models, in one commit or none.

    README.md           what the Hub reads, and people
    LICENSE             of the package
    Dockerfile          this Python, the pinned packages, the page
    requirements.txt    every package the page needs, at the version that is installed here
    v8/...              the package, because it is on no public index

The same v8 in the same environment gives the same bytes: nothing here takes the time of day.

A Space that holds anything but what the Hub's own page makes, or what we published before, is refused. What
we published before and is not wanted any more is removed in the same commit: below `v8/` every file is ours.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from v8.errors import PublishError
from v8.hub import hub_endpoint
from v8.hub.client import told
from v8.hub.publish import Publication
from v8.hub.pull import pull
from v8.profile import config_path
from v8.storage import packaged, write_bytes, write_text
from v8.version import VERSION

PORT: Final = 7860  # where a Space listens
SOURCE: Final = "live"  # where a Space takes its candles from
PACKAGE_FOLDER: Final = "v8"  # everything below it is ours
DISTRIBUTION: Final = ("v8-forecasters", "app")
"""The name under which v8 is installed, and the extra that the page needs."""

_LINUX: Final = {
    "os_name": "posix",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
}
"""What a Space is, wherever it is published from."""


@dataclass(frozen=True)
class StagedSpace(Publication):
    """The files of a Space."""

    kind = "space"
    flag = "param:space"
    ordinary = frozenset({".gitattributes", "README.md", "LICENSE"})
    marker = f"{PACKAGE_FOLDER}/app/__init__.py"
    rule = "a page goes into a new Space, or one that v8 published"

    folder: Path
    paths: tuple[str, ...]
    title: str

    def is_passing(self, path: str) -> bool:
        """Tell whether a file is one of what was the package."""
        return path.startswith(f"{PACKAGE_FOLDER}/")


def stage(folder: Path, space: str, repo: str) -> StagedSpace:
    """Lay out the Space of published models in an empty folder.

    Raises:
        PublishError: If the environment lacks a package of the page: nobody knows its version.
        PullError: If nothing is published in `repo` that this user may read.
    """
    pull(repo, ())
    python = ".".join(map(str, sys.version_info[:2]))
    names = {"repo": repo, "port": PORT, "source": SOURCE, "python": python, "version": VERSION}
    names |= {"title": space.partition("/")[2], "page": f"{hub_endpoint()}/{repo}"}
    for name in ("Dockerfile", "LICENSE", "README.md"):
        write_text(folder / name, packaged("v8.hub", f"space.{name}").format(**names))
    write_text(folder / "requirements.txt", "\n".join(pinned(*DISTRIBUTION)) + "\n")
    package = Path(__file__).parents[1]
    for file in sorted(file for file in package.rglob("*.*") if file.suffix != ".pyc"):
        write_bytes(folder / PACKAGE_FOLDER / file.relative_to(package), file.read_bytes())
    for file in sorted(config_path("universe").parent.glob("*.yaml")):
        write_bytes(folder / PACKAGE_FOLDER / "configs" / file.name, file.read_bytes())
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return StagedSpace(folder, tuple(paths), f"Publish the page of {repo}")


def pinned(package: str, extra: str) -> list[str]:
    """Pin all that a package with an extra needs on Linux at the versions that are installed here, by name.

    Raises `PublishError` if it is not installed, or not with this extra.
    """
    found: dict[str, str] = {}
    wanted = [(package, extra, True)]
    seen = set()
    while wanted:
        name, extra, is_ours = one = wanted.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            about = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if not is_ours:
                continue  # it is for Linux only and this is not: pip chooses a version
            raise PublishError(**told("stage", "NO_PACKAGE", name=name)) from None
        found[name] = Version(about.version).public
        wanted += [(*needed, name == package) for needed in _needed(about.requires or (), extra)]
    return [f"{name}=={found[name]}" for name in sorted(found) if name != package]


def _needed(lines: Iterable[str], extra: str) -> Iterator[tuple[str, str]]:
    """List what a package needs, and again for each extra of it."""
    for needed in map(Requirement, lines):
        if needed.marker is None or needed.marker.evaluate({**_LINUX, "extra": extra}):
            yield from ((canonicalize_name(needed.name), each) for each in ("", *needed.extras))
