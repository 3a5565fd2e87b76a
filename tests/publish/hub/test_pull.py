"""Pulling: only what is needed, each file compared, refused before anything foreign is loaded."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import keras
import pytest
from signs import everything_said

from v8.base.errors import ArtifactError, PullError, V8Error
from v8.publish.hub.client import HubRetryPolicy
from v8.publish.hub.places import Manifest
from v8.publish.hub.pull import Pulled, pull

pytestmark = pytest.mark.tf

REPO = "someone/fleet"
SERIES = "BTCUSDT-15m"
FILES = ["README.md", "history.csv", "metadata.json", "model.keras"]


class Clock:
    """Takes the place of waiting, and remembers how long it would have been."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    @property
    def retries(self) -> HubRetryPolicy:
        return HubRetryPolicy(timeout_s=5.0, num_tries=3, first_s=1.0, most_s=60.0, sleep=self.waits_s.append)


def fetch(*series: str, clock: Clock | None = None, **options: Any) -> Pulled:
    return pull(REPO, series or None, retries=(clock or Clock()).retries, **options)


def newest(hub: Any) -> str:
    return str(hub.commits(REPO)[-1].oid)


def test_one_series_is_downloaded_whole_and_nothing_else(published: Any, tmp_path: Path) -> None:
    pulled = fetch(SERIES)
    assert pulled.revision == newest(published)
    assert pulled.folder == tmp_path / f"hf-home/hub/models--someone--fleet/snapshots/{pulled.revision}"
    found = sorted(
        str(path.relative_to(pulled.folder)) for path in pulled.folder.rglob("*") if path.is_file()
    )
    assert found == ["manifest.json", *(f"models/{SERIES}/{name}" for name in FILES)]
    for path in found:
        assert (pulled.folder / path).read_bytes() == published.files(REPO)[path]
    assert (pulled.series, pulled.num_downloaded, pulled.why_cached) == ((SERIES,), 4, None)
    # The manifest: asked for by HEAD, then HEAD and GET of the download; one list; four HEADs and GETs,
    # of which the large file's GET goes to the other host.
    assert published.routes == ["resolve"] * 3 + ["tree"] + ["resolve"] * 7 + ["lfs-get"]


def test_the_same_pull_again_asks_for_the_revision_only(published: Any) -> None:
    fetch(SERIES)
    published.forget()
    again = fetch(SERIES)
    assert again.num_downloaded == 0
    assert [request.method for request in published.requests] == ["HEAD", "HEAD"]


def test_a_commit_that_is_in_the_cache_needs_no_request(published: Any) -> None:
    commit = fetch(SERIES).revision
    published.forget()
    again = fetch(SERIES, revision=commit)
    assert (again.revision, again.why_cached, published.count()) == (commit, None, 0)


def test_an_older_commit_can_be_pulled_by_its_name(published: Any) -> None:
    old = newest(published)
    history = published.files(REPO)[f"models/{SERIES}/history.csv"]
    change(published, f"models/{SERIES}/history.csv", b"epoch\n1\n")
    assert (fetch(SERIES, revision=old).artifact(SERIES) / "history.csv").read_bytes() == history
    assert (fetch(SERIES).artifact(SERIES) / "history.csv").read_bytes() == b"epoch\n1\n"


