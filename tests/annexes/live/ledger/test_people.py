"""Messages that people read: real ones through apprise to services on loopback, together, and each once."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from apprise.plugins.discord import NotifyDiscord
from apprise.plugins.telegram import NotifyTelegram
from ledger_entries import FIRST_S, made_entry
from people_server import MailServer, PeopleServer

from v8.annexes.live import Limit
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.posting import (
    Outbox,
    PeopleReceiver,
    Wishes,
    open_receiver,
    send_messages,
    text_of,
)
from v8.base import wording
from v8.base.errors import ArtifactError, ProfileError, PublishError
from v8.base.http_client import RetryPolicy
from v8.base.wording import without_secrets
from v8.model.baselines.paths import PriceRange

PLACE = "./tiny"
HASTY = RetryPolicy(num_tries=3, sleep=lambda seconds: None)
TOKEN = "123456789:abcdefg_hijklmnop"
TELEGRAM = f"tgram://{TOKEN}/-100123"
DISCORD = "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js"
SERIES = ("BTCUSDT-15m", "ETHUSDT-15m", "SOLUSDT-15m")
TWO_PRICES = PriceRange(98.5, 104.25)


def no_model(series: str) -> Any:
    """No model is there, so that none is tested for decay."""
    raise ArtifactError(where=series, rule="must be there", got="none", fix="Train it")


@pytest.fixture(autouse=True)
def _kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secrets of these addresses are those of this module's tests alone."""
    monkeypatch.setattr(wording, "_kept", {})


@pytest.fixture
def service() -> Iterator[PeopleServer]:
    with PeopleServer() as opened, pytest.MonkeyPatch.context() as patch:
        patch.setattr(NotifyTelegram, "notify_url", f"{opened.url}/bot")
        patch.setattr(NotifyDiscord, "notify_url", f"{opened.url}/api/webhooks")
        patch.setattr(NotifyTelegram, "request_rate_per_sec", 0)
        patch.setattr(NotifyDiscord, "request_rate_per_sec", 0)
        yield opened


@pytest.fixture
def outbox(ledger: Ledger) -> Iterator[Outbox]:
    with Outbox(ledger.path, PLACE) as opened:
        opened.collect(ledger, no_model)
        yield opened


def issue(ledger: Ledger, outbox: Outbox, number: int = 0, wishes: Wishes | None = None) -> None:
    """Forecast a close of three series, whose events come into the outbox together."""
    for series in SERIES:
        issuer = replace(made_entry().issuer, series=series)
        entry = replace(made_entry(number, issuer), price_range=TWO_PRICES)
        outbox.keep_range(entry)
        ledger.add(entry)
    outbox.collect(ledger, no_model, wishes or Wishes())


@pytest.mark.parametrize("url", [TELEGRAM, DISCORD, "mailto"])
def test_all_series_of_a_close_are_one_message_of_each_service(
    ledger: Ledger, outbox: Outbox, service: PeopleServer, url: str
) -> None:
    issue(ledger, outbox)
    with ExitStack() as stack:
        server: Any = service
        if url == "mailto":
            server = stack.enter_context(MailServer())
            url = f"mailto://127.0.0.1:{server.port}?from=v8@one.example&to=you@two.example"
        receiver = open_receiver(url)
        send_messages(ledger.path, PLACE, receiver, HASTY)
        send_messages(ledger.path, PLACE, receiver, HASTY)
    (text,) = server.taken
    assert "3 forecasts" in text
    # Close by the naive forecast of the ledger's made-up values, the range, the volatility of the last bar.
    for series in SERIES:
        assert f"{series}: 113.00, 90 %: 98.500 – 104.25, vol 10900.00 %" in text.splitlines()
    assert (receiver.most_together > 1, outbox._rows("SELECT * FROM messages")) == (True, [])


def test_a_refusal_names_the_service_and_no_token(
    ledger: Ledger,
    outbox: Outbox,
    service: PeopleServer,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, "v8")
    caplog.set_level(logging.INFO)
    service.status = 404
    issue(ledger, outbox)
    receiver = open_receiver(TELEGRAM)
    with pytest.raises(PublishError) as caught:
        send_messages(ledger.path, PLACE, receiver, HASTY)
    printed = "".join(capfd.readouterr()) + caplog.text + str(caught.value)
    assert caught.value.where == "Telegram"
    assert "404" in str(caught.value.got)
    for secret in (TOKEN, TOKEN.partition(":")[2], TELEGRAM):
        assert secret not in printed
        assert secret not in without_secrets(f"at {secret} it")
    assert without_secrets("a volume of 123456789") == "a volume of 123456789"  # a bot's number is no secret
    service.status = 200
    send_messages(ledger.path, PLACE, receiver, HASTY)
    assert len(service.taken) == 1


