"""The core works without its annexes: each folder is removed in turn, and then all of them at once."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from programs import run_program

from v8.base.registry import ANNEX_FILE, ANNEXES_FOLDER, Annex, annexes, read_annexes

REPOSITORY = Path(__file__).parents[2]
# What annexes may import of the command line.
FOR_ANNEXES = ("__init__", "shared")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what is installed of v8, and nothing else."""
    folder = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "v8", folder / "v8", ignore=ignored)
    shutil.copytree(REPOSITORY / "configs", folder / "v8" / "configs", ignore=ignored)  # as it is installed
    return folder


@dataclass(frozen=True)
class Offered:
    """What a checkout offers its users."""

    commands: set[str]
    names: set[str]  # of `import v8`


@pytest.fixture(scope="module")
def offered(checkout: Path) -> Offered:
    return Offered(listed_commands(checkout), public_names(checkout))


@pytest.fixture(scope="module")
def bare(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what is installed of v8 without the folder of annexes."""
    folder = tmp_path_factory.mktemp("bare") / "v8"
    shutil.copytree(checkout, folder)
    shutil.rmtree(folder / "v8/annexes")
    return folder


def call(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the copied checkout in an empty folder beside it."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "V8_HOME": str(checkout / "home"),
        "COLUMNS": "100",
    }
    return run_program([sys.executable, "-P", "-m", "v8", *words], cwd=checkout, env=environment)


def commands_of(annex: str) -> set[str]:
    return set(annexes()[annex].commands)


def listed_commands(checkout: Path) -> set[str]:
    """Return the names of the commands that `--help` lists."""
    answer = call(checkout, "--help")
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.partition("\nTrain:\n")[2].splitlines()
    return {line.split()[0] for line in lines if re.match(r"  \w", line)}


def functions_of(annex: str) -> list[str]:
    return list(annexes()[annex].python)


def public_names(checkout: Path) -> set[str]:
    """Return the names that `import v8` offers in the copied checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "V8_HOME": str(checkout / "home")}
    code = "import json, v8\nfor name in dir(v8): getattr(v8, name)\nprint(json.dumps(dir(v8)))"
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(answer.stdout))


@contextmanager
def set_aside(annex: Path) -> Iterator[None]:
    """Take the folder of an annex out of a checkout for a while."""
    aside = annex.parents[2] / annex.name
    annex.rename(aside)
    try:
        yield
    finally:
        aside.rename(annex)


def test_there_are_seven_annexes() -> None:
    names = "comparison live ray search sources tracking trading"
    assert sorted(annexes()) == names.split()


@pytest.mark.parametrize(
    "content",
    [
        b"commands: [",
        b"\xff\xfe",
        b"",
        b"7",
        b"- needs",
        b"[" * 100_000,
        b"commands: [a]",
        b"commands: {x: {group: Train}}",
        b"commands: {x: {group: Train, call: 'v8.x.commands:x', more: 1}}",
        b"commands: {x: {group: Train, call: nowhere}}",
        b"python: {x: 5}",
        b"flags: {backtest: {x: {call: 'v8.x:y'}}}",
        b"next_steps: {newer_candles: {words: [update]}}",
        b"sources: {name: x}",
        b"sources: [x]",
        b"sources: [{sentence: no name}]",
        b"!!python/object/apply:os.system ['true']",
    ],
)
def test_an_annex_whose_file_cannot_be_used_is_left_out(tmp_path: Path, content: bytes) -> None:
    files = {"broken": content, "sound": b"sources: []"}
    for name, text in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / ANNEX_FILE).write_bytes(text)
    (tmp_path / "no_annex").mkdir()
    (tmp_path / "a_file.py").touch()
    assert read_annexes(tmp_path) == {"sound": Annex(sources=[])}


