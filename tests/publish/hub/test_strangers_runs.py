"""Run folders that a stranger made: what lies outside them is neither read, written nor published.

Real files and, where the command line is meant, real processes. tests/publish/hub/test_strangers_records.py
puts any JSON at any key of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import called
from outputs import write_outputs
from signs import without_signs

from v8.base.errors import ArtifactError
from v8.profile.profile import load_profile
from v8.publish.hub.staging import stage_run
from v8.runs.run_folder import RunFolder, RunRecord, read_run

pytestmark = pytest.mark.tf

SERIES = "BTCUSDT-15m"
NAMES = [
    "../../pwn",
    "/tmp/pwn",
    "BTCUSDT-15m/../../pwn",
    "..\\..\\pwn",
    "C:\\pwn",
    "CON",
    "NUL.txt",
    "BTCUSDT-15m\x00",
    "BTCUSDT-15m\n",
    "btcusdt-15m",
    "=cmd()",
    "",
    ".",
    "A" * 5_000 + "-15m",
]


@pytest.fixture
def run(make_run: Any) -> Path:
    return Path(make_run([SERIES]))


def rewrite(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((run / "run.json").read_text())
    change(content)
    (run / "run.json").write_text(json.dumps(content))


def everything_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", NAMES)
def test_a_series_whose_name_is_none_is_refused_when_read(run: Path, name: str) -> None:
    def change(content: dict[str, Any]) -> None:
        content["series"][name] = content["series"].pop(SERIES)

    rewrite(run, change)
    refused = (
        r"run\.json(, key series: names series such as BTCUSDT-15m, not|: must be valid JSON; .*the key) '"
    )
    with pytest.raises(ArtifactError, match=refused):
        read_run(run)


@pytest.mark.parametrize("name", ["../pwn", "", "a\x00", "A", "x" * 65, "a/b", None, 3, ["a"]])
def test_a_profile_whose_name_is_none_is_refused_when_read(run: Path, name: Any) -> None:
    rewrite(run, lambda content: content["profile"].update(name=name))
    with pytest.raises(ArtifactError, match=r"run\.json, key profile\.name: "):
        read_run(run)


@pytest.mark.process
@pytest.mark.parametrize("command", ["publish", "report"])
def test_nothing_is_written_outside_by_a_name(run: Path, tmp_path: Path, command: str) -> None:
    def change(content: dict[str, Any]) -> None:
        content["series"]["../../pwn"] = content["series"][SERIES]

    rewrite(run, change)
    before = everything_below(tmp_path)
    result = called(command, run, *(["--repo", "someone/fleet", "--dry-run"] if command == "publish" else []))
    assert result.returncode == 3
    assert len(without_signs(result.stderr).splitlines()) == 1
    assert "names series such as BTCUSDT-15m, not '../../pwn'" in result.stderr
    assert everything_below(tmp_path) == before


PARTS = [
    "run.json",
    ".lock-holder",
    "report",
    SERIES,
    *(f"{SERIES}/{name}" for name in ("model.keras", "metadata.json", "history.csv", "forecasts.json")),
]


@pytest.mark.parametrize("part", PARTS)
def test_a_link_in_a_run_is_neither_read_nor_published_nor_written_through(
    run: Path, tmp_path: Path, part: str
) -> None:
    target = tmp_path / "secret"
    if (run / part).exists():
        (run / part).rename(target)
    elif part == "report":
        target.mkdir()
    else:
        target.write_text("secret")
    (run / part).symlink_to(target)
    kept = everything_below(target) if target.is_dir() else target.read_bytes()
    tries: list[Callable[[], object]] = [
        lambda: write_outputs(run),
        lambda: stage_run(run, tmp_path / "staged", "someone/fleet"),
        lambda: RunFolder(run, RunRecord.begin(load_profile("aligned"), "vision", True, "v8")),
    ]
    for attempt in tries:
        with pytest.raises(ArtifactError, match="a run holds its files itself; what a link leads to"):
            attempt()
    assert kept == (everything_below(target) if target.is_dir() else target.read_bytes())
    assert not (tmp_path / "staged").exists()


def test_a_run_that_is_itself_reached_by_a_link_is_the_users_own_choice(run: Path, tmp_path: Path) -> None:
    (tmp_path / "newest").symlink_to(run)
    assert read_run(tmp_path / "newest") == read_run(run)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes in folders are a matter of Unix")
@pytest.mark.parametrize("name", ["metadata.json", "history.csv", "forecasts.json"])
def test_nobody_waits_for_a_pipe_in_a_run(run: Path, name: str) -> None:
    (run / SERIES / name).unlink(missing_ok=True)
    os.mkfifo(run / SERIES / name)
    with pytest.raises(ArtifactError, match=r"got a pipe, a socket or a device in the place of a file"):
        write_outputs(run)


@pytest.mark.parametrize(
    "name", ["run.json", f"{SERIES}/metadata.json", f"{SERIES}/history.csv", f"{SERIES}/forecasts.json"]
)
def test_a_file_without_end_is_not_read_to_its_end(run: Path, name: str) -> None:
    with (run / name).open("ab") as stream:
        stream.truncate(1 << 40)  # a hole: it takes no room on the disk
    with pytest.raises(ArtifactError, match=r"of at most 16,777,216 bytes; got 1,099,511,627,776 bytes"):
        write_outputs(run)


@pytest.mark.process
def test_a_refused_run_leaves_no_staging_folder(run: Path, tmp_path: Path) -> None:
    (run / SERIES / "history.csv").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (tmp_path / "temporary").mkdir()
    env = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    result = called("publish", run, "--repo", "someone/fleet", "--dry-run", env=env)
    assert result.returncode == 3
    assert "history.csv: must be CSV with the numbers epoch, train_loss, validation_loss" in result.stderr
    assert not everything_below(tmp_path / "temporary")
