"""A place watched over hours of an exchange's time: every close has one forecast, whatever happens."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from exchange_api import ExchangeApi
from later_candles import BEGIN_S, with_future
from moved_clock import open_following
from narrow import require_narrow
from signs import without_signs
from typer.testing import CliRunner
from watched_replay import AFTER_CLOSE_S, MOVED_CLOCK, WatchedReplay, ledger_rows
from webhooks import SECRET, WebhookReceiver

from v8.annexes.live import watching
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.posting import ALL_FORECASTS, SECRET_VARIABLE, Receiver, send_messages
from v8.annexes.live.promotion import Promotions
from v8.annexes.live.record import live_record
from v8.annexes.live.watching import LedgerUpdater, ServingModels, UpdateResult
from v8.base.errors import DataError, ProfileError
from v8.base.http_client import RetryPolicy
from v8.cli.app import app
from v8.data.market.series import Series, iso

pytestmark = [pytest.mark.tf, pytest.mark.process]

SHORT = "BTCUSDT-15m"
LONG = "ETHUSDT-1h"
HOUR_S = 3_600
BAR_S = 900


@pytest.fixture(scope="module")
def worlds() -> dict[str, pd.DataFrame]:
    return {name: with_future(name, 1_500, 500) for name in (SHORT, LONG)}


@pytest.fixture
def exchange(
    exchange_api: ExchangeApi,
    worlds: dict[str, pd.DataFrame],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> ExchangeApi:
    """An exchange in the first seconds of 2025, when the models have seen all but the future."""
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    for name, frame in worlds.items():
        exchange_api.put(name, frame)
    exchange_api.now_s = BEGIN_S + 5
    return exchange_api


@pytest.fixture
def call() -> Callable[..., Any]:
    return lambda *words: CliRunner().invoke(app, [*map(str, words)], prog_name="v8")


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def models(trained: tuple[Any, Any]) -> ServingModels:
    """The trained run's models, opened once for all tests."""
    return ServingModels(trained[0].run)


@pytest.fixture
def watch_place(
    models: ServingModels, tmp_path: Path, told: list[str]
) -> Iterator[Callable[..., tuple[LedgerUpdater, Ledger]]]:
    """LedgerUpdater the trained run, or another, into a ledger of this test."""
    opened: list[Ledger] = []

    def make(run: Path | None = None, name: str = "ledger.sqlite") -> tuple[LedgerUpdater, Ledger]:
        ledger = Ledger.open_to_write(tmp_path / name)
        opened.append(ledger)
        present = ServingModels(run) if run else models
        return LedgerUpdater(present, open_following, ledger, "./tiny", notify=told.append), ledger

    yield make
    for ledger in opened:
        ledger.close()


