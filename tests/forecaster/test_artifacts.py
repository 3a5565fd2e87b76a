"""Run folders keep what a run was started with; the loader refuses what it cannot trust."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tiny_profiles import tiny_profile

from v8.base.errors import ArtifactError, DataError, ProfileError, StorageError
from v8.base.storage import FolderLock, write_json
from v8.data.market.candles import CandlePin
from v8.data.market.series import Series
from v8.profile.profile import Profile
from v8.runs.run_folder import RUN_FORMAT, RunFolder, RunRecord, SeriesState, locate_run, read_run

BTC = Series("BTCUSDT", "15m")
PIN = CandlePin("2024-01-01T00:00:00+00:00", "2024-01-01T02:30:00+00:00", 11, "a" * 64)


def started(profile: Profile) -> RunRecord:
    return RunRecord.begin(profile, "files", True, "python -m v8.run")


@pytest.fixture
def begun() -> RunRecord:
    return started(tiny_profile())


def test_a_run_is_continued_with_the_states_it_had(tmp_path: Path, begun: RunRecord) -> None:
    with RunFolder(tmp_path / "tiny", begun) as folder:
        folder.pin(BTC, PIN)
        folder.set_state(BTC, status="failed", reason="no luck")
    with RunFolder(tmp_path / "tiny", begun) as folder:
        assert folder.state(BTC).candles == PIN
        assert (folder.state(BTC).status, folder.state(BTC).reason) == ("failed", "no luck")
        assert folder.state(Series("ETHUSDT", "1h")).status == "pending"


def test_a_series_that_was_cut_off_waits_again(tmp_path: Path, begun: RunRecord) -> None:
    with RunFolder(tmp_path / "tiny", begun) as folder:
        folder.set_state(BTC, status="running")
    with RunFolder(tmp_path / "tiny", begun) as folder:
        assert folder.state(BTC).status == "pending"


def test_other_candles_than_the_pinned_ones_are_refused(tmp_path: Path, begun: RunRecord) -> None:
    with RunFolder(tmp_path / "tiny", begun) as folder:
        folder.pin(BTC, PIN)
        folder.pin(BTC, PIN)
        with pytest.raises(
            DataError, match=r"BTCUSDT-15m: .* was started with 11 candles .* digest aaaa.*--fresh"
        ):
            folder.pin(BTC, replace(PIN, digest="b" * 64))


def test_another_profile_is_refused_and_its_keys_named(tmp_path: Path, begun: RunRecord) -> None:
    with RunFolder(tmp_path / "tiny", begun) as folder:
        folder.set_state(BTC, status="done")
    other = started(tiny_profile().with_budget(newest_bars=800))
    with pytest.raises(ProfileError, match=r"other values: newest_bars 700 -> 800\. .*--fresh"):
        RunFolder(tmp_path / "tiny", other)


def test_another_source_is_refused(tmp_path: Path, begun: RunRecord) -> None:
    with RunFolder(tmp_path / "tiny", begun) as folder:
        folder.set_state(BTC, status="done")
    with pytest.raises(ArtifactError, match=r"started with --source files .*got --source demo"):
        RunFolder(tmp_path / "tiny", replace(begun, source="demo"))


@pytest.mark.parametrize("name", ["report.html", "leaderboard.csv", "BTCUSDT-15m/model.keras"])
def test_a_run_does_not_start_where_something_else_lies(tmp_path: Path, begun: RunRecord, name: str) -> None:
    """At 4c79749 a run whose run.json was gone, and files of the user's, were written over without a word."""
    file = tmp_path / "tiny" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(ArtifactError, match=r"got [\w.-]+\. Restore run\.json"):
        RunFolder(tmp_path / "tiny", begun)
    assert file.read_text() == "mine"
    assert not (tmp_path / "tiny" / "run.json").exists()


