"""What a project that others join has: templates, hooks, pinned updates; they name what is there."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import run_program

import v8

REPOSITORY = Path(__file__).parents[2]
FORGE = REPOSITORY / ".github"


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def test_actions_and_tools_are_raised_every_week() -> None:
    updates = read_yaml(FORGE / "dependabot.yml")["updates"]
    assert [entry["package-ecosystem"] for entry in updates] == ["github-actions", "pip"]
    assert all(entry["schedule"]["interval"] == "weekly" for entry in updates)


def test_hooks_call_what_ci_calls_and_download_nothing() -> None:
    (repository,) = read_yaml(REPOSITORY / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        (script,) = re.findall(r"scripts/\w+", hook["entry"])
        assert (REPOSITORY / script).is_file()


def test_files_that_templates_and_pages_name_are_there() -> None:
    texts = [(FORGE / "pull_request_template.md").read_text("utf-8")]
    texts += [(REPOSITORY / "CODE_OF_CONDUCT.md").read_text("utf-8")]
    named = {name for text in texts for name in re.findall(r"[`(]([\w/.-]+\.md)[`)]", text)}
    assert {"CHANGELOG.md", "SECURITY.md", "docs/en/reference/public.md"} <= named
    assert [name for name in named if not (REPOSITORY / name).is_file()] == []


@pytest.mark.tf
def test_the_page_of_what_is_public_leads_to_the_names_of_the_package() -> None:
    text = (REPOSITORY / "docs/en/reference/public.md").read_text("utf-8")
    assert "`v8.__all__`" in text
    assert v8.__all__
    for kind in ("command line", "Python", "files", "plug-in hooks", "environment variables"):
        assert re.search(rf"^\| (the )?{kind} \|", text, re.MULTILINE), kind
    assert "two minor versions and six months" in text


def test_the_author_is_who_the_citation_names() -> None:
    setup = ConfigParser()
    setup.read(REPOSITORY / "setup.cfg", "utf-8")
    citation = read_yaml(REPOSITORY / "CITATION.cff")
    assert [{"name": setup["metadata"]["author"]}] == citation["authors"]


@pytest.mark.process
def test_results_of_users_are_not_tracked_and_packages_of_the_same_name_are() -> None:
    names = ["runs/a", "backtests/a", "searches/a", "comparison/a"]
    packages = ["v8/runs/a.py", "v8/annexes/search/a.py", "v8/annexes/comparison/a.py", "tests/runs/a.py"]
    words = ["git", "-C", str(REPOSITORY), "check-ignore", *names, *packages]
    process = run_program(words)
    assert process.stdout.split() == names


@pytest.mark.process
@pytest.mark.parametrize(
    ("subject", "code"),
    [
        ("x" * 72, 0),
        ("x" * 73, 1),
        ("Say what it does.", 1),
        ("", 1),
        ("Merge commit 0123456789012345678901234567890123456789012345678901234567890123456789", 0),
    ],
)
def test_the_subject_of_a_commit_has_at_most_72_characters(subject: str, code: int, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_text(
        f"{subject}\n\nA body may be longer than that and ends with a full stop, as sentences do.\n"
    )
    process = run_program(["bash", REPOSITORY / "scripts" / "commit_subject", message])
    assert process.returncode == code
    assert ("has 1 to 72 characters" in process.stderr) == bool(code)


def test_no_sentence_cites_a_guarantee_by_its_number() -> None:
    """Nothing in the repository defines one."""
    folders = ("v8", "scripts", "docs", "tests")
    files = [file for folder in folders for file in (REPOSITORY / folder).rglob("*.py")]
    assert len(files) > 400
    assert [file for file in files if re.search(r"\bG[12]?\d\b", file.read_text("utf-8"))] == []
