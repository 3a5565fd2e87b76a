"""The site: its reference is the code's, and its commands run; `scripts/docs check` follows its links."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import shutil
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from documentation import notebooks, pages, reference
from editions import differences, strange_words
from forked import called
from outputs import write_outputs

import v8
from v8.base.version import VERSION
from v8.cli.app import app
from v8.profile import ta_features
from v8.profile.families import FAMILIES
from v8.profile.indicators import FEATURES
from v8.profile.profile import Profile
from v8.profile.settings import SplitSettings, TableSettings, TaskSettings, TrainingSettings

REPOSITORY = Path(__file__).parents[2]
ENGLISH = REPOSITORY / "docs/en"
CHINESE = REPOSITORY / "docs/zh-TW"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MEANT = "runs/frontier-smoke"
"""The run that the tutorial's commands make."""


@pytest.fixture(scope="module")
def smoke(trained_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy a small run to where the tutorial's commands look for theirs, with its leaderboard."""
    place = tmp_path_factory.mktemp("tutorial") / MEANT
    shutil.copytree(trained_run.path, place)
    write_outputs(place)
    return place


def test_the_reference_tells_every_command_with_every_option() -> None:
    told = reference.commands()
    for name, command in typer.main.get_command(app).commands.items():
        assert f"## `{name}`" in told
        section = told.partition(f"## `{name}`")[2].partition("\n## ")[0]
        for param in command.params:
            if param.param_type_name == "option" and param.name != "help":
                assert f"`{max(param.opts, key=len)}" in section, (name, param.opts)


def test_the_reference_tells_every_key_of_a_profile_with_a_sentence() -> None:
    told = reference.profile_keys()
    sections = {"split.": SplitSettings, "tasks.": TaskSettings, "training.": TrainingSettings}
    models = {"": Profile, **sections, "covariates.": TableSettings}
    for prefix, model in models.items():
        for name in model.model_fields:
            row = next(line for line in told.splitlines() if line.startswith(f"| `{prefix}{name}` |"))
            assert len(row.split("|")[2].split()) > 2, row
    for name, family in FAMILIES.items():
        section = told.partition(f"### `{name}`")[2].partition("\n### ")[0]
        assert all(f"`network.{key}`" in section for key in family.settings.model_fields)


@pytest.mark.parametrize(
    ("name", "meaning", "unit"),
    [
        ("lookback_bars", "Rows a forecast looks at.", "bars"),
        ("max_age_s", "", "seconds"),
        ("learning_rate", "Step size at the start, unitless.", "unitless"),
        ("epochs", "Most passes over the train span.", "epochs"),
        ("scaling", "", ""),
    ],
)
def test_a_key_says_its_unit_by_its_name_or_in_its_sentence(name: str, meaning: str, unit: str) -> None:
    assert reference.unit(name, meaning) == unit


@pytest.mark.tf
def test_the_reference_tells_what_can_be_imported_and_every_feature() -> None:
    python = reference.python()
    features = reference.features(is_examined=False)
    assert [name for name in v8.__all__ if f"## `v8.{name}`" not in python] == []
    assert "**Args**" in python
    assert ">>> import v8" in python
    names = [*FEATURES, *(f"ta.{name}" for name in ta_features.outputs())]
    assert [name for name in names if f"| `{name}` |" not in features] == []


def test_the_reference_of_the_api_is_what_the_server_says_of_itself() -> None:
    from v8.annexes.live.app.answers import description

    described = description()
    told = reference.api()
    assert [path for path in described["paths"] if f"## `{path}`" not in told] == []
    for name, schema in described["components"]["schemas"].items():
        section = told.partition(f"### {name}\n")[2].partition("\n### ")[0]
        assert all(f"`{key}`" in section for key in schema.get("properties", {}))


def test_every_variable_that_the_package_reads_is_told() -> None:
    content = yaml.safe_load((REPOSITORY / "docs/variables.yaml").read_text("utf-8"))
    assert reference.variables() - content.keys() - {"V8_STABLE"} == set()
    assert "`V8_HOME`" in reference.environment()


def leaves(content: Any, path: str = "") -> Iterator[str]:
    """Yield the keys of JSON, one below the other; `[]` stands for each of a list."""
    match content:
        case dict():
            for key, value in content.items():
                yield from leaves(value, f"{path}.{key}")
        case [first, *_]:
            yield from leaves(first, f"{path}[]")
        case _:
            yield path.removeprefix(".")


def untold(content: Any, file: str) -> list[str]:
    """List the keys that are written and not told of a file."""
    fields = yaml.safe_load(reference.FIELDS.read_text("utf-8"))[file]["fields"]
    meant = {r"\.\*\*": r"[.\[].*", "NAME": r"(?:[0-9.]+ %|[^.\[]+)"}
    patterns = []
    for key, _ in reference.told_fields(fields):
        pattern = re.escape(key)
        for written, either in meant.items():
            pattern = pattern.replace(written, either)
        patterns.append(pattern)
    maps = (
        "candles.report.time_units",
        "candles.report.lacking",
        "candles.report.gaps",
        "candles.report.newest",
    )
    return [
        key
        for key in leaves(content)
        if not key.startswith(maps) and not any(re.fullmatch(one, key) for one in patterns)
    ]


@pytest.mark.tf
def test_every_key_that_a_run_writes_is_told(smoke: Path) -> None:
    files = {
        "metadata.json": smoke / "BTCUSDT-15m" / "metadata.json",
        "run.json": smoke / "run.json",
        "timing.json": smoke / "timing.json",
    }
    for name, file in files.items():
        content = json.loads(file.read_text("utf-8"))
        assert untold(content, name) == []
        assert untold({**content, "unheard": {"of": 1}}, name) == ["unheard.of"]


def python_blocks(page: Path) -> list[str]:
    """Return the programs of a page, those in tabs without their indent."""
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(text) for _, text in blocks]


