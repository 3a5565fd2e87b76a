"""Files are whole or absent; digests identify content."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from v8 import storage
from v8.errors import StorageError


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
    path, seen = tmp_path / "deep" / "model.keras", []

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
    with pytest.raises(StorageError, match=r"taken.*must be written; got .+\. Make room") as caught:
        storage.write_text(tmp_path / "taken" / "run.json", "{}")
    assert caught.value.exit_code == 6
    assert (tmp_path / "taken").read_text("utf-8") == "mine"


def test_a_file_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced(number: int) -> None:
        told.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "file")
        sync(number)

    def renamed(aside: Path, path: Path) -> None:
        told.append("name")
        rename(aside, path)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    storage.write_with(tmp_path / "model.keras", lambda aside: aside.write_bytes(b"1"))
    assert told == ["file", "name", "folder"]
