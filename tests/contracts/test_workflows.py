"""The workflows of the forge: they call what is there, may do little, and nobody can move what they use."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from programs import run_program

from v8.base.version import VERSION

REPOSITORY = Path(__file__).parents[2]
FILES = {path.stem: path for path in sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))}
FLOWS: dict[str, Any] = {name: yaml.safe_load(path.read_text("utf-8")) for name, path in FILES.items()}
WRITES = {
    ("docs", "publish"): {"pages", "id-token"},
    ("image", "push"): {"packages", "id-token", "attestations"},
    ("release", "index"): {"id-token"},
    ("release", "image"): {"packages", "id-token", "attestations"},
    # What the called workflow may at most; without a version its job that pushes is skipped.
    ("nightly", "image"): {"packages", "id-token", "attestations"},
}
"""What jobs may write; all others may read the repository."""


def steps() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, flow in FLOWS.items():
        for job, content in flow["jobs"].items():
            yield from ((name, job, step) for step in content.get("steps", ()))


def test_there_are_workflows_for_tests_site_image_release_the_night_and_new_versions() -> None:
    assert set(FLOWS) == {"docs", "image", "newest", "nightly", "release", "tests"}


def test_whatever_is_used_is_pinned_to_a_commit_and_says_its_version() -> None:
    used = [line.strip() for path in FILES.values() for line in path.read_text("utf-8").splitlines()]
    used = [line.removeprefix("- ") for line in used if line.removeprefix("- ").startswith("uses: ")]
    inner = {f"uses: ./.github/workflows/{name}.yml" for name in FLOWS}
    pinned = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert len(used) > 15
    assert [line for line in used if line not in inner and not pinned.fullmatch(line)] == []
    commits: dict[str, set[str]] = {}
    for line in used:
        commits.setdefault(line.partition("@")[0], set()).add(line)
    assert all(len(lines) == 1 for lines in commits.values())


def test_nobody_may_more_than_a_job_needs() -> None:
    for name, flow in FLOWS.items():
        assert flow["permissions"] == {"contents": "read"}, name
        triggers = flow[True]  # YAML 1.1 reads `on` as actual values
        # Neither a schedule nor a call by hand runs what somebody else has written.
        by_ours = {"schedule", "workflow_dispatch"} if name in ("newest", "nightly") else set()
        assert set(triggers) <= {"push", "pull_request", "workflow_call"} | by_ours, name
        for job, content in flow["jobs"].items():
            given = content.get("permissions", {})
            assert {what for what, how in given.items() if how == "write"} == WRITES.get((name, job), set())
            assert set(given.values()) <= {"read", "write"}
    for _, _, step in steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"] == {"persist-credentials": False}


def test_no_line_of_a_shell_is_made_of_what_others_write() -> None:
    lines = [step["run"] for _, _, step in steps() if "run" in step]
    assert len(lines) > 15
    assert [line for line in lines if "${{" in line] == []


def test_every_program_of_ours_that_is_called_is_there() -> None:
    called = {
        word.replace("\\", "/")
        for _, _, step in steps()
        for word in re.findall(r"scripts[\\/][\w.]+", step.get("run", ""))
    }
    assert {"scripts/test", "scripts/run", "scripts/docs", "scripts/test.cmd", "scripts/run.cmd"} <= called
    assert [name for name in called if not (REPOSITORY / name).is_file()] == []


def test_every_heavy_test_has_its_night() -> None:
    jobs = FLOWS["nightly"]["jobs"]
    assert set(jobs) == {"all", "floors", "processors", "ray", "image", "gpu-paper"}
    assert jobs["all"]["steps"][-1]["run"] == "scripts/test --all"
    assert jobs["floors"]["steps"][-1]["run"] == "scripts/test --floor"
    assert jobs["floors"]["strategy"]["matrix"]["python"] == ["3.12", "3.13"]
    limited = [step["run"] for step in jobs["processors"]["steps"][-2:]]
    assert limited == ["scripts/test --isa avx2", "scripts/test --isa sse4"]
    assert (REPOSITORY / ".ci" / "run").read_text("utf-8").endswith('scripts/test" --all\n')


def test_tools_are_installed_in_the_versions_of_the_constraints() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text("utf-8").splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert [line for line in pinned if not re.fullmatch(r"[\w-]+==[\w.]+", line)] == []
    assert pinned == sorted(pinned, key=lambda line: line.lower().partition("==")[0])
    installs = [(name, step["run"]) for name, _, step in steps() if "pip install" in step.get("run", "")]
    assert len(installs) > 4
    assert [
        run for name, run in installs if name != "newest" and "--constraint constraints.txt" not in run
    ] == []


def test_every_python_that_is_promised_is_tested() -> None:
    setup = ConfigParser()
    setup.read(REPOSITORY / "setup.cfg", "utf-8")
    matches = re.findall(r"Python :: (3\.\d+)", setup["metadata"]["classifiers"])
    assert FLOWS["tests"]["jobs"]["linux"]["strategy"]["matrix"]["python"] == matches
    assert all(version in SpecifierSet(setup["options"]["python_requires"]) for version in matches)


@pytest.mark.process
@pytest.mark.parametrize(
    ("tag", "changelog", "status", "said"),
    [
        (f"v{VERSION}", f"## {VERSION}\n", 0, f"version={VERSION}\n"),
        (f"v{VERSION}", f"## [{VERSION}] - 2026-11-23\n", 0, f"version={VERSION}\n"),
        (f"v{VERSION}", f"## Unreleased\n\nSince {VERSION}\n", 1, ""),
        ("v9.9.9", "## 9.9.9\n", 1, ""),
        (VERSION, f"## {VERSION}\n", 1, ""),
    ],
)
def test_a_tag_is_released_when_it_is_the_version_and_the_changelog_tells_of_it(
    tag: str, changelog: str, status: int, said: str, tmp_path: Path
) -> None:
    (line,) = [step["run"] for name, _, step in steps() if name == "release" and step.get("id") == "checked"]
    (tmp_path / "v8" / "base").mkdir(parents=True)
    shutil.copy(REPOSITORY / "v8" / "base" / "version.py", tmp_path / "v8" / "base")
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    (output := tmp_path / "output").touch()
    python = tmp_path / "python"  # of this environment, whatever the PATH has
    python.symlink_to(shutil.which("python3") or "")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "GITHUB_REF_NAME": tag, "GITHUB_OUTPUT": str(output)}
    process = subprocess.run(["bash", "-e", "-c", line], cwd=tmp_path, env=env, check=False)
    assert (process.returncode, output.read_text()) == (status, said)


def test_a_release_is_tested_then_given_to_the_index_without_a_password() -> None:
    jobs = FLOWS["release"]["jobs"]
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert {"build", "tests", "all"} == set(jobs["index"]["needs"]) == set(jobs["image"]["needs"])
    assert jobs["all"]["steps"][-1]["run"] == "scripts/test --all"
    assert (jobs["index"]["environment"], jobs["index"]["permissions"]) == ("release", {"id-token": "write"})
    assert jobs["index"]["steps"][-1]["with"] == {"attestations": True}
    assert "secrets." not in FILES["release"].read_text("utf-8")


@pytest.mark.process
@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("actionlint", map(str, FILES.values())),
        ("zizmor", ["--offline", "--quiet", "--min-severity", "medium", *map(str, FILES.values())]),
        ("hadolint", [str(REPOSITORY / "Dockerfile")]),
    ],
)
def test_a_linter_that_is_there_finds_nothing(tool: str, words: Any) -> None:
    if not (program := shutil.which(tool)):
        pytest.skip(f"no {tool}: the workflow Tests installs it")
    process = run_program([program, *words])
    assert process.returncode == 0, process.stdout + process.stderr