@pytest.mark.parametrize("left", [None, "error.txt", ".model.999999999.0123abcd.keras"])
def test_a_run_of_which_nothing_is_finished_or_in_training_begins_anew(
    tmp_path: Path, begun: RunRecord, left: str | None
) -> None:
    with RunFolder(tmp_path / "tiny", begun) as folder:
        folder.pin(BTC, PIN)
        folder.set_state(BTC, status="failed", reason="too few candles")
    if left:
        write_json(tmp_path / "tiny" / str(BTC) / left, {})
    other = started(tiny_profile().with_budget(newest_bars=800))
    with RunFolder(tmp_path / "tiny", other) as folder:
        assert str(folder.note).startswith(f"{folder.path}: nothing of this run ")
        assert folder.state(BTC) == SeriesState()
    assert read_run(tmp_path / "tiny") == other


@pytest.mark.parametrize("left", [".training/checkpoint.npz", "model.keras", "notes of the user.md"])
def test_a_run_with_a_checkpoint_or_any_other_file_does_not_begin_anew(
    tmp_path: Path, begun: RunRecord, left: str
) -> None:
    with RunFolder(tmp_path / "tiny", begun) as folder:
        folder.set_state(BTC, status="pending")
    write_json(tmp_path / "tiny" / str(BTC) / left, {})
    with pytest.raises(ProfileError, match=r"other values: newest_bars 700 -> 800\. .*--fresh"):
        RunFolder(tmp_path / "tiny", started(tiny_profile().with_budget(newest_bars=800)))


def test_a_run_that_cannot_be_written_is_opened_but_not_changed(tmp_path: Path, begun: RunRecord) -> None:
    with RunFolder(tmp_path / "tiny", begun) as folder:
        folder.set_state(BTC, status="done")
    (tmp_path / "tiny" / ".lock").unlink()
    (tmp_path / "tiny" / ".lock").mkdir()  # refused to everybody, root too
    with RunFolder(tmp_path / "tiny", begun) as folder:
        assert folder.state(BTC).status == "done"
        with pytest.raises(StorageError, match=r"tiny/.lock: .*got a folder in"):
            folder.set_state(BTC, status="running")
    assert read_run(tmp_path / "tiny").series[str(BTC)].status == "done"


def test_a_place_without_a_run_that_cannot_be_written_is_refused(tmp_path: Path, begun: RunRecord) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(StorageError, match=r"tiny: .*got Not a directory"):
        RunFolder(tmp_path / "runs" / "tiny", begun)


def test_the_holder_of_the_lock_sweeps_what_killed_processes_left(tmp_path: Path, begun: RunRecord) -> None:
    with RunFolder(tmp_path / "tiny", begun) as folder:
        folder.set_state(BTC, status="done")
    places = [Path(), Path("report"), Path(str(BTC)), Path(str(BTC), ".training")]
    for place in places:
        write_json(tmp_path / "tiny" / place / ".x.999999999.0123abcd.json", {})
        write_json(tmp_path / "tiny" / place / ".mine.json", {})
    with RunFolder(tmp_path / "tiny", begun):
        pass
    found = {path.relative_to(tmp_path / "tiny") for path in (tmp_path / "tiny").rglob("*.json")}
    assert found == {Path("run.json"), *(place / ".mine.json" for place in places)}


def test_a_series_that_is_set_aside_waits_and_keeps_its_files_and_pin(
    tmp_path: Path, begun: RunRecord
) -> None:
    with RunFolder(tmp_path / "tiny", begun) as folder:
        folder.pin(BTC, PIN)
        for number in (1, 2):
            folder.set_state(BTC, status="done")
            write_json(folder.series_folder(BTC) / "metadata.json", number)
            folder.set_aside(BTC)
        assert folder.state(BTC) == SeriesState(candles=PIN)
        folder.set_aside(BTC)  # nothing is there any more
    text = [
        (tmp_path / "tiny" / f"{BTC}.replaced-{number}" / "metadata.json").read_text() for number in (1, 2)
    ]
    assert text == ["1\n", "2\n"]


def test_one_writer_at_a_time_and_the_other_is_named(tmp_path: Path, begun: RunRecord) -> None:
    with (
        RunFolder(tmp_path / "tiny", begun),
        pytest.raises(ArtifactError, match=r"tiny: .*got process \d+ at work"),
    ):
        FolderLock(tmp_path / "tiny")
    with FolderLock(tmp_path / "tiny"):
        pass


