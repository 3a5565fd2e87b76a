"""What publishing refuses: one sentence that says what to do, and the token in none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from signs import everything_said, without_signs

from v8.base.errors import PublishError
from v8.publish.hub import hub_endpoint
from v8.publish.hub.client import HubRetryPolicy, check_repo_name
from v8.publish.hub.publish import check_access, publish
from v8.publish.hub.staging import Staged

REPO = "someone/fleet"
QUICK = HubRetryPolicy(timeout_s=20.0, num_tries=1, sleep=lambda seconds: None)


def error_of(staged: Staged, repo: str = REPO) -> PublishError:
    with pytest.raises(PublishError, match=" got ") as caught:
        publish(staged, repo, is_private=False, retries=QUICK)
    # The client's errors hold the request, and that holds the token.
    assert caught.value.__context__ is None
    token = os.environ.get("HF_TOKEN")
    assert not token or token not in everything_said(caught.value)
    return caught.value


@pytest.mark.tf
def test_a_wrong_token_is_said(hub: Any, staged: Staged, tokens: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_TOKEN", tokens.wrong)
    error = error_of(staged)
    assert str(error) == (
        "HF_TOKEN: must be a valid access token of the Hugging Face Hub; got one that the Hub does not know. "
        "Create one with write access at https://huggingface.co/settings/tokens, then set HF_TOKEN or run "
        "`hf auth login`."
    )
    assert hub.routes == ["whoami"]


@pytest.mark.tf
def test_no_token_is_said_without_asking_anybody(hub: Any, staged: Staged, monkeypatch: Any) -> None:
    monkeypatch.delenv("HF_TOKEN")
    error = error_of(staged)
    assert (error.where, error.got) == ("HF_TOKEN", "none")
    assert hub.count() == 0


@pytest.mark.tf
@pytest.mark.parametrize(("who", "got"), [("read", "may only read"), ("stranger", "the token of stranger")])
def test_a_token_that_may_not_write_there_is_said(
    hub: Any, staged: Staged, tokens: Any, monkeypatch: Any, who: str, got: str
) -> None:
    token = getattr(tokens, who)
    monkeypatch.setenv("HF_TOKEN", token)
    error = error_of(staged)
    assert error.where == REPO and got in error.got
    assert hub.routes == ["whoami"]


@pytest.mark.tf
@pytest.mark.parametrize("route", ["create", "preupload", "lfs-batch", "commit"])
def test_a_refusal_that_comes_late_is_said(hub: Any, staged: Staged, tokens: Any, route: str) -> None:
    # A fine-grained token does not tell beforehand what it may.
    hub.answer(route, 403, times=9)
    if route == "create":
        hub.answer("info", 404, times=9, x_error_code="RepoNotFound")
    error = error_of(staged)
    assert "may not write" in error.got


@pytest.mark.tf
@pytest.mark.parametrize("route", ["info", "tree", "preupload", "commit"])
def test_a_repository_that_vanishes_is_said(hub: Any, staged: Staged, tokens: Any, route: str) -> None:
    hub.answer(route, 404, times=9, x_error_code="RepoNotFound")
    error = error_of(staged)
    assert error.where == REPO and "token may see" in error.rule


@pytest.mark.tf
@pytest.mark.parametrize(
    "route", ["whoami", "create", "info", "tree", "validate-yaml", "preupload", "commit"]
)
def test_a_hub_that_repeats_the_token_does_not_get_it_printed(
    hub: Any, staged: Staged, tokens: Any, route: str
) -> None:
    hub.answer(route, 400, times=9, message=f"Bad request by Bearer {tokens.write}!")
    error = error_of(staged)
    assert "take the commit" in error.rule
    assert "(token)" in str(error) or route == "validate-yaml"


@pytest.mark.tf
@pytest.mark.parametrize("token", ["hf_a\ttab", "hf_café", "hf_with blank"])
def test_a_token_that_no_header_can_hold_is_refused_before_it_gets_into_one(
    hub: Any, staged: Staged, monkeypatch: Any, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    error = error_of(staged)
    assert error.where == "HF_TOKEN" and "valid access token" in error.rule
    assert hub.count() == 0
    assert token.split()[0] not in str(error)


@pytest.mark.tf
def test_a_page_that_is_no_hub_is_said(hub: Any, staged: Staged, tokens: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.url}/some/proxy")
    error = error_of(staged)
    assert error.where == REPO


@pytest.mark.tf
def test_what_is_no_repository_name_is_refused_without_asking(hub: Any, staged: Staged) -> None:
    names = "fleet;a/b/c;;/;someone/;/fleet;some one/fleet;someone/fl--eet;someone/../fleet;someone/.."
    names += ";someone/fleet.git;-a/b;a/b-;.a/b;a/b\n;a\\b;é/b"
    for name in (*names.split(";"), "x/" * 49 + "x"):
        error = error_of(staged, name)
        assert str(error).startswith("--repo: is user/name in letters, digits, '-', '_' and '.', at most 96")
    assert hub.count() == 0


@pytest.mark.parametrize("name", ["someone/fleet", "a/b", "Some-one_1/fleet.v2", "s/" + "x" * 94])
def test_names_that_the_hub_allows_are_allowed(name: str) -> None:
    from huggingface_hub.utils import validate_repo_id

    check_repo_name(name)
    validate_repo_id(name)


def test_access_can_be_checked_before_hours_of_training(
    hub: Any, tokens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_access(REPO, QUICK)
    assert hub.routes == ["whoami"]
    monkeypatch.setenv("HF_TOKEN", tokens.read)
    with pytest.raises(PublishError, match=r"someone/fleet: .* may only read"):
        check_access(REPO, QUICK)


def test_an_organisation_of_the_user_can_be_written(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.orgs = ["house"]
    check_access("house/fleet", QUICK)
    with pytest.raises(PublishError, match=r"elsewhere/fleet: .*got the token"):
        check_access("elsewhere/fleet", QUICK)


# HF_ENDPOINT: an address of a Hub, or one sentence that names the variable and no password

PASSWORD = "Tr0ub4dor"


@pytest.mark.parametrize(
    "address",
    [
        "http://[",
        "file:///etc/passwd",
        "hub.example.org",
        "http://",
        " ",
        "http://hub.example.org:99999",
        "http://hub.example.org:port",
        "http://hub example.org",
        "http://hub.example.org\x1b[31m",
        "http://hüb.example.org",
        "http://hub.example.org?a=b",
        f"http://me:{PASSWORD}@hub.example.org",
        f"http://me:{PASSWORD} @hub.example.org",
        f"https://{PASSWORD}@hub.example.org",
        "http://" + "x" * 100_000 + "[",
    ],
)
def test_what_is_no_address_of_a_hub_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(PublishError, match=r"^HF_ENDPOINT: .*got one ") as caught:
        hub_endpoint()
    assert PASSWORD not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "address", ["http://[::1]:8080", "https://hub.example.org/path/", "http://localhost:1"]
)
def test_addresses_of_hubs_are_taken(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert hub_endpoint() == address.rstrip("/")


@pytest.mark.process
def test_a_command_says_so_in_one_line_although_the_hub_s_client_fails_when_it_is_imported() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "v8", "pull", "--repo", "someone/fleet"],
        env={**os.environ, "HF_ENDPOINT": f"http://me:{PASSWORD}@["},
        capture_output=True,
        text=True,
        check=False,
    )
    (said,) = without_signs(process.stderr).splitlines()
    assert (process.returncode, said.startswith("error: HF_ENDPOINT: ")) == (5, True)
    assert PASSWORD not in said
