"""The manifest: what we write comes back, and what nobody of us writes is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.base.errors import ArtifactError
from v8.publish.hub.places import DataSpan, ListedFile, Manifest, is_published_path, read_manifest

SERIES = "BTCUSDT-15m"
PATHS = (
    "README.md",
    "leaderboard.csv",
    *(f"models/{SERIES}/{name}" for name in ("README.md", "history.csv", "metadata.json", "model.keras")),
)


def made_manifest() -> Manifest:
    return Manifest(
        profile_name="aligned",
        profile_digest="ab" * 32,
        created_at="2026-11-01T12:00:00+00:00",
        versions={"keras": "3.15.1"},
        data={SERIES: DataSpan("vision", "2026-08-01T00:00:00+00:00", "2026-10-31T23:45:00+00:00", 8_000)},
        files=tuple(ListedFile(path, "cd" * 32, 7) for path in PATHS),
    )


def content() -> Any:
    return json.loads(made_manifest().to_text())


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    file.write_text(made_manifest().to_text())
    assert read_manifest(file) == made_manifest()
    assert read_manifest(file).to_text() == file.read_text()


def test_the_form_of_a_manifest_is_the_one_that_others_read() -> None:
    # A published manifest is read by every later v8: a change here needs another format number.
    assert content() | {"files": content()["files"][:1]} == {
        "format": 1,
        "profile_name": "aligned",
        "profile_digest": "ab" * 32,
        "created_at": "2026-11-01T12:00:00+00:00",
        "versions": {"keras": "3.15.1"},
        "data": {
            SERIES: {
                "source": "vision",
                "first_open": "2026-08-01T00:00:00+00:00",
                "last_open": "2026-10-31T23:45:00+00:00",
                "num_bars": 8_000,
            }
        },
        "files": [{"path": "README.md", "sha256": "cd" * 32, "size_bytes": 7}],
    }


@pytest.mark.parametrize(
    "path",
    [
        "../model.keras",
        "models/../../x",
        "/etc/passwd",
        "./README.md",
        "models//model.keras",
        "models\\BTCUSDT-15m\\model.keras",
        "C:/README.md",
        "models/BTCUSDT-15m/model.pkl",
        "models/BTCUSDT-15m/model.keras/",
        "models/BTCUSDT-15m/deep/model.keras",
        "models/BTCUSDT-7m/model.keras",
        "models/model.keras",
        "manifest.json",
        "readme.md",
        "README.md\0",
        "",
    ],
)
def test_a_name_that_no_published_run_holds_is_refused(path: str) -> None:
    assert not is_published_path(path)
    changed = content()
    changed["files"][0]["path"] = path
    with pytest.raises(ArtifactError, match=r"manifest\.json, key files\.0\.path: names README\.md"):
        Manifest.from_json(changed)


@given(
    st.lists(st.sampled_from(["..", ".", "", "models", SERIES, "model.keras", "README.md", "~"]), max_size=5)
)
def test_no_accepted_name_leaves_its_folder(parts: list[str]) -> None:
    path = "/".join(parts)
    if is_published_path(path):
        assert not PurePosixPath(path).is_absolute()
        assert ".." not in PurePosixPath(path).parts
        assert path in PATHS


def without(key: str) -> Callable[[Any], Any]:
    return lambda found: {name: value for name, value in found.items() if name != key}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda found: found | {"format": 2}, r"reads manifest format 1; got format 2"),
        (without("format"), r"got format None"),
        (without("versions"), r"key versions: .*got no such key"),
        (lambda found: found | {"more": 1}, r"key more: .*; got the unknown key 'more'"),
        (lambda found: found | {"profile_digest": "AB" * 32}, r"key profile_digest: .*\{64\}.*; got 'ABAB"),
        (lambda found: found | {"versions": {"keras": 3}}, r"key versions\.keras: .* string; got 3"),
        (lambda found: found | {"data": {"../x": {}}}, r"key data: .*got \{'\.\./x'"),
        (lambda found: found | {"data": {SERIES: {}}}, r"key data\.BTCUSDT-15m\.source: .*; got no such key"),
        (lambda found: found | {"files": ["README.md"]}, r"key files\.0: .* dictionary .*; got 'README\.md'"),
        (lambda found: found | {"files": found["files"][1:]}, r"a difference in README\.md"),
        (
            lambda found: found | {"files": found["files"][:1] + found["files"]},
            r"manifest.json: .*another order or a",
        ),
        (
            lambda found: found | {"files": found["files"][::-1]},
            r"manifest.json: .*ascending by path.*got another order",
        ),
    ],
)
def test_a_manifest_of_another_form_is_refused(change: Callable[[Any], Any], match: str) -> None:
    with pytest.raises(ArtifactError, match=match):
        Manifest.from_json(change(content()))


@pytest.mark.tf
@pytest.mark.parametrize("text", ["\x1b[31mred", "two\nlines", "bell\x07", "x" * 201, "ftp://me:secret@host"])
@pytest.mark.parametrize("key", ["profile_name", "created_at"])
def test_a_text_that_cannot_be_shown_as_it_is_is_refused(staged: Any, key: str, text: str) -> None:
    content = json.loads(staged.manifest.to_text()) | {key: text}
    with pytest.raises(ArtifactError, match=f"{key}") as caught:
        Manifest.from_json(content)
    assert str(caught.value).isprintable()
    assert "secret" not in str(caught.value)
