"""Transfers that stall, drip or break: an end within the limit, silence that is counted, Ctrl-C at once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from forked import Forked
from signs import without_signs

from v8.base.errors import PublishError, PullError
from v8.publish.hub import client
from v8.publish.hub.client import HubRetryPolicy
from v8.publish.hub.publish import Published, publish
from v8.publish.hub.pull import pull
from v8.publish.hub.staging import Staged, stage_run

pytestmark = pytest.mark.tf

REPO = "someone/fleet"
FOR_EVER = 10_000


def sent(staged: Staged, told: list[str] | None = None, **limits: Any) -> Published:
    tell = (lambda text: None) if told is None else told.append
    retries = HubRetryPolicy(**{"timeout_s": 1.0, "num_tries": 2, "first_s": 0.0, "report": tell, **limits})
    return publish(staged, REPO, is_private=False, retries=retries)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell every second, and give what ends by itself a second only."""
    monkeypatch.setattr(client, "REPORT_EVERY_S", 1)
    monkeypatch.setattr(client, "_GRACE_S", 1.0)


@pytest.mark.nightly
def test_uploads_that_stall_for_ever_end_together_and_the_next_call_continues(
    hub: Any, make_run: Any, tmp_path: Path
) -> None:
    # Twelve models and five threads: one after the other they would take three limits a try.
    staged = stage_run(make_run(make_run.UNIVERSE[:12]), tmp_path / "twelve", REPO)
    hub.stall("lfs-put", times=FOR_EVER)
    with pytest.raises(PublishError, match=r"Hub must answer; got .*, 2 times "):
        sent(staged)
    assert hub.count("lfs-put") <= 2 * 5
    assert hub.commits(REPO) == []
    hub.behave()
    sent(staged)
    assert len(hub.commits(REPO)) == 1


@pytest.mark.usefixtures("quick")
def test_silence_is_counted_where_the_user_sees_it(hub: Any, staged: Staged) -> None:
    hub.stall("lfs-put", times=FOR_EVER)
    messages: list[str] = []
    with pytest.raises(PublishError, match="the Hub must answer"):
        sent(staged, messages, timeout_s=3.0, num_tries=1)
    counted = [int(line.split()[5]) for line in messages if f"{REPO}: no bytes moved for " in line]
    assert counted
    assert counted == sorted(set(counted))
    assert all(line.endswith(" s of at most 3 s") for line in messages)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "route",
    ["resolve", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("tree", "lfs-get"))],
)
def test_a_download_of_a_byte_now_and_then_ends(hub: Any, staged: Staged, route: str) -> None:
    sent(staged)
    hub.drip(route, 0.2, times=FOR_EVER)
    messages: list[str] = []
    error = PublishError if route == "tree" else PullError
    with pytest.raises(error, match=r"1,000 bytes .* 2 s"):
        if error is PublishError:
            sent(staged, messages, timeout_s=2.0, num_tries=1)
        else:
            pull(REPO, retries=HubRetryPolicy(timeout_s=2.0, num_tries=1, report=messages.append))
    assert any(line.endswith(" s of at most 2 s") for line in messages)


@pytest.mark.nightly
@pytest.mark.usefixtures("quick")
def test_no_try_is_silent_beyond_the_stated_time(hub: Any, staged: Staged) -> None:
    """A try that begins late, or could be silent for long, has only what is left."""
    hub.stall("lfs-put", times=FOR_EVER)
    messages: list[str] = []
    with pytest.raises(PublishError, match=r" 5 s for .*; got no answer \("):
        sent(staged, messages, timeout_s=10_000.0, num_tries=1_001, first_s=0.0, most_s=5.0)
    limits = [float(line.split()[-2]) for line in messages if " s of at most " in line]
    assert limits
    assert max(limits) <= 4.0


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("has_xet", [True, False])
def test_a_client_with_xet_moves_models_by_plain_requests(
    hub: Any, make_run: Any, tmp_path: Path, has_xet: bool
) -> None:
    # Every request for xet ends with 503 for ever, and what is not xet goes well.
    hub.has_xet = has_xet
    pytest.importorskip("hf_xet", reason="needs hf_xet: pip install hf_xet")
    run = make_run(["BTCUSDT-15m"])
    for words in (("publish", run), ("pull",)):
        done = finished(start(*words, "--repo", REPO, HF_HUB_DISABLE_XET="0"))
        assert done.returncode == 0, done.stderr
        assert without_signs(done.stderr) == ""
    assert hub.count("xet-token") == 0
    assert (hub.count("lfs-put"), hub.count("lfs-get")) == (1, 1)


@pytest.mark.parametrize("status", [404, 501])
def test_a_hub_that_takes_no_large_files_by_lfs_is_named_as_such(
    hub: Any, staged: Staged, status: int
) -> None:
    hub.answer("lfs-batch", status, times=FOR_EVER, message="xet only")
    if status == 404:
        with pytest.raises(PublishError, match=r"got status 404: xet .* by LFS"):
            sent(staged)
    else:
        with pytest.raises(PublishError, match=r"must answer; got status 501, 2 times"):
            sent(staged)


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("route", ["lfs-put", "lfs-get"])
def test_one_ctrl_c_ends_a_stalled_transfer_at_once(
    hub: Any, staged: Staged, make_run: Any, route: str
) -> None:
    words: tuple[object, ...] = ("publish", make_run())
    if route == "lfs-get":
        sent(staged, timeout_s=20.0)
        hub.forget()
        words = ("pull",)
    hub.stall(route, times=FOR_EVER)
    process = start(*words, "--repo", REPO)
    until_asked(hub, route, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert "Traceback" not in finished(process).stderr


def start(*words: object, **env: str) -> Forked:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return Forked([str(word) for word in words], env={**os.environ, **env}, **streams)


def finished(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def until_asked(hub: Any, route: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 90
    while not hub.count(route):
        assert process.poll() is None, finished(process).stderr
        assert time.monotonic() < deadline, f"{route} was not asked for"
        time.sleep(0.05)
    time.sleep(0.3)