@pytest.mark.tf
@pytest.mark.parametrize("page", sorted(ENGLISH.rglob("*.md")), ids=lambda page: page.stem)
def test_programs_of_a_page_call_functions_that_there_are_with_arguments_that_they_take(page: Path) -> None:
    for twin in (page, CHINESE / page.relative_to(ENGLISH)):
        for block in python_blocks(twin):
            for call in ast.walk(ast.parse(block)):
                if not isinstance(call, ast.Call) or not re.fullmatch(r"v8\.\w+", ast.unparse(call.func)):
                    continue
                function = getattr(v8, ast.unparse(call.func).removeprefix("v8."))
                names = [keyword.arg for keyword in call.keywords]
                inspect.signature(function).bind(*call.args, **dict.fromkeys(filter(None, names)))


@pytest.mark.parametrize("language", pages.LANGUAGES)
def test_the_home_page_begins_with_commands(language: str) -> None:
    text = (REPOSITORY / "docs" / language / "index.md").read_text("utf-8").partition("# v8\n")[2]
    assert text.index("```console\nscripts/v8 run ") < 500  # letters: within the first screen


def test_the_navigation_names_every_page_in_both_languages() -> None:
    for language in pages.LANGUAGES:
        named = set(re.findall(r'"([\w/-]+\.md)"', (REPOSITORY / f"docs/{language}.toml").read_text("utf-8")))
        own = {page.relative_to(ENGLISH).as_posix() for page in ENGLISH.rglob("*.md")}
        logs = {f"research/{page.name}" for page in (REPOSITORY / "docs/research").glob("*.md")}
        gallery = {f"notebooks/{name}.md" for name in notebooks.names()}
        assert named == own | logs | gallery | reference.pages().keys()


@pytest.mark.parametrize("page", pages.english_pages())
def test_a_translation_says_the_same_as_its_page(page: str) -> None:
    chinese = (CHINESE / page).read_text("utf-8").partition("---\n\n")[2]
    assert not (told := differences((ENGLISH / page).read_text("utf-8"), chinese)), "\n".join(told)
    assert not (strange := [*strange_words(chinese)]), "\n".join(strange)


def test_what_stays_english_has_a_title_and_an_introduction_in_chinese(tmp_path: Path) -> None:
    introductions = pages.introductions()
    gallery = {f"notebooks/{name}.md" for name in notebooks.names()}
    assert introductions.keys() == reference.pages().keys() | gallery
    for page, introduction in introductions.items():
        assert introduction.keys() == {"title", "text"}, page
        assert not (strange := [*strange_words(f"# {introduction['title']}\n\n{introduction['text']}")]), (
            strange
        )
    settings = pages.stage(
        tmp_path, write={"reference/commands.md": lambda: "# Commands\n\nWords.\n\n| a |\n"}
    )
    english, chinese = (file.parent / "docs" for file in settings)
    assert (english / "reference/commands.md").read_text("utf-8").startswith("# Commands\n\nWords.")
    title, text, rest = (chinese / "reference/commands.md").read_text("utf-8").split("\n\n")
    assert title == "# 指令"
    assert text.startswith("從原始碼資料夾")
    assert rest == "| a |\n"
    figures = (chinese / "explanation/figures.md").read_text("utf-8")
    assert "# 實測數據，附指令與機器\n\n五列說明" in figures
    assert "## 紙上的 GPU" in figures
    assert (chinese / "research/frontier.md").read_text("utf-8").startswith(pages.NOT_TRANSLATED)
    assert not (chinese / "introductions.yaml").exists()