def change(hub: Any, path: str, content: bytes, **manifest_changes: Any) -> str:
    """Commit a file together with a manifest that vouches for it, as a hostile publisher would."""
    manifest = json.loads(hub.files(REPO)["manifest.json"])
    for file in manifest["files"]:
        if file["path"] == path:
            file |= {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    text = json.dumps(manifest | manifest_changes).encode()
    return str(hub.commit(REPO, {path: content, "manifest.json": text}))


# Damage


@pytest.mark.parametrize(
    ("route", "name", "num_heads"),
    [("lfs-get", "model.keras", 0), ("resolve", "metadata.json", 1), ("resolve", "manifest.json", 2)],
)
def test_a_byte_that_flips_once_is_noticed_and_asked_for_again(
    route: str, name: str, num_heads: int, published: Any
) -> None:
    where = "" if route == "lfs-get" else name
    published.flip(route, where=where, byte=100, times=num_heads + 1)  # a HEAD has no byte to flip
    pulled = fetch(SERIES)
    for file in pulled.manifest.files_of(SERIES):
        content = (pulled.folder / file.path).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file.sha256
    assert pulled.manifest == Manifest.from_json(json.loads(published.files(REPO)["manifest.json"]))
    gets = [request for request in published.requests if request.method == "GET" and request.route == route]
    assert sum(where in request.path for request in gets) == 2


def test_a_digit_that_flips_in_a_readable_manifest_is_not_believed(published: Any) -> None:
    """The damaged manifest is whole JSON and blames the model, which is fine."""
    text = published.files(REPO)["manifest.json"]
    model = json.loads(text)["files"][-5]
    assert model["path"] == f"models/{SERIES}/model.keras"
    # The lowest bit of "2" makes it "3", another hexadecimal digit; of "a" it would make a "`".
    digit = text.index(model["sha256"].encode()) + re.search(r"[0-9]", model["sha256"]).start()
    published.flip("resolve", where="manifest.json", byte=digit, times=3)
    assert fetch(SERIES).num_downloaded == 4
    assert (fetch(SERIES).folder / "manifest.json").read_bytes() == text


@pytest.mark.parametrize(
    ("route", "name"), [("lfs-get", "model.keras"), ("resolve", "metadata.json"), ("resolve", "history.csv")]
)
def test_a_byte_that_keeps_flipping_is_named_and_the_next_call_finishes_the_job(
    route: str, name: str, published: Any
) -> None:
    published.flip(route, where="" if route == "lfs-get" else name, byte=100, times=100)
    with pytest.raises(
        ArtifactError,
        match=rf"someone/fleet at .*, models/{SERIES}/{re.escape(name)}: .* bytes with sha256 .*, twice",
    ):
        fetch(SERIES)
    published.behave()
    again = fetch(SERIES)
    assert (again.artifact(SERIES) / name).read_bytes() == published.files(REPO)[f"models/{SERIES}/{name}"]


def test_a_file_that_was_damaged_in_the_cache_is_replaced_alone(published: Any) -> None:
    model = fetch(SERIES).artifact(SERIES) / "model.keras"
    content = bytearray(model.read_bytes())
    content[200] ^= 1
    model.resolve().write_bytes(content)
    published.forget()
    again = fetch(SERIES)
    assert again.num_downloaded == 1
    assert model.read_bytes() == published.files(REPO)[f"models/{SERIES}/model.keras"]
    assert published.count("lfs-get") == 1


def test_a_download_that_is_cut_goes_on(published: Any) -> None:
    published.cut("lfs-get")
    pulled = fetch(SERIES)
    expected = published.files(REPO)[f"models/{SERIES}/model.keras"]
    assert (pulled.artifact(SERIES) / "model.keras").read_bytes() == expected


# Trouble


@pytest.mark.parametrize(("route", "status"), [("resolve", 503), ("tree", 429), ("lfs-get", 503)])
def test_a_busy_hub_is_asked_again_after_the_pause_it_wants(route: str, status: int, published: Any) -> None:
    published.answer(route, status, retry_after="7")
    clock = Clock()
    assert fetch(SERIES, clock=clock).num_downloaded == 4
    assert clock.waits_s == [7.0]


def test_a_hub_that_stays_busy_is_given_up_and_the_next_call_finishes_the_job(published: Any) -> None:
    published.answer("lfs-get", 503, times=100)
    clock = Clock()
    with pytest.raises(
        PullError, match=r"someone/fleet: .*got status 503, 3 times .*models/BTCUSDT-15m/model\.keras"
    ):
        fetch(SERIES, clock=clock)
    assert clock.waits_s == [1.0, 2.0]
    published.behave()
    assert fetch(SERIES).num_downloaded == 1


# Without the Hub


def test_a_hub_that_is_down_leaves_the_cache(published: Any) -> None:
    commit = fetch(SERIES).revision
    published.stop()
    pulled = fetch(SERIES)
    assert pulled.revision == commit
    assert re.fullmatch(r".*\(ConnectError\), 3 times .*", pulled.why_cached)


@pytest.mark.parametrize("way", ["flag", "environment"])
def test_offline_nobody_is_asked(way: str, published: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = fetch(SERIES).revision
    published.forget()
    if way == "environment":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pulled = fetch(SERIES, is_offline=way == "flag")
    assert pulled.revision == commit and "was not asked" in pulled.why_cached
    assert published.count() == 0


def test_a_part_of_a_revision_is_not_taken_for_the_whole(published: Any) -> None:
    fetch(SERIES)
    with pytest.raises(ArtifactError, match=r"got missing or damaged models/ETH"):
        fetch("ETHUSDT-1h", is_offline=True)
    published.stop()
    with pytest.raises(PullError, match=r"someone/fleet: .*got no answer .*models/ETHUSDT-1h"):
        fetch("ETHUSDT-1h")


# Who may, and what there is


@pytest.mark.parametrize(
    ("repo", "revision", "who", "match"),
    [
        ("someone/float", None, "write", r"someone/float: .*got the answer that"),
        ("someone/secret", None, None, r"got .*no token was sent\. .*HF_TOKEN"),
        ("someone/secret", None, "stranger", r"someone/secret: .*user may read; .*whose"),
        (REPO, None, "wrong", r"HF_TOKEN: .*valid access token .*Hub does not know\."),
        (
            REPO,
            "v1.0",
            "write",
            r"someone/fleet, revision v1\.0: must be a branch, .*/someone/fleet/commits/main",
        ),
        ("someone/other", None, "write", r"someone/other: .*manifest\.json"),
        ("../../etc/x", None, "write", r"--repo: is user/name"),
    ],
)
def test_what_cannot_be_had_is_one_sentence_without_the_token(
    repo: str,
    revision: str | None,
    who: str | None,
    match: str,
    published: Any,
    tokens: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published.create("someone/secret", {"manifest.json": b"{}"}, is_private=True)
    published.create("someone/other", {"README.md": b"# Another model"})
    token = getattr(tokens, who) if who else ""
    monkeypatch.setenv("HF_TOKEN", token)
    clock = Clock()
    with pytest.raises(V8Error, match=match) as caught:
        pull(repo, [SERIES], revision=revision, retries=clock.retries)
    assert caught.value.exit_code == 5
    assert "\n" not in str(caught.value)
    assert clock.waits_s == []
    assert not token or token not in everything_said(caught.value)


def test_a_wrong_token_is_said_although_the_model_is_in_the_cache(
    published: Any, tokens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(SERIES)
    monkeypatch.setenv("HF_TOKEN", tokens.wrong)
    with pytest.raises(PullError, match=r"HF_TOKEN: .*Hub does not know"):
        fetch(SERIES)


def test_public_models_need_no_token(published: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    assert fetch(SERIES).num_downloaded == 4


def test_an_unknown_series_names_the_nearest(published: Any) -> None:
    with pytest.raises(
        PullError,
        match=r"one of the 2 published: BTCUSDT-15m, ETHUSDT-1h; got 'ETHUSDT-15m'\. Did you mean ETHUSDT-1h",
    ):
        fetch("ETHUSDT-15m")
    assert "tree" not in published.routes


# Strangers


def refused(hub: Any, tmp_path: Path, match: str, *, travels: tuple[str, ...] = ()) -> None:
    """Pull, and make sure that nothing but the manifest (and `travels`) was asked for or written."""
    before = {path for path in tmp_path.rglob("*") if "hf-home" not in path.parts}
    hub.forget()
    with pytest.raises(ArtifactError, match=match):
        fetch(SERIES)
    asked = {request.path.rpartition("/")[2] for request in hub.requests if request.route == "resolve"}
    assert asked <= {"manifest.json", *travels}
    assert {path for path in tmp_path.rglob("*") if "hf-home" not in path.parts} == before


def test_another_manifest_and_one_that_names_what_it_must_not_are_refused(
    published: Any, tmp_path: Path
) -> None:
    manifest = json.loads(published.files(REPO)["manifest.json"])
    for content, match in (
        (b'{"format": 99}', "reads manifest format 1; got format 99"),
        (b"[]", r"manifest\.json: .*JSON object"),
        (b"[" * 200_000, "must be valid JSON"),
        (b" " * 9_000_000, r"manifest.* 8,388,608 bytes; got 9,000,000"),
    ):
        published.commit(REPO, {"manifest.json": content})
        refused(published, tmp_path, match)
    # Which names are none of ours: test_manifest.py.
    manifest["files"][0]["path"] = "../x"
    published.commit(REPO, {"manifest.json": json.dumps(manifest).encode()})
    refused(published, tmp_path, r"key files\.0\.path: names README.*; got '\.\./x'")


def test_a_file_that_was_changed_after_publishing_is_refused_unread(published: Any, tmp_path: Path) -> None:
    path = f"models/{SERIES}/metadata.json"
    published.commit(REPO, {path: published.files(REPO)[path] + b" "})
    refused(published, tmp_path, rf"someone/fleet, {path}: must be the published file of [\d,]+ bytes")
    published.commit(REPO, {path: None})
    refused(published, tmp_path, rf"{path}: must be the published file of .*; got no such file")


def lambda_model(file: Path) -> None:
    inputs = keras.Input((2,))
    text = str(file.with_name("told"))
    keras.Model(inputs, keras.layers.Lambda(lambda x: x + 0.0 * Path(text).write_text("hi"))(inputs)).save(
        file
    )
    Path(text).unlink()


def bomb(file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(20_000_000))


def test_a_model_that_could_do_harm_is_refused_although_the_manifest_vouches_for_it(
    published: Any, tmp_path: Path
) -> None:
    file = tmp_path / "evil" / "model.keras"
    file.parent.mkdir()
    for make, match in (
        (lambda_model, r"model\.keras: may hold stock Keras layers.*; got __lambda__, keras\.layers\.Lambda"),
        (bomb, r"model\.keras: .*unpacks to 20,000,000 bytes"),
    ):
        make(file)
        change(published, f"models/{SERIES}/model.keras", file.read_bytes())
        refused(published, tmp_path, match, travels=tuple(FILES))
    assert not file.with_name("told").exists()


def test_a_file_that_is_too_large_is_not_downloaded(published: Any, tmp_path: Path) -> None:
    whole = published.files(REPO)["manifest.json"]
    for name, size in (("model.keras", 512 << 20), ("metadata.json", 16 << 20)):
        manifest = json.loads(whole)
        file = next(file for file in manifest["files"] if file["path"] == f"models/{SERIES}/{name}")
        file["size_bytes"] = 1 << 40
        published.commit(REPO, {"manifest.json": json.dumps(manifest).encode()})
        refused(published, tmp_path, rf"file of 1,099,511,627,776 bytes, and at most {size:,}; got")
