"""An ordinary user whose home cannot be written, or who has none: a command works, or says why in a line.

Root may write to every folder, so tests of read-only folders that root runs show nothing. These calls drop to
the user and group `nobody`, and keep of root's powers only that of reading: the interpreter and its packages
may lie in root's own home.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from exchange_api import ExchangeApi
from programs import run_program

from v8.data.market.series import Series
from v8.data.market.sources import open_source

pytestmark = pytest.mark.process

SERIES = "BTCUSDT-1h"
NUM_BARS = 3_000
NO_CACHE = "All goes on without it, only slower."
NO_HOME = "error: V8_HOME: must be below a home folder that this machine knows; got "
USER_ID = 65_534
"""The user `nobody`, whose home folder does not exist."""

UNKNOWN_USER_ID = 54_321
"""A user that no machine knows, as containers have; without HOME it has no home folder."""

LIMIT_S = 300.0


def _words_as(user_id: int) -> list[str]:
    power = "+dac_read_search"
    ids = [f"--reuid={user_id}", f"--regid={user_id}", "--clear-groups"]
    return ["setpriv", *ids, f"--inh-caps={power}", f"--ambient-caps={power}"]


@cache
def why_impossible() -> str | None:
    """Say why no other user can be taken on here; None if one can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "only root can take on another user"
    if shutil.which("setpriv") is None:
        return "setpriv, of the package util-linux, is not installed"
    words = [*_words_as(USER_ID), sys.executable, "-c", "import numpy"]
    tried = run_program(words)
    return tried.stderr.strip() or "the interpreter does not start" if tried.returncode else None


def called_as_user(
    *words: str | Path, cwd: Path, env: Mapping[str, str], user_id: int = USER_ID
) -> subprocess.CompletedProcess[str]:
    """Do what `python -m v8` does with some words, as an ordinary user with this environment alone."""
    reason = why_impossible()
    if reason:
        pytest.skip(f"no other user can be taken on here: {reason}")
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "CUDA_VISIBLE_DEVICES") if name in os.environ}
    return run_program(
        [*_words_as(user_id), sys.executable, "-m", "v8", *words],
        cwd=cwd,
        env={**kept, "PYTHONDONTWRITEBYTECODE": "1", "NO_PROXY": "127.0.0.1", **env},
        timeout=LIMIT_S,
    )


@pytest.fixture(scope="module")
def exchange() -> Iterator[ExchangeApi]:
    """An exchange of the present, with candles of the demo market."""
    now_s = int(time.time())
    frame = open_source("demo").candles(Series.parse(SERIES), NUM_BARS).to_frame()
    first_s = now_s // 3_600 * 3_600 - 3_600 * (NUM_BARS - 24)
    opens_s = [first_s + 3_600 * row for row in range(NUM_BARS)]
    frame.index = pd.DatetimeIndex(pd.to_datetime(opens_s, unit="s", utc=True), name=frame.index.name)
    with ExchangeApi(now_s=now_s) as served:
        served.put(SERIES, frame)
        yield served


@pytest.fixture
def ground() -> Iterator[Path]:
    """A folder that everybody may enter, with a home of root's and a working folder of everybody's.

    It does not lie in pytest's own folder, which each start of pytest closes to other users.
    """
    with tempfile.TemporaryDirectory(prefix="v8-ordinary-user-") as folder:
        ground = Path(folder)
        ground.chmod(0o755)
        for name in ("home", "work"):
            (ground / name).mkdir()
        (ground / "work").chmod(0o777)
        yield ground


def environment(exchange: ExchangeApi, **more: str) -> dict[str, str]:
    exchange.now_s = time.time()
    return {"V8_VISION_URL": exchange.url, "V8_REST_URL": exchange.url, **more}


