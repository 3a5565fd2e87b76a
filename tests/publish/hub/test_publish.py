"""Publishing: one commit for a whole run, none for the same run again, and only what differs.

Models of earlier runs stay, whole and loadable, unless they are pruned.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from v8.base.errors import ArtifactError, PublishError
from v8.publish.hub.client import HubRetryPolicy
from v8.publish.hub.places import Manifest
from v8.publish.hub.publish import Published, preview, publish
from v8.publish.hub.pull import pull
from v8.publish.hub.staging import Staged, stage_run
from v8.runs.run_folder import SeriesState

pytestmark = pytest.mark.tf

REPO = "someone/fleet"


def no_pause(seconds: float) -> None:
    raise AssertionError(f"waits {seconds} s although nothing went wrong")


def staged_of(run: Path, **choice: bool) -> Staged:
    folder = run.with_name(f"{run.name}-staged-{len(list(run.parent.iterdir()))}")
    return stage_run(run, folder, REPO, **choice)


def publish_run(run: Path, *, is_private: bool = False, **choice: bool) -> Published:
    """Publish a run without a pause."""
    retries = HubRetryPolicy(sleep=no_pause)
    return publish(staged_of(run, **choice), REPO, is_private=is_private, retries=retries)


def test_forty_models_are_one_commit_of_at_most_a_hundred_requests(hub: Any, make_run: Any) -> None:
    result = publish_run(make_run(make_run.UNIVERSE))
    assert [commit.title for commit in hub.commits(REPO)] == ["Publish 40 models of aligned"]
    # 40 PUTs and 40 verifications; whoami, create, look (2), card check, preupload, batch, commit, look (2).
    assert hub.count() == 90
    # Per series model, metadata, history and README; card, leaderboard, its picture, features.py, manifest.
    assert len(hub.files(REPO)) == 40 * 4 + 5
    assert result.url == f"{hub.url}/{REPO}/commit/{hub.commits(REPO)[0].oid}"
    picture = hub.files(REPO)["leaderboard.png"]
    assert len(picture) < 100_000
    with Image.open(io.BytesIO(picture)) as opened:
        assert (opened.format, opened.size) == ("PNG", (1_800, 600))
    assert b"](leaderboard.png)" in hub.files(REPO)["README.md"]


def test_what_is_published_is_what_lies_in_the_run(hub: Any, make_run: Any) -> None:
    run = make_run()
    publish_run(run)
    files = hub.files(REPO)
    for series in ("BTCUSDT-15m", "ETHUSDT-1h"):
        for name in ("model.keras", "metadata.json", "history.csv"):
            assert files[f"models/{series}/{name}"] == (run / series / name).read_bytes()
    assert hub.warnings == []  # the Hub has nothing to say about the card


def test_publishing_the_same_again_sends_no_bytes_and_makes_no_commit(hub: Any, make_run: Any) -> None:
    run = make_run()
    first = publish_run(run)
    hub.forget()
    second = publish_run(run)
    assert (second.revision, second.sent) == (first.revision, None)
    assert hub.routes == ["whoami", "create", "info", "tree"]
    assert hub.uploaded_bytes == 0
    assert len(hub.commits(REPO)) == 1


def test_one_changed_file_travels_with_the_manifest_alone(hub: Any, make_run: Any) -> None:
    run = make_run()
    publish_run(run)
    hub.forget()
    history = run / "ETHUSDT-1h" / "history.csv"
    history.write_text(history.read_text() + "3,0.8,0.8\n")
    result = publish_run(run)
    assert result.sent is not None
    assert set(result.sent.additions) == {"models/ETHUSDT-1h/history.csv", "manifest.json"}
    assert hub.count("lfs-put") == 0
    assert hub.files(REPO)["models/ETHUSDT-1h/history.csv"] == history.read_bytes()
    assert len(hub.commits(REPO)) == 2


def test_the_manifest_of_a_commit_describes_every_file_beside_it(
    hub: Any, make_run: Any, tmp_path: Path
) -> None:
    publish_run(make_run())
    files = hub.files(REPO)
    for path, content in files.items():
        (tmp_path / "pulled" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pulled" / path).write_bytes(content)
    manifest = Manifest.from_json(json.loads(files["manifest.json"]))
    assert all(file.is_intact_in(tmp_path / "pulled") for file in manifest.files)
    assert {file.path for file in manifest.files} == set(files) - {"manifest.json"}
    assert manifest.data["BTCUSDT-15m"].last_open == "2026-10-31T23:45:00+00:00"
    assert manifest.profile_name == "aligned"


def test_pruned_models_leave_in_the_same_commit_and_other_files_stay(hub: Any, make_run: Any) -> None:
    publish_run(make_run(["BTCUSDT-15m", "ETHUSDT-1h"]))
    hub.commit(REPO, {"LICENSE": b"mine", "pictures/a.png": b"mine"})
    result = publish_run(make_run(["BTCUSDT-15m"]), is_pruning=True)
    assert result.sent is not None
    assert len(result.sent.deletions) == 4
    assert len(hub.commits(REPO)) == 3
    files = hub.files(REPO)
    assert {"LICENSE", "pictures/a.png", "models/BTCUSDT-15m/model.keras"} < set(files)
    assert not any(path.startswith("models/ETHUSDT-1h/") for path in files)
    assert "models/ETHUSDT-1h/model.keras" in hub.files(REPO, hub.commits(REPO)[0].oid)


def test_a_repository_of_another_project_is_left_alone(hub: Any, make_run: Any) -> None:
    hub.create(REPO, {"README.md": b"# My language model\n", "model.safetensors": b"weights"})
    with pytest.raises(PublishError, match=r"got one with .*: model\.safetensors"):
        publish_run(make_run())
    assert len(hub.commits(REPO)) == 1


def test_a_repository_that_the_hubs_page_made_is_filled(hub: Any, make_run: Any) -> None:
    hub.create(REPO, {"README.md": b"---\nlicense: mit\n---\n"})
    publish_run(make_run())
    assert b"# aligned: 2 forecasters" in hub.files(REPO)["README.md"]


def test_private_is_no_empty_promise_about_a_public_repository(hub: Any, make_run: Any) -> None:
    hub.create(REPO)
    with pytest.raises(PublishError, match="must be private; got a public"):
        publish_run(make_run(), is_private=True)
    assert hub.commits(REPO) == []


def test_without_private_a_new_repository_is_public_and_a_private_one_stays_so(
    hub: Any, make_run: Any
) -> None:
    run = make_run()
    publish_run(run)
    assert not hub.repos[REPO].is_private
    hub.create(REPO, is_private=True)
    publish_run(run)
    assert hub.repos[REPO].is_private


def test_content_that_did_not_arrive_as_it_was_sent_is_found_by_looking(hub: Any, make_run: Any) -> None:
    hub.garble()
    with pytest.raises(PublishError, match=r"got other content in README\.md, "):
        publish_run(make_run())
    run = make_run()
    publish_run(run)
    assert publish_run(run).sent is None


def test_one_model_of_the_demo_market_is_enough_to_refuse(make_run: Any) -> None:
    run = make_run()
    make_run.change(run, "ETHUSDT-1h", is_demo_market=True)
    with pytest.raises(PublishError, match="only models of real"):
        staged_of(run)


@pytest.mark.parametrize("status", ["failed", "pending", "running"])
def test_an_incomplete_run_asks_for_partial(make_run: Any, status: Any) -> None:
    run = make_run(unfinished={"SOLUSDT-1h": SeriesState(status, "why" if status == "failed" else None)})
    with pytest.raises(PublishError, match=r"got 1 of 3 that are not: SOLUSDT-1h\. .* --partial"):
        staged_of(run)
    staged = staged_of(run, is_partial=True)
    assert staged.manifest.series == ("BTCUSDT-15m", "ETHUSDT-1h")
    assert "- SOLUSDT-1h: its training" in (staged.folder / "README.md").read_text()


def test_only_skilled_holds_back_models_that_lose(make_run: Any) -> None:
    run = make_run(shares={"ETHUSDT-1h": make_run.LOSING})
    staged = staged_of(run, is_only_skilled=True)
    assert staged.manifest.series == ("BTCUSDT-15m",)
    assert staged.held_back.keys() == {"ETHUSDT-1h"}
    assert staged.held_back["ETHUSDT-1h"].endswith(": ohlc, bands, volatility")
    assert not (staged.folder / "models" / "ETHUSDT-1h").exists()
    assert "ETHUSDT" not in (staged.folder / "leaderboard.csv").read_text()
    assert staged_of(run).manifest.series == ("BTCUSDT-15m", "ETHUSDT-1h")


def test_nothing_skilled_is_nothing_to_publish(make_run: Any) -> None:
    run = make_run(["ETHUSDT-1h"], shares={"ETHUSDT-1h": make_run.LOSING})
    with pytest.raises(PublishError, match="got none: ETHUSDT-1h, because it loses"):
        staged_of(run, is_only_skilled=True)


def test_a_model_file_that_was_exchanged_is_not_published(make_run: Any, keras_file: Path) -> None:
    run = make_run()
    (run / "ETHUSDT-1h" / "model.keras").write_bytes(keras_file.read_bytes())
    with pytest.raises(ArtifactError, match=r"ETHUSDT-1h/model\.keras: .* sha256"):
        staged_of(run)


def test_a_model_file_that_is_no_keras_file_is_not_published(make_run: Any) -> None:
    run = make_run()
    (run / "ETHUSDT-1h" / "model.keras").write_bytes(b"\x80\x04pickle")
    from v8.base.storage import digest_bytes

    make_run.change(run, "ETHUSDT-1h", model_sha256=digest_bytes(b"\x80\x04pickle"))
    with pytest.raises(ArtifactError, match=r"model\.keras: .*native Keras"):
        staged_of(run)


def test_staging_twice_gives_the_same_bytes(make_run: Any) -> None:
    run = make_run()
    first = staged_of(run)
    second = staged_of(run)
    assert first.folder != second.folder
    assert first.files == second.files


# Beside models of earlier runs


def manifest_of(hub: Any) -> Manifest:
    return Manifest.from_json(json.loads(hub.files(REPO)["manifest.json"]))


@pytest.mark.nightly
def test_publishing_again_beside_kept_models_sends_nothing(hub: Any, make_run: Any) -> None:
    first = make_run(["BTCUSDT-15m", "ETHUSDT-1h"])
    second = make_run(["SOLUSDT-1h"])
    publish_run(first)
    publish_run(second)
    hub.forget()
    # Neither does the other run: what lies there is told in the same way from both.
    for run in (second, first, second):
        assert publish_run(run).sent is None
    assert hub.uploaded_bytes == 0
    assert len(hub.commits(REPO)) == 2


def test_the_manifest_names_the_versions_of_all_runs(hub: Any, make_run: Any) -> None:
    old = make_run(["BTCUSDT-15m"])
    new = make_run(["ETHUSDT-1h"])
    make_run.change(
        old,
        "BTCUSDT-15m",
        versions={"v8": "0.1.0", "keras": "3.14.0"},
        created_at="2027-01-01T00:00:00+00:00",
    )
    publish_run(old)
    publish_run(new)
    manifest = manifest_of(hub)
    assert manifest.versions["keras"] == "3.14.0, 3.15.1"
    assert manifest.created_at == "2027-01-01T00:00:00+00:00"
    assert "2026-11-01T12:00:00+00:00 to 2027-01-01T00:00:00+00:00" in hub.files(REPO)["README.md"].decode()


def test_a_model_of_another_profile_cannot_stay_beside_and_prune_is_named(hub: Any, make_run: Any) -> None:
    old = make_run(["BTCUSDT-15m"])
    make_run.change(old, "BTCUSDT-15m", profile_digest="ab" * 32)
    publish_run(old)
    with pytest.raises(PublishError, match=r"aligned .* got 1 of another: BTCUSDT-15m\. .* --prune"):
        publish_run(make_run(["ETHUSDT-1h"]))
    assert len(hub.commits(REPO)) == 1
    publish_run(make_run(["ETHUSDT-1h"]), is_pruning=True)
    assert manifest_of(hub).series == ("ETHUSDT-1h",)


@pytest.mark.parametrize("name", ["metadata.json", "model.keras"])
def test_a_model_that_somebody_changed_on_the_hub_is_not_vouched_for(
    hub: Any, make_run: Any, name: str
) -> None:
    publish_run(make_run(["BTCUSDT-15m", "ETHUSDT-1h"]))
    path = f"models/BTCUSDT-15m/{name}"
    other = hub.files(REPO)[path].replace(b"61.0", b"16.0")  # as long as it was
    hub.commit(REPO, {path: other if name == "metadata.json" else b"{}"})
    with pytest.raises(PublishError, match=rf"BTCUSDT-15m/{name}: a model .* stays as it was .* --prune"):
        publish_run(make_run(["ETHUSDT-1h"]))
    assert len(hub.commits(REPO)) == 2
    publish_run(make_run(["ETHUSDT-1h"]), is_pruning=True)
    assert pull(REPO).series == ("ETHUSDT-1h",)


def test_a_run_published_in_between_is_kept_too(
    hub: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_run(make_run(["BTCUSDT-15m"]))
    other = make_run(["SOLUSDT-1h"])
    answer = hub._commit
    is_first = [True]

    def commit_first(call: Any) -> Any:
        if is_first.pop() if is_first else False:
            hub.behave()
            files = {file.path: (theirs.folder / file.path).read_bytes() for file in theirs.files}
            hub.commit(REPO, files)
        return answer(call)

    theirs = staged_of(other)
    kept = preview(theirs, REPO, is_private=False)[0]
    assert kept.manifest.series == ("BTCUSDT-15m", "SOLUSDT-1h")
    monkeypatch.setattr(hub, "_commit", commit_first)
    retries = HubRetryPolicy(sleep=lambda seconds: None)
    publish(staged_of(make_run(["ETHUSDT-1h"])), REPO, is_private=False, retries=retries)
    assert pull(REPO).series == ("BTCUSDT-15m", "ETHUSDT-1h", "SOLUSDT-1h")


def test_names_that_the_hub_lists_become_no_paths(hub: Any, make_run: Any, tmp_path: Path) -> None:
    publish_run(make_run(["BTCUSDT-15m"]))
    strange = {"models/../../pwn": b"x", "models/\x1b[31mX/model.keras": b"x", "../../pwn": b"x"}
    hub.commit(REPO, strange)
    _, found = preview(staged_of(make_run(["ETHUSDT-1h"]), is_pruning=True), REPO, is_private=False)
    assert found is not None
    assert found.models["removed"] == ["BTCUSDT-15m"]
    assert not set(found.deletions) & set(strange)
    assert not list(tmp_path.rglob("pwn"))
