"""The loopback Hub itself: the unmodified client, with its own habits, works with it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HTTPError, RepositoryNotFoundError, RevisionNotFoundError

REPO = "someone/fleet"
FILES = {"README.md": b"---\nlicense: mit\n---\n", "a/model.keras": bytes(range(256)) * 40, "a/b.json": b"{}"}


@pytest.fixture
def api(hub: Any, tokens: Any) -> HfApi:
    return HfApi(endpoint=hub.url, token=tokens.write)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, content in FILES.items():
        (tmp_path / "up" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "up" / path).write_bytes(content)
    return tmp_path / "up"


def download(hub: Any, tmp_path: Path, **options: Any) -> dict[str, bytes]:
    where = Path(snapshot_download(REPO, endpoint=hub.url, cache_dir=tmp_path / "cache", **options))
    return {
        path.relative_to(where).as_posix(): path.read_bytes() for path in where.rglob("*") if path.is_file()
    }


def test_an_uploaded_folder_comes_back(hub: Any, api: HfApi, folder: Path, tmp_path: Path) -> None:
    api.create_repo(REPO)
    api.create_repo(REPO, exist_ok=True)
    api.upload_folder(repo_id=REPO, folder_path=folder)
    assert hub.files(REPO) == FILES
    content = download(hub, tmp_path)
    assert {path: content[path] for path in FILES} == FILES


def test_an_older_revision_comes_back_as_it_was(hub: Any, tmp_path: Path) -> None:
    first = hub.create(REPO, FILES)
    hub.commit(REPO, {"a/b.json": b"new", "a/model.keras": None})
    content = download(hub, tmp_path, revision=first, allow_patterns=["a/*"])
    assert content == {path: FILES[path] for path in ("a/model.keras", "a/b.json")}


def test_a_download_cut_in_its_middle_resumes_with_a_range(hub: Any, tmp_path: Path) -> None:
    hub.create(REPO, FILES)
    hub.cut("lfs-get")
    with suppress(HTTPError):  # huggingface_hub 1.16 leaves going on to the next call
        download(hub, tmp_path)
    content = download(hub, tmp_path)
    assert content["a/model.keras"] == FILES["a/model.keras"]
    assert hub.count("lfs-get") == 2


def test_a_flipped_byte_passes_the_client_silently(hub: Any, tmp_path: Path) -> None:
    # The reason why we have a manifest.
    hub.create(REPO, FILES)
    hub.flip("lfs-get", byte=7)
    content = download(hub, tmp_path)["a/model.keras"]
    assert [
        number for number in range(len(content)) if content[number] != FILES["a/model.keras"][number]
    ] == [7]


def test_what_does_not_exist_has_the_clients_own_errors(hub: Any, api: HfApi) -> None:
    with pytest.raises(RepositoryNotFoundError, match="404"):
        api.model_info("someone/else")
    hub.create(REPO)
    with pytest.raises(RevisionNotFoundError, match="404"):
        api.model_info(REPO, revision="0" * 40)


def test_a_private_repository_is_hidden_from_strangers(hub: Any, tokens: Any, api: HfApi) -> None:
    hub.create(REPO, FILES, is_private=True)
    assert api.model_info(REPO).private
    for token, status in ((tokens.stranger, "404"), (False, "401"), (tokens.wrong, "401")):
        with pytest.raises(HfHubHTTPError, match=status):
            HfApi(endpoint=hub.url, token=token).model_info(REPO)


def test_only_the_owners_write_token_writes(hub: Any, tokens: Any, folder: Path) -> None:
    hub.create(REPO)
    for token in (tokens.read, tokens.stranger):
        with pytest.raises(HfHubHTTPError, match="403"):
            HfApi(endpoint=hub.url, token=token).upload_folder(repo_id=REPO, folder_path=folder)
    assert hub.commits(REPO) == []


def test_a_commit_on_an_old_parent_is_refused(hub: Any, api: HfApi, folder: Path) -> None:
    old = hub.create(REPO)
    hub.commit(REPO, {"LICENSE": b"theirs"})
    with pytest.raises(HfHubHTTPError, match="412"):
        api.upload_folder(repo_id=REPO, folder_path=folder, parent_commit=old)
