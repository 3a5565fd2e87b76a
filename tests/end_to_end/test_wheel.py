"""What is released: a source distribution and a wheel; the wheel where no checkout is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from bare import REPOSITORY, BareEnvironment, build, checkout_at
from made_once import made_once

from v8.base.version import VERSION

pytestmark = [
    pytest.mark.process,
    pytest.mark.nightly,
    pytest.mark.skipif(os.name != "posix", reason="an environment is made of links"),
]
NAMES = ("BTCUSDT-15m", "ETHUSDT-1h")
NAME = f"v8_forecasters-{VERSION}"
ABOUT = f"{NAME}.dist-info"
INSTALL = (
    "import json, sys; cells = json.load(open(sys.argv[1]))['cells']; "
    "(cell,) = [one for one in cells if 'install' in one['metadata'].get('tags', ())]; "
    "exec(''.join(cell['source']), {'V8_FROM': sys.argv[2]})"
)


@dataclass(frozen=True)
class Built:
    """Files of a release.

    Args:
        checkout: What they were built from.
        commit: Its commit.
        source: The source distribution.
        wheel: The wheel.
    """

    checkout: Path
    commit: str
    source: Path
    wheel: Path

    def tracked(self, *folders: str) -> set[str]:
        words = ("git", "-C", str(self.checkout), "ls-files", *folders)
        return set(subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines())


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    def make(folder: Path) -> Built:
        commit = checkout_at(folder / "checkout")
        return Built(folder / "checkout", commit, *build(folder / "checkout", folder / "dist"))

    return made_once(tmp_path_factory, "built", make)[1]


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> BareEnvironment:
    """The wheel in a bare environment, put there by the notebook's own cell."""

    def make(folder: Path) -> BareEnvironment:
        bare = BareEnvironment.at(folder)
        notebook = REPOSITORY / "scripts" / "notebook.ipynb"
        result = bare.call("-c", INSTALL, notebook, f"{built.wheel}[app]")
        assert result.returncode == 0, result.stderr
        return bare

    return made_once(tmp_path_factory, "installed", make)[1]


def test_a_wheel_holds_all_of_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as opened:
        names = set(opened.namelist())
        licences = {name for name in names if "/licenses/" in name}
    package = {re.sub("^configs/", "v8/configs/", name) for name in built.tracked("v8", "configs")}
    made = {f"{ABOUT}/{name}" for name in ("METADATA", "RECORD", "WHEEL")}
    made |= {f"{ABOUT}/{name}" for name in ("entry_points.txt", "top_level.txt")}
    assert licences == {f"{ABOUT}/licenses/LICENSE", f"{ABOUT}/licenses/THIRD_PARTY.md"}
    assert names == package | made | licences


def test_a_source_distribution_holds_what_a_wheel_is_made_of_and_nothing_else(built: Built) -> None:
    with tarfile.open(built.source) as opened:
        found = {one.name.removeprefix(f"{NAME}/") for one in opened.getmembers() if one.isfile()}
    names = {name for name in found if not name.startswith("v8_forecasters.egg-info/")}
    wanted = {
        "LICENSE",
        "MANIFEST.in",
        "README.md",
        "THIRD_PARTY.md",
        "pyproject.toml",
        "setup.cfg",
        "setup.py",
    }
    assert names == built.tracked("v8", "configs") | wanted | {"PKG-INFO"}


def test_the_notebook_s_cell_leaves_all_other_packages_as_they_were(installed: BareEnvironment) -> None:
    listed = installed.call("-m", "pip", "--disable-pip-version-check", "list", "--format=freeze").stdout
    lines = (installed.elsewhere / "kept-versions.txt").read_text().splitlines()
    assert sorted(listed.splitlines()) == sorted([*lines, f"v8-forecasters=={VERSION}"])
    where = installed.call("-c", "import v8; print(v8.__file__)").stdout.strip()
    assert Path(where) == installed.site / "v8" / "__init__.py"
    assert installed.call("-m", "pip", "check").stdout == "No broken requirements found.\n"


def test_the_version_has_its_commit_and_starts_nothing_heavy(
    built: Built, installed: BareEnvironment
) -> None:
    result = installed.call("-X", "importtime", "-m", "v8", "--version")
    assert result.stdout == f"v8 {VERSION} (commit {built.commit})\n"
    imported = set(re.findall(r"\| +(\w+)$", result.stderr, re.MULTILINE))
    assert {"typer", "v8"} <= imported
    assert not {"keras", "pandas", "tensorflow"} & imported


def test_it_trains_forecasts_and_serves_where_no_checkout_is(installed: BareEnvironment) -> None:
    chosen = [word for name in NAMES for word in ("--series", name)]
    ran = installed.call("-m", "v8", "run", "--profile", "frontier", "--source", "demo", "--smoke", *chosen)
    assert ran.returncode == 0, ran.stderr
    (run,) = (installed.elsewhere / "runs").iterdir()
    assert "<html" in (run / "report.html").read_text("utf-8")
    words = ("predict", run, "--series", NAMES[0], "--source", "demo", "--format", "json")
    told = installed.call("-m", "v8", *words)
    assert told.returncode == 0, told.stderr
    assert NAMES[0] in told.stdout
    serve = [installed.python, "-u", "-m", "v8", "app", str(run), "--source", "demo", "--port", "0"]
    env = {**installed.env, "NO_PROXY": "127.0.0.1"}
    with subprocess.Popen(serve, cwd=installed.elsewhere, env=env, stderr=subprocess.PIPE, text=True) as app:
        try:
            url = next(match[1] for line in app.stderr if (match := re.search(r"(http://\S+)/", line)))
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"{url}/api/forecast/{NAMES[0]}", timeout=60) as answer:
                assert json.load(answer)["candles"]["source"] == "demo"
        finally:
            app.terminate()
            app.communicate()
    assert app.returncode == 130
