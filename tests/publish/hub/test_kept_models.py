"""Publishing beside models of earlier runs: they stay, whole and loadable, unless they are pruned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from v8.base.errors import PublishError
from v8.publish.hub.client import HubRetryPolicy
from v8.publish.hub.layout import Manifest
from v8.publish.hub.publish import Difference, Published, preview, publish
from v8.publish.hub.pull import pull
from v8.publish.hub.staging import Staged, stage_run

pytestmark = pytest.mark.tf

REPO = "someone/fleet"


def staged_of(run: Path, *, is_pruning: bool = False) -> Staged:
    folder = run.with_name(f"{run.name}-staged-{len(list(run.parent.iterdir()))}")
    return stage_run(run, folder, REPO, is_pruning=is_pruning)


def publish_run(
    run: Path, *, announced: list[Difference] | None = None, is_pruning: bool = False
) -> Published:
    announce = [].append if announced is None else announced.append
    staged = staged_of(run, is_pruning=is_pruning)
    once = HubRetryPolicy(num_tries=1)
    return publish(staged, REPO, is_private=False, retries=once, announce=announce)


def manifest_of(hub: Any) -> Manifest:
    return Manifest.from_json(json.loads(hub.files(REPO)["manifest.json"]))


@pytest.mark.nightly
def test_forty_models_stay_when_a_run_of_two_is_published(hub: Any, make_run: Any) -> None:
    publish_run(make_run(make_run.UNIVERSE))
    before = hub.files(REPO)
    two = list(make_run.UNIVERSE[:2])
    announced: list[Difference] = []
    run = make_run(two, shares=dict.fromkeys(two, make_run.LOSING))
    result = publish_run(run, announced=announced)
    assert announced == [result.sent]
    models = announced[0].models
    assert (models["added"], models["changed"], models["removed"]) == ([], sorted(two), [])
    assert models["kept"] == sorted(make_run.UNIVERSE[2:])
    after = hub.files(REPO)
    mine = tuple(f"models/{name}/" for name in two)
    kept = {path for path in before if path.startswith("models/") and not path.startswith(mine)}
    assert len(kept) == 38 * 4
    assert {path: after[path] for path in kept} == {path: before[path] for path in kept}
    assert len(hub.commits(REPO)) == 2
    # Every file has the sha256 that the new manifest promises, and the model is one that loads.
    assert pull(REPO).series == tuple(sorted(make_run.UNIVERSE))
    for page in ("README.md", "leaderboard.csv"):
        assert all(name in after[page].decode() for name in make_run.UNIVERSE)


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
    with pytest.raises(
        PublishError,
        match=r"aligned .* got 1 of another: BTCUSDT-15m\. .* --prune",
    ):
        publish_run(make_run(["ETHUSDT-1h"]))
    assert len(hub.commits(REPO)) == 1
    publish_run(make_run(["ETHUSDT-1h"]), is_pruning=True)
    assert manifest_of(hub).series == ("ETHUSDT-1h",)


@pytest.mark.parametrize("name", ["metadata.json", "model.keras"])
def test_a_model_that_somebody_changed_on_the_hub_is_not_vouched_for(
    hub: Any, make_run: Any, name: str
) -> None:
    publish_run(make_run(["BTCUSDT-15m", "ETHUSDT-1h"]))
    hub.commit(REPO, {f"models/BTCUSDT-15m/{name}": b"{}"})
    with pytest.raises(PublishError, match=rf"BTCUSDT-15m/{name}: a model .* stays as it was .* --prune"):
        publish_run(make_run(["ETHUSDT-1h"]))
    assert len(hub.commits(REPO)) == 2
    publish_run(make_run(["ETHUSDT-1h"]), is_pruning=True)
    assert pull(REPO).series == ("ETHUSDT-1h",)


def test_metadata_that_was_changed_without_changing_its_size_is_not_vouched_for(
    hub: Any, make_run: Any
) -> None:
    publish_run(make_run(["BTCUSDT-15m", "ETHUSDT-1h"]))
    path = "models/BTCUSDT-15m/metadata.json"
    hub.commit(REPO, {path: hub.files(REPO)[path].replace(b"61.0", b"16.0")})
    with pytest.raises(PublishError, match=r"metadata\.json: a model .* stays as "):
        publish_run(make_run(["ETHUSDT-1h"]))


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
