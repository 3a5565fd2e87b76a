"""A Hub that misbehaves: exactly one commit or a clear error, and a second call finishes the job."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from v8.base.errors import PublishError
from v8.publish.hub import client
from v8.publish.hub.client import HubRetryPolicy
from v8.publish.hub.publish import Published, check_access, publish
from v8.publish.hub.staging import Staged, stage_run

pytestmark = pytest.mark.tf

REPO = "someone/fleet"
ROUTES = (
    "whoami",
    "create",
    "info",
    "tree",
    "validate-yaml",
    "preupload",
    "lfs-batch",
    "lfs-put",
    "lfs-verify",
    "commit",
)
"""Every route of publishing into a new repository, in the order of their first requests."""


class Waiting:
    """Waits no time and remembers for how long it was asked to."""

    def __init__(self) -> None:
        self.waited_s: list[float] = []
        self.told: list[str] = []

    def publish(self, staged: Staged, *, timeout_s: float = 20.0) -> Published:
        retries = HubRetryPolicy(timeout_s=timeout_s, sleep=self.waited_s.append, report=self.told.append)
        return publish(staged, REPO, is_private=False, retries=retries)


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


def assert_published_once(hub: Any, staged: Staged) -> None:
    assert len(hub.commits(REPO)) == 1
    held = hub.files(REPO)
    assert held == {file.path: (staged.folder / file.path).read_bytes() for file in staged.files}


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "error"])
@pytest.mark.parametrize("route", ROUTES)
def test_one_server_error_or_cut_connection_anywhere_costs_one_pause(
    hub: Any, staged: Staged, waiting: Waiting, route: str, is_cut: bool
) -> None:
    if is_cut:
        hub.cut(route)
    else:
        hub.answer(route, 503)
    waiting.publish(staged)
    assert_published_once(hub, staged)
    assert waiting.waited_s == [2.0]
    assert is_cut or waiting.told == [f"{REPO}: status 503; trying again in 2 s"]


def test_each_of_several_requests_tells_why_the_call_was_given_up() -> None:
    """Files are sent at once; whose request begins after another's failed may be heard before it."""
    call = client._Call(1.0)
    call.check(is_new_request=True)
    call.trouble = client.TransientError("status 503", 7.0)
    call.check()
    with pytest.raises(client.TransientError, match="status 503") as raised:
        call.check(is_new_request=True)
    assert raised.value.wait_s == 7.0


@pytest.mark.parametrize("route", ROUTES)
def test_an_answer_lost_anywhere_never_becomes_a_second_commit(
    hub: Any, staged: Staged, waiting: Waiting, route: str
) -> None:
    hub.lose_answer(route)
    published = waiting.publish(staged)
    assert_published_once(hub, staged)
    assert hub.count("commit") == 1
    assert published.revision == hub.commits(REPO)[0].oid


def test_the_answer_to_a_commit_and_the_look_after_it_may_both_fail(
    hub: Any, staged: Staged, waiting: Waiting
) -> None:
    hub.lose_answer("commit")
    hub.slow("info", 0.0)  # the look before the commit goes well
    hub.answer("info", 503, times=2)
    waiting.publish(staged)
    assert_published_once(hub, staged)
    assert hub.count("commit") == 1


@pytest.mark.parametrize("route", ["info", "lfs-put"])
def test_every_request_has_a_time_limit(hub: Any, staged: Staged, waiting: Waiting, route: str) -> None:
    # The client itself asks for no limit in some calls.
    hub.slow(route, 30.0)
    started = time.monotonic()
    waiting.publish(staged, timeout_s=1.0)
    assert time.monotonic() - started < 15
    assert_published_once(hub, staged)
    assert any("no answer (ReadTimeout)" in told for told in waiting.told)


