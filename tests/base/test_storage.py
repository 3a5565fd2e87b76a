"""Files are whole or absent; digests identify content."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from full_disk import file_limit

from v8.base import storage
from v8.base.errors import StorageError
from v8.base.storage import Pace


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    storage.write_text(path, "old")

    def half(aside: Path) -> None:
        aside.write_text("new but bro", "utf-8")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        storage.write_with(path, half)
    assert path.read_text("utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_in_the_making_is_a_hidden_neighbour_with_the_same_suffix(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model.keras"
    seen = []

    def write(aside: Path) -> None:
        seen.append(aside)
        assert not path.exists()
        aside.write_bytes(b"1")

    storage.write_with(path, write)
    assert path.read_bytes() == b"1"
    assert (seen[0].parent, seen[0].suffix, seen[0].name[0]) == (path.parent, ".keras", ".")


def test_json_refuses_what_other_readers_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        storage.write_json(tmp_path / "nan.json", {"skill": float("nan")})
    assert not list(tmp_path.iterdir())


def test_digests_are_sha256(tmp_path: Path) -> None:
    # The published test vector for "abc" (FIPS 180-4).
    vector = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    (tmp_path / "abc").write_bytes(b"abc")
    assert storage.digest_bytes(b"a", b"bc") == vector
    assert storage.digest_file(tmp_path / "abc") == vector
    assert storage.digest_json({"b": 1, "a": 2}) == storage.digest_bytes(b'{"a":2,"b":1}')


def test_the_home_of_caches_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    assert storage.home() == tmp_path
    monkeypatch.delenv("V8_HOME")
    assert storage.home().name == "v8"


def test_a_place_that_is_no_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine", "utf-8")
    with pytest.raises(StorageError, match=r"run.json: .*got File exists") as caught:
        storage.write_text(tmp_path / "taken" / "run.json", "{}")
    assert caught.value.exit_code == 6
    assert (tmp_path / "taken").read_text("utf-8") == "mine"


def test_a_file_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    sync = os.fsync
    rename = os.replace

    def synced(number: int) -> None:
        messages.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "file")
        sync(number)

    def renamed(aside: Path, path: Path) -> None:
        messages.append("name")
        rename(aside, path)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    storage.write_with(tmp_path / "model.keras", lambda aside: aside.write_bytes(b"1"))
    assert messages == ["file", "name", "folder"]


def test_a_writer_that_fails_over_the_system_in_words_of_its_own_is_a_refusal_of_the_system(
    tmp_path: Path,
) -> None:
    def zipped(aside: Path) -> None:
        with zipfile.ZipFile(aside, "w") as archive, archive.open("one", "w") as stream:
            stream.write(b"1" * 100_000)  # closing the zip then fails with a ValueError

    with file_limit(1000), pytest.raises(StorageError, match=r"big\.zip: .*; got File too large"):
        storage.write_with(tmp_path / "big.zip", zipped)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_only_what_killed_processes_were_writing_is_swept(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = [
        f".model.{dead.pid}.0123abcd.keras",
        f".run.{dead.pid}.0123abcd",
        f".model.{os.getpid()}.0123abcd.keras",
        f".model.{dead.pid}-0a1b2c.0123abcd.keras",  # of another machine that shares the folder
        f".model.{dead.pid}.0123abcg.keras",
        f"model.{dead.pid}.0123abcd.keras",
        f".model.{dead.pid}.0123abcd.keras.mine",
        ".lock",
        ".model.0.0123abcd.keras",
    ]
    for name in names:
        (tmp_path / name).write_text("")
    (tmp_path / f".folder.{dead.pid}.0123abcd.keras").mkdir()
    (tmp_path / f".link.{dead.pid}.0123abcd.keras").symlink_to(tmp_path / ".lock")
    storage.sweep(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert set(names) - left == set(names[:2])
    assert len(left) == len(names)


def test_after_a_day_no_process_is_waited_for(tmp_path: Path) -> None:
    aside = tmp_path / f".model.{os.getpid()}.0123abcd.keras"
    aside.write_text("")
    day_ago = time.time() - storage.ABANDONED_S - 60
    os.utime(aside, (day_ago, day_ago))
    storage.sweep(tmp_path)
    assert not aside.exists()


@pytest.mark.process
def test_passing_folders_that_killed_processes_left_go_with_the_next(tmp_path: Path) -> None:
    code = (
        "import os; from v8.base import storage\n"
        "with storage.passing_folder('v8-publish') as folder:\n"
        "    (folder / 'models').mkdir(); (folder / 'models' / 'model.keras').touch()\n"
        "    os._exit(9) if os.environ.get('KILLED') else print(*sorted(os.listdir(folder.parent)))"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    mine = tmp_path / "v8-publish-mine"
    mine.mkdir()
    subprocess.run([sys.executable, "-c", code], env={**env, "KILLED": "1"}, check=False)
    assert len(list(tmp_path.iterdir())) == 2
    process = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert len(process.stdout.split()) == 2
    assert list(tmp_path.iterdir()) == [mine]


class Clock:
    """Time goes on only where a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_of_forty_series_everything_is_written_at_once_and_of_more_a_twentieth_of_the_time() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.is_due(1_000)
    with pace.timed():
        clock.now_s += 0.5
    assert pace.is_due(40)
    assert not pace.is_due(41)
    clock.now_s += 9.9  # 0.5 s of writing is a twentieth of 10 s
    assert not pace.is_due(41)
    clock.now_s += 0.1
    assert pace.is_due(41)


def test_a_file_that_may_be_a_few_seconds_old_is_written_that_often_however_few_series_there_are() -> None:
    clock = Clock()
    pace = Pace(clock, least_s=5.0)
    assert pace.is_due(1)
    with pace.timed():
        clock.now_s += 0.1
    clock.now_s += 4.9
    assert not pace.is_due(1)
    clock.now_s += 0.1
    assert pace.is_due(1)
    assert pace.is_due(41)