@pytest.mark.parametrize("named", [None, b"", b"\xff\xfe", b"no process\n", "folder"])
def test_a_holder_that_nothing_tells_is_another_process(
    named: bytes | str | None, tmp_path: Path, begun: RunRecord
) -> None:
    """Its file is written after the lock is taken, and it may be another user's."""
    with RunFolder(tmp_path / "tiny", begun):
        holder = tmp_path / "tiny" / ".lock-holder"
        holder.unlink()
        if isinstance(named, bytes):
            holder.write_bytes(named)
        elif named:
            holder.mkdir()
        with pytest.raises(ArtifactError, match="got another process at"):
            FolderLock(tmp_path / "tiny")


def test_a_refused_run_lets_the_folder_go(tmp_path: Path, begun: RunRecord) -> None:
    write_json(tmp_path / "tiny" / "run.json", {"format": RUN_FORMAT})
    with pytest.raises(ArtifactError, match="must be as v8 wrote it"):
        RunFolder(tmp_path / "tiny", begun)
    with FolderLock(tmp_path / "tiny"):
        pass


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "got damage"),
        ('{"format": 1, "prof', "got damage"),
        ("[1]", "got list"),
        ('{"format": 99}', "reads run format 3; got format 99"),
        ('{"format": 2}', "format 3; got format 2, "),
        ('{"format": 3}', "key profile: .*got no such key"),
    ],
)
def test_a_damaged_run_file_is_refused_by_its_name(tmp_path: Path, content: str, match: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ArtifactError, match=rf"run\.json.*{match}.*") as caught:
        read_run(tmp_path)
    assert " run --fresh`" in caught.value.fix  # `update` and others have no such option
    with pytest.raises(ArtifactError) as in_backtest:
        read_run(tmp_path, "param:out")
    assert in_backtest.value.fix.endswith("another run with param:out")


def test_a_profile_that_was_edited_under_its_old_digest_is_refused(tmp_path: Path, begun: RunRecord) -> None:
    content = asdict(begun)
    content["profile"]["lookback_bars"] += 1
    write_json(tmp_path / "run.json", content)
    expected = r"run\.json, key profile: .* profile_digest .*edited since"
    with pytest.raises(ArtifactError, match=expected):
        read_run(tmp_path)


def test_a_profile_recorded_before_later_keys_came_is_the_one_of_its_digest(tmp_path: Path) -> None:
    record = started(tiny_profile(description="Two lines\n  and blanks\t."))
    content = asdict(record)
    later = {"optimizer", "weight_decay", "schedule", "warmup_epochs", "gradient_clip", "cpu_batch_size"}
    later |= {"gradient_accumulation", "checkpoint_activations"}
    for key in later:
        del content["profile"]["training"][key]
    write_json(tmp_path / "run.json", content)
    assert read_run(tmp_path).profile_digest == record.profile_digest


def test_g11_fresh_runs_take_the_next_number_and_the_newest_is_continued(
    tmp_path: Path, begun: RunRecord
) -> None:
    def located(is_fresh: bool) -> str:
        return locate_run(tmp_path, "tiny", is_fresh=is_fresh).name

    assert located(True) == located(False) == "tiny"
    for name in ("tiny", "tiny-2", "tiny-10"):
        with RunFolder(tmp_path / name, begun):
            pass
    assert located(False) == "tiny-10"
    assert located(True) == "tiny-11"


def test_a_folder_that_is_no_run_is_neither_continued_nor_used(tmp_path: Path) -> None:
    (tmp_path / "tiny-2").mkdir(parents=True)
    (tmp_path / "tiny-notes").mkdir()
    assert locate_run(tmp_path, "tiny", is_fresh=False).name == "tiny"
    assert locate_run(tmp_path, "tiny", is_fresh=True).name == "tiny-3"


def test_runs_of_a_profile_whose_name_ends_in_a_number_are_not_taken_over(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "tiny-2", started(tiny_profile(name="tiny-2"))):
        pass
    assert locate_run(tmp_path, "tiny", is_fresh=False).name == "tiny"