def test_the_import_contracts_name_every_module_of_the_core_and_every_annex() -> None:
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    contract = config["importlinter:contract:annexes"]
    modules = {file.stem for file in (REPOSITORY / "v8").glob("*.py")} - {"__init__"}
    packages = {file.parent.name for file in (REPOSITORY / "v8").glob("*/__init__.py")}
    core = (modules | packages) - {ANNEXES_FOLDER}
    assert contract["source_modules"].split() == [f"v8.{name}" for name in sorted(core)]
    assert contract["forbidden_modules"].split() == [f"v8.{ANNEXES_FOLDER}"]
    independent = config["importlinter:contract:independence"]["modules"].split()
    assert independent == [f"v8.{ANNEXES_FOLDER}.{name}" for name in annexes()]
    shared = config["importlinter:contract:shared"]
    of_cli = {f"v8.cli.{file.stem}" for file in (REPOSITORY / "v8/cli").glob("*.py")}
    assert shared["source_modules"].split() == [f"v8.{ANNEXES_FOLDER}"]
    assert {*shared["forbidden_modules"].split()} == of_cli - {f"v8.cli.{name}" for name in FOR_ANNEXES}


def words_of(annex: Annex) -> list[str]:
    """List the patterns of text by which the core would name what an annex adds."""
    words = [
        rf"\b{re.escape(name)}\b(?!\.)" for name in names_of_entries(annex) if name != "hub"
    ]  # the Hub's, too
    words += [rf"--{name}\b" for flags in annex.flags.values() for name in flags]
    words += [rf"\bv8\.{name}\b" for name in annex.python]
    for name in annex.commands:
        words.append(rf"""(v8 |command\(["']|commands? `){name}\b(?!-)""")
    return words


def names_of_entries(annex: Annex) -> list[str]:
    """Name the entries that an annex adds to registries of the core."""
    return [entry.name for entries in (annex.__pydantic_extra__ or {}).values() for entry in entries]


@pytest.mark.parametrize("annex", sorted(annexes()))
def test_the_core_names_nothing_that_an_annex_adds(annex: str) -> None:
    pattern = re.compile("|".join([rf"\b{ANNEXES_FOLDER}[./]{annex}\b", *words_of(annexes()[annex])]))
    annexes_folder = REPOSITORY / "v8" / ANNEXES_FOLDER
    core = [file for file in (REPOSITORY / "v8").rglob("*") if annexes_folder not in file.parents]
    texts = {
        file: file.read_text("utf-8") for file in core if file.suffix in (".py", ".yaml", ".md", ".html")
    }
    assert len(texts) > 100
    named = [
        f"{file.relative_to(REPOSITORY)}: {match[0]}"
        for file, text in texts.items()
        for match in pattern.finditer(text)
    ]
    assert named == []


@pytest.mark.process
@pytest.mark.parametrize("annex", sorted(annexes()))
def test_without_one_annex_all_other_commands_are_there(checkout: Path, offered: Offered, annex: str) -> None:
    with set_aside(checkout / "v8/annexes" / annex):
        left = listed_commands(checkout)
        names = public_names(checkout)
    assert offered.commands - left == commands_of(annex)
    assert {"run", "predict", "backtest", "doctor"} <= left
    assert offered.names - names == set(functions_of(annex))


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.process
def test_without_any_annex_the_core_trains_reports_and_forecasts(bare: Path) -> None:
    assert not [*(bare / "v8").glob(f"{ANNEXES_FOLDER}/*/{ANNEX_FILE}")]
    trained = call(bare, "run", "--source", "demo", "--smoke", "--series", "BTCUSDT-15m")
    assert trained.returncode == 0, trained.stderr
    assert (bare / "runs/frontier-smoke/report.html").is_file()
    issued = call(bare, "predict", "runs/frontier-smoke", "--source", "demo", "--format", "json")
    assert issued.returncode == 0, issued.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--track", "tensorboard"), "--track tensorboard: needs a tracker, "),
        (("run", "--engine", "ray"), "error: --engine: "),
        (("backtest", "--worth"), "; got --worth"),
        (("predict", "runs/none", "--source", "yfinance"), "error: --source yfinance: "),
        (("update", "runs/none"), "commands; got update"),
    ],
)
def test_what_an_absent_annex_would_do_is_refused_in_one_line(
    bare: Path, words: tuple[str, ...], message: str
) -> None:
    refused = call(bare, *words)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.process
def test_a_page_cannot_be_published_without_the_annex_that_has_it(bare: Path) -> None:
    refused = call(bare, "publish", "--repo", "you/models", "--space", "you/page")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].startswith("error: --space: ")