def closes(ledger: Ledger, series: str) -> list[int]:
    """List for which closes there are forecasts, in bars after `BEGIN_S`."""
    query = (
        "SELECT issued_for_s FROM forecasts JOIN tracks ON tracks.id = track WHERE place = ? AND series = ?"
    )
    found = ledger._connection.execute(f"{query} ORDER BY issued_for_s", ("./tiny", series))
    return [(at - BEGIN_S) // Series.parse(series).bar_s for (at,) in found]


class OverError(Exception):
    """The replay is over."""


def keep_going(
    watch: LedgerUpdater,
    report: Callable[[UpdateResult], object],
    *,
    wake_s: float,
    sleep: Callable[[float], None],
) -> None:
    """Let a watch go on, asleep as `sleep` says, until that is over."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OverError):
        patch.setattr(watching, "MAX_PAUSE_S", wake_s)
        patch.setattr(watching, "time", SimpleNamespace(sleep=sleep, time=time.time))
        watch.run_forever(report)


def replay(watch: LedgerUpdater, exchange: ExchangeApi, until_s: int) -> list[UpdateResult]:
    wakes: list[UpdateResult] = []

    def sleep(seconds: float) -> None:
        exchange.now_s += seconds
        if exchange.now_s > until_s:
            raise OverError

    keep_going(watch, wakes.append, wake_s=700.0, sleep=sleep)
    return wakes


def test_each_close_of_each_timeframe_has_one_forecast_and_its_score(
    exchange: ExchangeApi, watch_place: Callable[..., Any], told: list[str]
) -> None:
    watch, ledger = watch_place()
    wakes = replay(watch, exchange, BEGIN_S + 3 * HOUR_S + 60)
    assert closes(ledger, SHORT) == [*range(13)]
    assert closes(ledger, LONG) == [*range(4)]
    assert sum(woken.num_issued for woken in wakes) == 17
    # Two bars ahead: the last two of each wait for their actual values.
    record = live_record(ledger, "./tiny")
    assert (record.counts.num_scored, record.counts.num_pending, record.counts.num_late) == (13, 4, 0)
    assert record.tasks["ohlc"].num_scored == 13
    assert 0.3 < (record.tasks["ohlc"].naive.relative_mae or 0) < 3
    assert told == []


@pytest.fixture
def short_memory(monkeypatch: pytest.MonkeyPatch) -> int:
    """Catch up four hours, not two days: forecasts take time."""
    monkeypatch.setattr(watching, "CATCH_UP_S", 4 * HOUR_S)
    return 4 * HOUR_S


def test_missed_closes_are_caught_up_marked_late_and_in_no_error(
    exchange: ExchangeApi, watch_place: Callable[..., Any], short_memory: int
) -> None:
    watch, ledger = watch_place()
    watch.update()
    exchange.now_s += HOUR_S
    assert watch.update().num_late == 3
    assert closes(ledger, SHORT) == [0, 1, 2, 3, 4]
    exchange.now_s += short_memory + 5 * HOUR_S
    watch.update()
    newest = closes(ledger, SHORT)[-1]
    assert newest == (HOUR_S + short_memory + 5 * HOUR_S) // BAR_S
    assert closes(ledger, SHORT)[5] == newest - short_memory // BAR_S
    record = live_record(ledger, "./tiny", [SHORT])
    assert record.counts.num_late == len(closes(ledger, SHORT)) - 3
    assert record.tasks["ohlc"].num_scored == 2  # the newest waits


def test_trouble_with_the_network_is_one_line_and_done_at_the_next_wake(
    exchange: ExchangeApi, watch_place: Callable[..., Any], told: list[str]
) -> None:
    watch, ledger = watch_place()
    watch.update()
    exchange.now_s += BAR_S
    real = exchange.url
    asked = []

    def sleep(seconds: float) -> None:
        asked.append(seconds)
        exchange.is_blocked = len(asked) < 3
        if len(asked) == 4:
            raise OverError

    exchange.is_blocked = True
    keep_going(watch, lambda woken: None, wake_s=1.0, sleep=sleep)
    assert len(told) == 1 and told[0].startswith("this update: ") and real not in told[0]
    assert closes(ledger, SHORT) == [0, 1]
    assert ledger.count_forecasts("./tiny", SHORT).num_late == 0


def test_what_cannot_be_forecast_is_posted_once_beside_what_is(
    exchange: ExchangeApi, watch_place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    exchange.cut_hole(SHORT, BEGIN_S - 5 * BAR_S, BEGIN_S - 5 * BAR_S)
    watch, ledger = watch_place()
    watch.wishes = ALL_FORECASTS
    watch.update()
    watch.update()
    with WebhookReceiver() as receiver:
        send_messages(ledger.path, "./tiny", Receiver(receiver.url))
    assert receiver.kinds == ["forecast.refused", "forecast.issued"]
    data = receiver.taken[0][1]["data"]
    assert (data["place"], data["what"]) == ("./tiny", SHORT)
    assert "unbroken candles" in data["error"]


def test_a_candle_that_has_not_come_is_named_and_nothing_forecast_is_an_error(
    exchange: ExchangeApi, call: Callable[..., Any], trained: tuple[Any, Any], tmp_path: Path
) -> None:
    words = ("forecast", trained[0].run, "--ledger", tmp_path / "ledger.sqlite")
    for name in (SHORT, LONG):
        exchange.cut_hole(name, BEGIN_S - 2 * 24 * HOUR_S, BEGIN_S + 24 * HOUR_S)
    alone = call(*words, "--series", SHORT)
    assert alone.exit_code == DataError.exit_code
    assert "0 forecasts issued, 0 scored, 1 series failed." in alone.stdout
    assert alone.stderr.count("none yet of the one that closed at 2024-12-30T00:15:00Z") == 1
    both = call(*words)
    assert both.exit_code == DataError.exit_code
    assert f"{SHORT}: " in both.stderr and f"{LONG}: " in both.stderr


def test_a_candle_may_be_late_for_a_quarter_of_an_hour_then_it_is_named_once(
    exchange: ExchangeApi, watch_place: Callable[..., Any], told: list[str]
) -> None:
    watch, ledger = watch_place()
    exchange.cut_hole(LONG, BEGIN_S - HOUR_S, BEGIN_S + 24 * HOUR_S)
    replay(watch, exchange, BEGIN_S + 890)
    assert told == [] and closes(ledger, SHORT) == [0]
    replay(watch, exchange, BEGIN_S + 3 * HOUR_S)
    (line,) = told
    assert line.startswith(f"{LONG}: ") and "closed at 2025-01-01T00:00:00Z" in line
    assert closes(ledger, SHORT) == [*range(13)] and closes(ledger, LONG) == []


def test_a_missing_candle_is_one_line_and_one_message_until_it_is_over(
    exchange: ExchangeApi,
    watch_place: Callable[..., Any],
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    exchange.cut_hole(SHORT, BEGIN_S - 5 * BAR_S, BEGIN_S - 5 * BAR_S)
    watch, ledger = watch_place()
    watch.wishes = ALL_FORECASTS
    for _ in range(4):
        watch.update()
        exchange.now_s += BAR_S
    assert len(told) == 1
    ledger.close()
    for _ in range(2):  # as cron does
        again, ledger = watch_place()
        again.wishes = ALL_FORECASTS
        assert {*again.update().failures} == {SHORT}
        ledger.close()
    assert len(told) == 3
    with WebhookReceiver() as receiver:
        send_messages(ledger.path, "./tiny", Receiver(receiver.url))
    assert receiver.kinds.count("forecast.refused") == 1
    message = receiver.taken[receiver.kinds.index("forecast.refused")][1]
    assert message["timestamp"] == "2025-01-01T00:00:05Z"  # by the exchange's clock


def test_a_limit_of_a_series_that_is_not_forecast_is_refused_before_anything_is_written(
    call: Callable[..., Any], trained: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    ledger = tmp_path / "ledger.sqlite"
    words = ("forecast", trained[0].run, "--ledger", ledger, "--post", "http://127.0.0.1:9/")
    for series, limit in (([], "NOSUCH-15m"), (["--series", LONG], SHORT)):
        refused = call(*words, *series, "--alert", f"{limit}:range>5")
        assert refused.exit_code == ProfileError.exit_code, refused.output
        assert limit in refused.stderr and LONG in refused.stderr
    assert not ledger.exists()


def test_a_run_that_moved_is_told_that_a_second_record_begins(
    exchange: ExchangeApi, watch_place: Callable[..., Any], call: Callable[..., Any], trained: tuple[Any, Any]
) -> None:
    watch, ledger = watch_place()
    watch.update()
    ledger.close()
    words = ("forecast", trained[0].run, "--ledger", ledger.path, "--series", LONG)
    assert "has forecasts of ./tiny, none of " in call(*words).stderr
    assert "has forecasts of" not in call(*words).stderr


def test_trouble_that_was_over_is_reported_again(
    exchange: ExchangeApi, watch_place: Callable[..., Any], told: list[str]
) -> None:
    watch, _ = watch_place()
    asked = []

    def sleep(seconds: float) -> None:
        asked.append(seconds)
        exchange.is_blocked = len(asked) in (1, 2, 4)
        if len(asked) == 5:
            raise OverError

    keep_going(watch, lambda woken: None, wake_s=1.0, sleep=sleep)
    assert len(told) == 2 and told[0] == told[1]


def test_another_generation_serves_from_the_next_close_on(
    exchange: ExchangeApi, watch_place: Callable[..., Any], workplace: Any, call: Callable[..., Any]
) -> None:
    run = workplace.run
    day = "2024-12-30"
    later = run / "generations" / day
    shutil.copytree(run, later, ignore=shutil.ignore_patterns("generations", ".lock*"))
    metadata = json.loads((later / SHORT / "metadata.json").read_text())
    metadata["split"]["validation"]["last_open"] = f"{day}T00:00:00+00:00"
    (later / SHORT / "metadata.json").write_text(json.dumps(metadata))
    watch, ledger = watch_place(run)
    watch.update()
    Promotions(run, {SHORT: day}, ()).save()
    exchange.now_s += BAR_S
    watch.update()
    (one,) = live_record(ledger, "./tiny", [SHORT]).series
    assert one.counts.num_issued == 2
    issuers = [entry.issuer.generation for entry in ledger.pending("./tiny", SHORT).values()]
    assert issuers[0] != issuers[1] and issuers[1].startswith(f"{day}T00:15:00Z ")
    exchange.now_s += 3 * BAR_S
    watch.update()
    assert [
        each.issuer.generation for each in live_record(ledger, "./tiny", [SHORT]).series[0].generations
    ] == issuers
    output = call("track", ledger.path.parent / "tiny", "--ledger", ledger.path).stdout
    for issuer in issuers:
        assert f" until {issuer}: ohlc " in output


def test_a_close_that_the_model_has_seen_is_left_out(
    exchange: ExchangeApi, watch_place: Callable[..., Any], told: list[str]
) -> None:
    """Its forecast would be no forecast."""
    exchange.now_s = BEGIN_S - 40 * HOUR_S + 5
    watch, ledger = watch_place()
    woken = watch.update()
    assert {*woken.failures} == {SHORT} and len(told) == 1
    assert "; got the close at 2024-12-30T08:00:00Z" in told[0]
    assert ledger.series("./tiny") == [LONG]


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until something holds, at most a minute; what does not is found by who looks."""
    ends_s = time.monotonic() + 60
    while not is_so() and time.monotonic() < ends_s:
        time.sleep(0.05)


@pytest.mark.nightly
def test_a_process_that_is_killed_writes_the_ledger_of_one_that_is_not_and_posts_it_once(
    exchange: ExchangeApi, watch_place: Callable[..., Any], workplace: Any, tmp_path: Path
) -> None:
    """The drill of ledgers kills it ten times, at random. The receiver is down for ten closes."""
    num_closes = 11
    watch, ledger = watch_place(name="straight.sqlite")
    for number in range(num_closes):
        exchange.now_s = BEGIN_S + number * BAR_S + AFTER_CLOSE_S
        watch.update()
    ledger.close()
    exchange.now_s = BEGIN_S + AFTER_CLOSE_S
    killed = workplace.runs / "killed.sqlite"
    env = {"V8_REST_URL": exchange.url, "V8_VISION_URL": exchange.url, "NO_PROXY": "127.0.0.1"}
    env |= {"V8_HOME": str(tmp_path / "other home"), SECRET_VARIABLE: SECRET}
    output = tmp_path / "output.txt"

    def start() -> subprocess.Popen[Any]:
        words = ["forecast", workplace.run, "--every", "--ledger", killed, f"--post={receiver.url}"]
        with output.open("a") as out:
            return subprocess.Popen(
                [sys.executable, MOVED_CLOCK, *words],
                env={**workplace.env, **env},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    with WebhookReceiver() as receiver:
        receiver.status = 503
        replay = WatchedReplay(exchange, killed, "./tiny", start)

        def at_close(number: int) -> None:
            if number == num_closes - 2:
                wait_until(lambda: receiver.num_asked > 0)
                receiver.status = 204

        try:
            replay.go((SHORT, LONG), num_closes, {3: 0.05, num_closes - 1: 0.05}, at_close)
            wait_until(lambda: len(receiver.forecasts) == num_closes + 3)
            replay.process.send_signal(signal.SIGINT)
            replay.process.wait(60)
        finally:
            replay.process.kill()
    text = output.read_text()
    assert replay.process.returncode == 130, text
    again = f"forecast {workplace.run} --every --ledger {killed} --post=URL"
    assert text.splitlines()[-1].startswith(f"interrupted: {killed} is whole. Continue with: ")
    assert text.splitlines()[-1].endswith(again)
    assert "2025-01-01T01:15:10Z: 1 forecast issued, 1 scored; next at 2025-01-01T01:30:0" in text
    assert SECRET not in text and "in-the-address" not in text
    rows = ledger_rows(killed)
    assert rows == ledger_rows(tmp_path / "straight.sqlite")
    issued = [(series, iso(issued_for_s)) for _, series, issued_for_s, *_ in rows["forecasts"]]
    assert sorted(receiver.forecasts) == sorted(issued)
    assert len({number for number, _ in receiver.taken}) == len(receiver.taken) == num_closes + 3
    for name in (SHORT, LONG):  # in order
        assert [each for each in receiver.forecasts if each[0] == name] == [
            each for each in issued if each[0] == name
        ]


def test_forecast_once_says_what_it_did_and_how_to_look_at_it_and_posts_it(
    exchange: ExchangeApi, workplace: Any, tmp_path: Path
) -> None:
    workplace.env.update(V8_REST_URL=exchange.url, V8_VISION_URL=exchange.url, NO_PROXY="127.0.0.1")
    workplace.env["V8_HOME"] = str(tmp_path / "home")
    workplace.env[SECRET_VARIABLE] = SECRET
    with WebhookReceiver() as receiver:
        workplace.env["V8_POST_URL"] = receiver.url
        result = workplace.call(["forecast", "runs/tiny"])
    assert (result.returncode, without_signs(result.stderr)) == (0, "")
    assert "2 forecasts issued, 0 scored." in result.stdout
    assert "Ledger: runs/ledger.sqlite. Its record: python -m v8 track runs/tiny" in result.stdout
    with Ledger.open(workplace.runs / "ledger.sqlite") as ledger:
        assert ledger.series("./tiny") == [SHORT, LONG]
    assert [*receiver.forecasts] == [(name, "2025-01-01T00:00:00Z") for name in (SHORT, LONG)]
    (model,) = {told["data"]["model"]["profile"] for _, told in receiver.taken}
    assert model == "tiny"


def test_forecast_once_says_what_it_did_where_nobody_takes_it(
    exchange: ExchangeApi,
    call: Callable[..., Any],
    trained: tuple[Any, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    monkeypatch.setattr(send_messages, "__defaults__", (RetryPolicy(num_tries=1),))
    ledger = tmp_path / "ledger.sqlite"
    with WebhookReceiver() as receiver:
        receiver.status = 503
        process = call("forecast", trained[0].run, "--ledger", ledger, "--post", receiver.url)
    assert (process.exit_code, "2 forecasts issued, 0 scored." in process.stdout) == (5, True), process.output
    assert f"got status 503. See what it lacks; {ledger}.outbox keeps the messages" in process.stderr


def test_a_second_writer_and_a_run_or_a_ledger_that_is_not_there_are_refused(
    call: Callable[..., Any], models: ServingModels, trained: tuple[Any, Any], tmp_path: Path
) -> None:
    words = ("forecast", trained[0].run, "--ledger", tmp_path / "ledger.sqlite")
    with Ledger.open_to_write(tmp_path / "ledger.sqlite"):
        second = call(*words, "--every")
    assert second.exit_code == 3
    assert "; got process " in second.stderr
    nowhere = call("forecast", tmp_path / "nowhere", "--ledger", tmp_path / "new.sqlite")
    assert nowhere.exit_code == 3 and "; got no such folder" in nowhere.stderr
    assert not any(tmp_path.glob("new*"))
    absent = call("track", trained[0].run, "--ledger", tmp_path / "new" / "ledger.sqlite")
    assert absent.exit_code == 3 and "; got no such file" in absent.stderr


def test_track_prints_the_record_as_a_table_json_and_csv(
    call: Callable[..., Any], exchange: ExchangeApi, watch_place: Callable[..., Any], tmp_path: Path
) -> None:
    watch, ledger = watch_place()
    words = ("track", tmp_path / "tiny", "--ledger", ledger.path)
    nothing = call(*words)
    assert nothing.exit_code == 3
    assert "; got none of ./tiny, " in nothing.stderr
    for _ in range(12):
        watch.update()
        exchange.now_s += BAR_S
    process = call(*words)
    assert process.exit_code == 0, process.stderr
    require_narrow(process.stdout, SHORT)
    assert re.search("15 forecasts issued, 11 scored, 0 late .*, 4 waiting", process.stdout)
    assert "over 11 forecasts of 1 day: too few windows." in process.stdout
    content = json.loads(call(*words, "--format", "json").stdout)
    assert [one["series"] for one in content["series"]] == [SHORT, LONG]
    naive = content["series"][0]["tasks"]["ohlc"]["naive"]
    assert (naive["verdict"], naive["p_value"]) == ("too few windows", None)
    rows = [*csv.DictReader(call(*words, "--format", "csv", "--series", SHORT).stdout.splitlines())]
    assert [row["task"] for row in rows] == ["ohlc", "volatility"]
    assert float(rows[0]["relative_mae"]) == naive["relative_mae"]
    assert call(*words, "--format", "xml").exit_code == 2
    assert call(*words, "--series", "DOGEUSDT-1h").exit_code == 3