def require_good(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    require_quiet(done)


def require_quiet(done: subprocess.CompletedProcess[str]) -> None:
    """Nothing of another program stands there, and no line is longer than a message may be."""
    assert "Traceback" not in done.stderr + done.stdout
    assert "atplotlib" not in done.stderr
    assert max(map(len, done.stderr.splitlines()), default=0) <= 640


@pytest.mark.nightly
def test_a_home_that_cannot_be_written_costs_a_line(exchange: ExchangeApi, ground: Path) -> None:
    env = environment(exchange, HOME=str(ground / "home"))
    work = ground / "work"
    chosen = ["--source", "vision", "--series", SERIES]
    candles = called_as_user("data", *chosen, "--bars", "200", cwd=work, env=env)
    require_good(candles)
    assert NO_CACHE in candles.stderr
    trained = called_as_user("run", *chosen, "--smoke", cwd=work, env=env)
    require_good(trained)
    assert "1 series trained now, 0 finished before, 0 failed." in trained.stdout
    run = work / "runs" / "frontier-smoke"
    for words in (["predict", run], ["report", run], ["forecast", run], ["track", run]):
        exchange.now_s = time.time()
        require_good(called_as_user(*words, cwd=work, env=env))
    assert not list((ground / "home").rglob("*"))

    # The same run where nothing can be written: what only reads works, what writes says where it cannot.
    shutil.copytree(run, ground / "theirs" / "frontier-smoke")
    theirs = ground / "theirs" / "frontier-smoke"
    require_good(called_as_user("predict", theirs, cwd=work, env=env))
    require_good(
        called_as_user("report", theirs, cwd=work, env=env)
    )  # nothing has changed since it was drawn
    shutil.rmtree(theirs / "report")
    result = called_as_user("report", theirs, cwd=work, env=env)
    require_quiet(result)
    assert result.returncode == 6
    assert "Leaderboard" in result.stdout
    last_line = result.stderr.splitlines()[-1]
    assert "report/zh-TW.js could not be written" in last_line
    assert "got Permission denied." in last_line


def test_a_store_of_candles_that_cannot_be_written_is_not_brought_up_to_date(
    exchange: ExchangeApi, ground: Path
) -> None:
    env = environment(exchange, HOME=str(ground / "home"))
    result = called_as_user(
        "data", "update", "--series", SERIES, "--bars", "300", cwd=ground / "work", env=env
    )
    require_quiet(result)
    assert result.returncode == 6
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {ground / 'home'}/.cache/v8/candles/")
    assert "; got Permission denied." in line


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("user_id", "env", "named"),
    [(UNKNOWN_USER_ID, {}, "~/.cache/v8"), (USER_ID, {"V8_HOME": "~nosuch/v8"}, "~nosuch/v8")],
)
def test_a_user_without_a_home_is_told_what_to_set(
    exchange: ExchangeApi, ground: Path, user_id: int, env: dict[str, str], named: str
) -> None:
    work = ground / "work"
    env = environment(exchange, **env)
    for words in (
        ["data", "--source", "vision", "--series", SERIES, "--bars", "200"],
        ["run", "--source", "demo", "--smoke", "--series", "BTCUSDT-15m"],
        ["run", "--list"],
    ):
        result = called_as_user(*words, cwd=work, env=env, user_id=user_id)
        require_quiet(result)
        assert result.returncode == 6
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert line.startswith(f"{NO_HOME}{named} ")
        assert "Set V8_HOME " in line
        assert not list(work.iterdir()), "nothing is begun"
    told = {**env, "V8_HOME": str(work / "caches")}
    words = ["data", "--source", "vision", "--series", SERIES, "--bars", "200"]
    require_good(called_as_user(*words, cwd=work, env=told, user_id=user_id))


def test_a_place_for_runs_that_cannot_be_written_is_refused(exchange: ExchangeApi, ground: Path) -> None:
    env = environment(exchange, HOME=str(ground / "home"))
    words = ["run", "--source", "demo", "--smoke", "--series", "BTCUSDT-15m"]
    result = called_as_user(*words, cwd=ground / "home", env=env)
    require_quiet(result)
    assert result.returncode == 6
    assert result.stderr.splitlines()[-1].startswith("error: runs: ")


@pytest.mark.parametrize(
    ("words", "named", "rule"),
    [
        (["report", "folder"], "RUN", "must be a folder that can be read"),
        (["track", "--run", "folder"], "--run", "must be a folder that can be read"),
        (["data", "--data-dir", "folder"], "--data-dir", "must be a folder that can be read"),
        (["run", "--universe", "a-file.yaml"], "--universe", "must be a file that can be read"),
    ],
)
def test_what_may_not_be_listed_or_read_is_named_as_that(
    ground: Path, words: list[str], named: str, rule: str
) -> None:
    work = ground / "work"
    (work / "folder").mkdir()
    (work / "folder").chmod(0o311)
    (work / "a-file.yaml").touch(mode=0o200)
    result = called_as_user(*words, cwd=work, env={"HOME": str(work)})
    require_quiet(result)
    assert result.returncode == 2
    assert result.stderr.startswith(
        f"error: python -m v8 {words[0]}, {named}: {rule}; got {words[-1]}, which "
    )