def test_the_site_names_its_version_and_a_repository_that_has_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("V8_REPOSITORY_URL", raising=False)
    for setting, expected in (
        ("", None),
        ("ssh://forge.example/you/v8", None),
        ("https://forge.example/you/v8", "https://forge.example/you/v8"),
    ):
        monkeypatch.setenv("V8_REPOSITORY_URL", setting)
        for file in pages.stage(tmp_path, write={}):
            project = tomllib.loads(file.read_text("utf-8"))["project"]
            assert project["site_name"].startswith(f"v8 {VERSION} ")
            assert project.get("repo_url") == expected
            assert project.get("repo_name") == ("you/v8" if expected else None)


def tutorial(kind: str) -> list[str]:
    """Return the tutorial's blocks of a kind, also those in tabs, whose lines are indented."""
    text = re.sub(r"^ {4}", "", (ENGLISH / "tutorial.md").read_text("utf-8"), flags=re.MULTILINE)
    return [block for found, block in BLOCK.findall(text) if found == kind]


@pytest.mark.tf
@pytest.mark.process
def test_the_commands_of_the_tutorial_do_what_it_says(trained_run: Any, smoke: Path) -> None:
    """A tiny run stands in the place of the smoke job's, which is planned only."""
    place = smoke.parent.parent
    env = {"V8_HOME": str(trained_run.path.parent.parent / "caches"), "PATH": "/usr/bin:/bin"}
    lines = [line for line in "".join(tutorial("console")).splitlines() if "--source demo" in line]
    (run,) = (line for line in lines if " run " in line)
    planned = shlex.split(run)[1:]
    process = called(*planned, "--dry-run", "--runs", "planned", cwd=place, env=env)
    assert process.returncode == 0, process.stderr
    (told,) = (line for line in lines if line.endswith("--format json"))
    process = called(*shlex.split(told)[1:], cwd=place, env=env, tf=True)
    assert process.returncode == 0, process.stderr
    assert len(json.loads(process.stdout)["forecast"]) == 3
    assert untold(json.loads(process.stdout), "predict --format json") == []
    assert len(lines) == 6  # the others print or show the same forecast otherwise


@pytest.mark.tf
def test_the_python_of_the_tutorial_runs(
    smoke: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(smoke.parent.parent)
    train, predict, look, train_real = tutorial("python")
    assert "v8.train" in train
    assert "v8.train" in train_real
    exec(compile(predict, "tutorial.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3  # titles, rows
    exec(compile(look, "tutorial.md", "exec"), {})
    assert "model  ohlc" in capsys.readouterr().out


@pytest.mark.tf
@pytest.mark.process
def test_the_number_that_the_page_on_evaluation_checks_by_hand_is_the_published_one(
    trained_run: Any, smoke: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ENGLISH / "explanation/evaluation.md").read_text("utf-8")
    blocks = dict(BLOCK.findall(page))
    (export,) = (line for line in blocks["console"].splitlines() if " export " in line)
    words = [*shlex.split(export)[1:], "--data-dir", str(trained_run.candles_dir)]
    process = called(*words, "--source", "files", cwd=smoke.parent.parent, tf=True)
    assert process.returncode == 0, process.stderr
    monkeypatch.chdir(smoke.parent.parent)
    exec(compile(blocks["python"], "evaluation.md", "exec"), {})
    told, published, again, volatility = capsys.readouterr().out.splitlines()
    number = told.split(" = ")[1]
    assert re.fullmatch(r"[01]\.[0-9]{8}", number)
    assert published == f"leaderboard.csv: {number}"
    assert float(again.split(": ")[1]) == pytest.approx(float(number), abs=2e-6)
    by_hand, recorded = map(float, volatility.split())
    assert by_hand == pytest.approx(recorded, rel=1e-5)


def test_no_call_of_a_python_block_stands_within_a_comment() -> None:
    hidden = []
    for page in sorted((REPOSITORY / "docs").rglob("*.md")):
        for kind, block in BLOCK.findall(page.read_text("utf-8")):
            comments = [line for line in block.splitlines() if line.startswith("#")]
            hidden += [line for line in comments if kind == "python" and re.search(r"= v8\.\w+\(", line)]
    assert not hidden


def test_the_chinese_readme_links_pages_in_chinese_where_they_are() -> None:
    text = (REPOSITORY / "README.zh-TW.md").read_text("utf-8")
    linked = re.findall(r"docs/en/([\w/-]+\.md)", text)
    assert not [page for page in linked if (REPOSITORY / "docs/zh-TW" / page).is_file()]
