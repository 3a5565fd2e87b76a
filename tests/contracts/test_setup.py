"""setup.cfg states as lower bounds what the floor check installs, and names that are ours."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).parents[2]
DEVELOPERS = ("docs", "test")
"""Extras that are installed in a checkout only."""


def test_the_floor_check_installs_exactly_the_lower_bounds() -> None:
    setup = ConfigParser()
    setup.read(REPOSITORY / "setup.cfg", "utf-8")
    bounds = {}
    for line in setup["options"]["install_requires"].split():
        wanted = Requirement(line)
        (bound,) = wanted.specifier
        assert bound.operator == ">=", line
        bounds[wanted.name] = Version(bound.version)
    lines = (REPOSITORY / "tests/floors/oldest.txt").read_text("utf-8").splitlines()
    checked = [Requirement(line) for line in lines if not line.startswith("#")]
    assert {one.name: Version(str(one.specifier).removeprefix("==")) for one in checked} == bounds


def test_every_requirement_of_a_user_allows_the_version_that_a_hosted_notebook_brings() -> None:
    setup = ConfigParser()
    setup.read(REPOSITORY / "setup.cfg", "utf-8")
    extras = {name: text for name, text in setup["options.extras_require"].items() if name not in DEVELOPERS}
    lines = (REPOSITORY / "tests/floors/hosted.txt").read_text("utf-8").splitlines()
    brought = {
        canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)
    }
    assert len(brought) > 600
    wanted = [
        Requirement(line)
        for text in (setup["options"]["install_requires"], *extras.values())
        for line in text.split()
    ]
    both = [one for one in wanted if canonicalize_name(one.name) in brought]
    assert len(both) > 20
    refused = [one.name for one in both if not one.specifier.contains(brought[canonicalize_name(one.name)])]
    assert refused == ["yfinance"]  # an extra: Colab brings 1.0's predecessor


def test_the_distribution_does_not_bear_a_name_that_is_somebody_else_s() -> None:
    setup = ConfigParser()
    setup.read(REPOSITORY / "setup.cfg", "utf-8")
    assert setup["metadata"]["name"] == "v8-forecasters"  # `v8` belongs to somebody else


def test_a_wheel_has_every_package_of_the_repository() -> None:
    setup = ConfigParser()
    setup.read(REPOSITORY / "setup.cfg", "utf-8")
    folders = (file.parent.relative_to(REPOSITORY) for file in (REPOSITORY / "v8").rglob("__init__.py"))
    packages = {".".join(folder.parts) for folder in folders}
    assert set(setup["options"]["packages"].split()) == packages