@pytest.mark.parametrize("header", [{"retry_after": "55"}, {"ratelimit": '"api";r=0;t=55'}])
def test_a_pause_that_the_hub_asks_for_is_kept(
    hub: Any, staged: Staged, waiting: Waiting, header: dict[str, str]
) -> None:
    hub.answer("preupload", 429, **header)
    waiting.publish(staged)
    assert_published_once(hub, staged)
    assert waiting.waited_s == [55.0]


def test_a_pause_longer_than_ours_stops_with_everything_as_it_was(
    hub: Any, staged: Staged, waiting: Waiting
) -> None:
    hub.answer("commit", 429, retry_after="3600")
    with pytest.raises(
        PublishError, match=r"waits at most 300 s .* request to wait 3600 s\. Nothing is lost"
    ):
        waiting.publish(staged)
    assert waiting.waited_s == []
    assert hub.commits(REPO) == []
    hub.forget()
    waiting.publish(staged)
    assert_published_once(hub, staged)
    assert hub.count("lfs-put") == 0  # the models were stored before


@pytest.mark.parametrize("status", [429, 503])
def test_lasting_trouble_ends_after_five_tries_and_a_second_call_finishes(
    hub: Any, staged: Staged, waiting: Waiting, status: int
) -> None:
    hub.answer("commit", status, times=1_000)
    with pytest.raises(PublishError, match=rf"must answer; got status {status}, 5 times in a row"):
        waiting.publish(staged)
    assert waiting.waited_s == [2.0, 4.0, 8.0, 16.0]
    assert hub.count("commit") == 5
    assert hub.commits(REPO) == []
    hub.behave()
    waiting.publish(staged)
    assert_published_once(hub, staged)


def test_many_failing_uploads_succeed_as_long_as_some_arrive(
    hub: Any, make_run: Any, waiting: Waiting, tmp_path: Path
) -> None:
    staged = stage_run(make_run(make_run.UNIVERSE[:12]), tmp_path / "twelve", REPO)
    for file in staged.files:
        if file.path.endswith(".keras"):
            hub.answer("lfs-put", 503, where=file.sha256)
    # One pause is all it may make without anything having arrived in between.
    retries = HubRetryPolicy(num_tries=2, first_s=1.0, sleep=waiting.waited_s.append)
    publish(staged, REPO, is_private=False, retries=retries)
    assert len(waiting.waited_s) > 1
    assert_published_once(hub, staged)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_goes_wrong_there_is_one_commit_in_the_end(
    hub: Any, staged: Staged, waiting: Waiting, seed: int
) -> None:
    draw = random.Random(seed)
    for _ in range(draw.randint(2, 8)):
        route = draw.choice(ROUTES)
        draw.choice([hub.cut, hub.lose_answer, lambda name: hub.answer(name, draw.choice([429, 503]))])(route)
    try:
        waiting.publish(staged)
    except PublishError:
        hub.behave()
        waiting.publish(staged)
    assert_published_once(hub, staged)


def test_threads_do_not_take_the_client_from_each_other(hub: Any) -> None:
    hub.slow("whoami", 0.1, times=6)
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda number: check_access(REPO, HubRetryPolicy(num_tries=1)), range(6)))
    assert hub.count("whoami") == 6


def test_the_client_is_as_patient_as_before_afterwards(hub: Any, staged: Staged, waiting: Waiting) -> None:
    from huggingface_hub import HfApi, get_session
    from huggingface_hub.errors import HfHubHTTPError

    def habits() -> tuple[object, list[str]]:
        """What the client waits for, and what it asks when the Hub has trouble; versions differ in that."""
        hub.forget()
        hub.answer("tree", 503)
        with suppress(HfHubHTTPError):
            list(HfApi(endpoint=hub.url).list_repo_tree(REPO))
        return get_session().timeout, list(hub.routes)

    hub.create(REPO)
    before = habits()
    waiting.publish(staged)
    assert habits() == before
    assert get_session().timeout.read is None
    assert HfApi(endpoint=hub.url).file_exists(REPO, "manifest.json")
