"""`python -m v8 app` as a process: it serves offline, says where, and ends at once when told to."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from deaf import DEAF
from forked import Forked, called
from typer.testing import CliRunner

from v8.annexes.live import commands
from v8.annexes.live.app.connections import open_listener
from v8.base.errors import ProfileError
from v8.cli.app import app

REPOSITORY = Path(__file__).parents[4]
MARKET = ("--source", "demo", "--port", "0")


@pytest.fixture
def start(fleet_run: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return what starts the page of the fleet; `before` are words of a shell in front of Python."""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "V8_HOME": str(tmp_path / "home")}
    env |= {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    env.pop("TF_CPP_MIN_LOG_LEVEL", None)
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ExitStack() as stack:

        def started(*words: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
            words = ("app", str(fleet_run), *MARKET, *words)
            process: subprocess.Popen[str]
            if before:
                command = [*before, sys.executable, "-u", "-m", "v8", *words]
                process = subprocess.Popen(command, env=env, cwd=tmp_path, **streams)
            else:
                process = Forked(words, tf=True, env=env, cwd=tmp_path, **streams)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield started


@pytest.mark.tf
@pytest.mark.process
def test_it_serves_the_demo_market_offline_until_ctrl_c(start: Any, fetch: Any) -> None:
    process = start()
    assert process.stderr.readline().partition(": TensorFlow starts")[0].endswith("tiny")
    said = process.stderr.readline()
    match = re.fullmatch(r"run tiny: (http://127\.0\.0\.1:\d+)/ \(Ctrl-C stops it\)\n", said)
    assert match, said
    content = fetch(f"{match[1]}/api/forecast/BTCUSDT-15m").json()
    assert (content["candles"]["source"], content["first_bar"]) == ("demo", "2025-01-01T00:00:00Z")
    for path in ("/", "/series/ETHUSDT-1h", "/record", "/api"):
        assert fetch(match[1] + path).text.count('class="banner">Simulated market') == 1, path
    assert 'class="banner">模擬市場' in fetch(f"{match[1]}/api?lang=zh-TW").text
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    # By itself: a process that does not stop is ended after a few seconds, with other last words.
    assert process.stderr.read().startswith("stopped: ")
    assert process.stdout.read() == ""


@pytest.mark.tf
@pytest.mark.process
def test_a_chosen_address_of_this_machine_answers_to_names_of_this_machine_only(
    start: Any, fetch: Any
) -> None:
    process = start("--host", "localhost")
    process.stderr.readline()  # that it opens the run
    series = f"{re.search(r'http://[^ ]+/', process.stderr.readline())[0]}api/series"
    assert {fetch(series, headers={"Host": name}).status for name in ("localhost", "[::1]:1")} == {200}
    refused = fetch(series, headers={"Host": "evil.example"})
    assert (refused.status, refused.json()["error"]["where"]) == (400, "header Host")


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.process
def test_a_server_in_the_background_of_a_script_ends_by_sigterm_alone(start: Any, fetch: Any) -> None:
    process = start(before=DEAF)
    process.stderr.readline()  # that it opens the run
    url = process.stderr.readline().split()[2]
    process.send_signal(signal.SIGINT)
    assert fetch(f"{url}api/forecast/BTCUSDT-15m").status == 200
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 130
    assert process.stderr.read().startswith("stopped: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], " --repo; got neither"),
        (["runs/a", "--repo", "a/b"], "got both"),
        (["no/such/run"], "no/such/run: .*; got no such folder"),
        (["--repo", "a", "--port", "70000"], "--port"),
        (["--repo", "a", "--source", "dmeo"], "Did you mean demo"),
        (["--repo", "a", "--rate", "0"], "--rate"),
        (["--repo", "a", "--cors", "https://a.example/"], "--cors: .*https://a.example/"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["app", *words])
    assert result.exit_code == 2
    # What takes a moment to be looked at is refused behind the first sign of life.
    (told,) = [line for line in result.stderr.splitlines() if not line.startswith("Opening a")]
    assert re.search(said, told)


@pytest.mark.process
def test_others_need_a_token_unless_it_is_said_that_they_need_none(tmp_path: Path) -> None:
    tokens = ("", "made-up.Token_of~16")
    for host, is_open, token in product(("0.0.0.0", "127.0.0.1"), (False, True), tokens):
        env = {**os.environ, "V8_HOME": str(tmp_path / "home")} | ({"V8_APP_TOKEN": token} if token else {})
        more = ["--no-token"] if is_open else []
        process = called("app", tmp_path, *MARKET, "--host", host, *more, env=env)
        is_reached = host == "0.0.0.0" and not token
        assert process.returncode == (2 if is_reached and not is_open else 3)  # 3: there is no model
        is_refused = "error: --host 0.0.0.0: " in process.stderr and "got no V8_APP_TOKEN" in process.stderr
        assert is_refused == (is_reached and not is_open)
        assert ("No V8_APP_TOKEN is set: " in process.stderr) == (is_reached and is_open)
        assert "made-up" not in process.stdout + process.stderr


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with open_listener("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(
            ProfileError, match=rf"--port {port}: is .* free; got .*\. Stop what listens there"
        ):
            open_listener("127.0.0.1", port)
    with pytest.raises(ProfileError, match=r"--host no\.such\.host\.invalid"):
        open_listener("no.such.host.invalid", 0)


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "APP_PACKAGES", ("starlette", "no_such_server"))
    result = CliRunner().invoke(app, ["app", "runs/a"])
    assert result.exit_code == 2
    assert "the extra `app` of" in result.stderr
    assert result.stderr.endswith(" -m pip install no_such_server.\n")
    assert all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn"))
