"""Publishes the page of published models as a Space, which is an application on the Hub.

    README.md           settings of the Space for the Hub, and a description
    LICENSE             of the package
    Dockerfile          this version of Python, the pinned packages, the command that serves the page
    requirements.txt    every package that the page needs, at the version that is installed here
    v8/...              the package itself, because it is on no public index

The same v8 in the same environment gives the same bytes: no file contains the current time. A Space that
holds files that neither the Hub nor v8 has put there is refused. Files below `v8/` that were published before
and are not needed any more are removed in the same commit.
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

from v8.base.errors import PublishError
from v8.base.storage import packaged, write_bytes, write_text
from v8.base.version import VERSION
from v8.data.market.sources import SOURCES, present_source
from v8.profile.profile import config_path
from v8.publish.hub import hub_endpoint
from v8.publish.hub.publish import Publication
from v8.publish.hub.pull import pull

SPACE_PORT: Final = 7860  # on which a Space listens
SPACE_SOURCE: Final = "live"  # candle source of a Space
SPACE_PACKAGE_FOLDER: Final = "v8"  # all files below it are published by v8
SPACE_DISTRIBUTION: Final = ("v8-forecasters", "app")
"""The name under which v8 is installed, and the extra that the page needs."""

_LINUX: Final = {
    "os_name": "posix",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
}
"""Markers of the system of a Space; the system that publishes it may be another one."""


@dataclass(frozen=True)
class StagedSpace(Publication):
    """The files of a Space."""

    kind = "space"
    flag = "param:space"
    ordinary = frozenset({".gitattributes", "README.md", "LICENSE"})
    marker = f"{SPACE_PACKAGE_FOLDER}/__main__.py"
    rule = "a page goes into a new Space, or one that v8 published"

    folder: Path
    paths: tuple[str, ...]
    title: str

    def is_removed(self, path: str) -> bool:
        """Return whether a file belongs to the package that was published before."""
        return path.startswith(f"{SPACE_PACKAGE_FOLDER}/")


def stage_space(folder: Path, space: str, repo: str) -> StagedSpace:
    """Write the files of the Space of published models into an empty folder.

    Args:
        folder: The empty folder.
        space: `user/name` of the Space.
        repo: `user/name` of the repository with the models.

    Raises:
        PublishError: If a package that the page needs is not installed here, so that its version is unknown.
        PullError: If this user can read no published models in `repo`.
    """
    published = pull(repo, ()).manifest
    sources = sorted({present_source(span.source) for span in published.data.values()})
    # Candles of the present: those of the market that the models were trained on, where a source has them.
    source = next(
        (name for name in sources if name in {kind.present for kind in SOURCES.values()}), SPACE_SOURCE
    )
    python = ".".join(map(str, sys.version_info[:2]))
    values = {
        "repo": repo,
        "port": SPACE_PORT,
        "source": source,
        "python": python,
        "version": VERSION,
        "title": space.partition("/")[2],
        "page": f"{hub_endpoint()}/{repo}",
    }
    for name in ("Dockerfile", "LICENSE", "README.md"):
        write_text(folder / name, packaged("v8.annexes.live.app", f"space.{name}").format(**values))
    package_name, extra = SPACE_DISTRIBUTION
    write_text(folder / "requirements.txt", "\n".join(pinned(package_name, extra)) + "\n")
    package = Path(__file__).parents[3]
    for file in sorted(file for file in package.rglob("*") if file.is_file() and file.suffix != ".pyc"):
        write_bytes(folder / SPACE_PACKAGE_FOLDER / file.relative_to(package), file.read_bytes())
    for file in sorted(config_path("universe").parent.glob("*.yaml")):
        write_bytes(folder / SPACE_PACKAGE_FOLDER / "configs" / file.name, file.read_bytes())
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return StagedSpace(folder, tuple(paths), f"Publish the page of {repo}")


def pinned(package: str, extra: str) -> list[str]:
    """Pin all packages that a package with an extra needs on Linux, at the versions that are installed here.

    Returns:
        Lines `name==version`, sorted by name, without the package itself.

    Raises:
        PublishError: If the package, or one that it needs directly, is not installed.
    """
    versions: dict[str, str] = {}
    pending = [(package, extra)]
    visited: set[tuple[str, str]] = set()  # packages, each with one of its extras, "" for none
    direct = {package}
    while pending:
        name, own_extra = pending.pop()
        if (name, own_extra) in visited:
            continue
        visited.add((name, own_extra))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name not in direct:
                continue  # a package for Linux only, and this system is another: pip will choose its version
            raise PublishError(
                where="param:space",
                rule="pins what the page needs at the versions that are installed here",
                got=f"no package {name}",
                fix="Install v8 with its extra app: python -m pip install '/path/to/checkout[app]'",
            ) from None
        versions[name] = Version(distribution.version).public
        needed = list(_requirements(distribution.requires or (), own_extra))
        if name == package:
            direct.update(needed_name for needed_name, _ in needed)
        pending += needed
    return [f"{name}=={versions[name]}" for name in sorted(versions) if name != package]


def _requirements(lines: Iterable[str], extra: str) -> Iterator[tuple[str, str]]:
    """Yield name and extra of what a package needs on Linux: once without extra, and once for each extra."""
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({**_LINUX, "extra": extra}):
            for needed_extra in ("", *requirement.extras):
                yield canonicalize_name(requirement.name), needed_extra
