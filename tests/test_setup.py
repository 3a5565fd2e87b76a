"""setup.cfg states as lower bounds what the floor check installs, and names that are ours."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

REPOSITORY = Path(__file__).parents[1]


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