@pytest.mark.process
def test_killed_between_two_messages_each_arrives_once(
    ledger: Ledger, outbox: Outbox, service: PeopleServer
) -> None:
    for number in range(2):
        issue(ledger, outbox, number)
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from apprise.plugins.telegram import NotifyTelegram\n"
        "from v8.annexes.live.posting import send_messages\n"
        "from v8.annexes.live.posting import open_receiver\n"
        f"NotifyTelegram.notify_url = {service.url + '/bot'!r}\n"
        f"receiver = open_receiver({TELEGRAM!r})\n"
        "receiver.most_together = 3\n"  # a message for each close
        f"send_messages(Path({str(ledger.path)!r}), {PLACE!r}, receiver)\n"
    )
    processes: list[subprocess.Popen[bytes]] = []

    def kill_before_the_second() -> None:
        if service.taken and len(processes) == 1 and processes[0].poll() is None:
            processes[0].kill()
            processes[0].wait()
            raise ConnectionAbortedError  # nobody is there to be answered

    service.before = kill_before_the_second
    for _ in range(2):
        processes.append(subprocess.Popen([sys.executable, "-c", program]))
        processes[-1].wait(120)
    assert [process.returncode for process in processes] == [-9, 0]
    assert [text.count("2023-11-15T00:00:00Z") for text in service.taken] == [1, 0]
    assert [text.count("2023-11-15T00:15:00Z") for text in service.taken] == [0, 1]


def test_a_limit_is_said_when_it_is_passed_and_again_after_it_was_not(ledger: Ledger, outbox: Outbox) -> None:
    wishes = Wishes(
        (Limit.parse("BTCUSDT-15m:range>4.5"), Limit.parse("volatility>20000")), has_forecasts=False
    )
    widths = [TWO_PRICES, TWO_PRICES, PriceRange(99, 100), TWO_PRICES, None]  # 5.75 of 113 are 5.09 %
    for number, price_range in enumerate(widths):
        entry = replace(made_entry(number), price_range=price_range)
        outbox.keep_range(entry)
        ledger.add(entry)
        outbox.collect(ledger, no_model, wishes)
        outbox.collect(ledger, no_model, wishes)
    events = [json.loads(body) for (body,) in outbox._rows("SELECT body FROM messages ORDER BY number")]
    assert [(event["type"], event["data"]["issued_for"][11:16]) for event in events] == [
        ("limit.passed", "00:00"),
        ("limit.passed", "00:45"),
    ]
    assert events[0]["data"]["value"] == pytest.approx(100 * 5.75 / 113)
    title, text = text_of(events[:1], 1_000)
    assert title == "v8: 1 alert"
    assert re.fullmatch("BTCUSDT-15m: range ahead 5.088 % .* 4.5 %", text)


def test_every_kind_of_event_is_a_line_and_alerts_come_first(ledger: Ledger, outbox: Outbox) -> None:
    issue(ledger, outbox)
    outbox.put_late(SERIES[0], FIRST_S, FIRST_S + 900)
    outbox.put_late(SERIES[0], FIRST_S, FIRST_S + 901)
    outbox.put("model.decayed", FIRST_S, {"series": SERIES[1], "why": "it is worse"})
    outbox.put("model.replaced", FIRST_S, {"series": SERIES[2], "now": {"trained_until": "2023-11-01"}})
    outbox.put("forecast.refused", FIRST_S, {"what": "a", "error": "a: api_key=abcdefgh12345 is wrong"})
    events = [json.loads(body) for (body,) in outbox._rows("SELECT body FROM messages ORDER BY number")]
    title, text = text_of(events, 1_000)
    assert title == "v8: 4 alerts, 3 forecasts"
    lines = text.splitlines()
    assert len(lines) == 8  # four alerts, the close, three forecasts
    assert [line.split(":")[0] for line in lines[:3]] == list(SERIES)
    assert "2023-11-15T00:00:00Z" in lines[0] and "it is worse" in lines[1]
    assert "abcdefgh" not in text
    shortened = text_of(events, 300)[1]
    assert len(shortened) < 340 and shortened.splitlines()[-1].endswith("more")


@pytest.mark.parametrize("url", ["tgrum://a/b", "tgram://", "discord://only"])
def test_an_address_of_no_service_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ProfileError) as caught:
        PeopleReceiver(url)
    assert url not in str(caught.value) or url == "tgram://"
    assert caught.value.where == "param:post"


@pytest.mark.parametrize("text", ["volatility", "close>2", "range>-1", "range>2%", "X:Y:range>2"])
def test_a_limit_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ProfileError):
        Limit.parse(text)
