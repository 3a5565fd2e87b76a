"""What is sent: signed, in order, until it is taken, and nothing of it twice."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from ledger_entries import FIRST_S, made_entry
from webhooks import SECRET, WebhookReceiver

from v8.annexes.live import posting
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.posting import SECRET_VARIABLE, Outbox, Receiver, keep_sending, send_messages
from v8.base.errors import ArtifactError, ProfileError, PublishError
from v8.base.http_client import RetryPolicy
from v8.model.baselines.paths import PriceRange

PLACE = "./tiny"
HASTY = RetryPolicy(num_tries=3, sleep=lambda seconds: None)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebhookReceiver]:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    with WebhookReceiver() as opened:
        yield opened


@dataclass
class Post:
    """A ledger, whose news wait in an outbox for a receiver."""

    ledger: Ledger
    outbox: Outbox
    receiver: WebhookReceiver

    def issue(self, *numbers: int) -> None:
        """Forecast closes into the ledger, by number, and put all that is new there into the outbox."""
        for number in numbers:
            self.ledger.add(made_entry(number))
        self.outbox.collect(self.ledger, no_model)

    def send(self, place: str = PLACE) -> None:
        """Send what waits."""
        send_messages(self.ledger.path, place, Receiver(self.receiver.url), HASTY)


@pytest.fixture
def post(ledger: Ledger, receiver: WebhookReceiver) -> Iterator[Post]:
    with Outbox(ledger.path, PLACE) as outbox:
        outbox.collect(ledger, no_model)
        yield Post(ledger, outbox, receiver)


def no_model(series: str) -> Any:
    """No model is there: it is told of elsewhere."""
    raise ArtifactError(where=series, rule="must be there", got="none", fix="Train it")


def test_a_message_says_what_everybody_forecast_and_is_signed(post: Post) -> None:
    post.issue(0)
    post.send()
    ((number, told),) = post.receiver.taken  # which it takes only signed
    assert re.fullmatch("msg_[0-9a-f]{32}", number)
    assert (told["type"], told["timestamp"]) == ("forecast.issued", "2023-11-15T00:00:05Z")
    data = told["data"]
    assert (data["place"], data["series"], data["issued_for"]) == (
        PLACE,
        "BTCUSDT-15m",
        "2023-11-15T00:00:00Z",
    )
    assert data["open_time"] == ["2023-11-15T00:00:00Z", "2023-11-15T00:15:00Z"]
    assert data["model"]["model_sha256"] == made_entry().issuer.model_sha256
    # Two bars of four prices, bar by bar, then two of volatility: 100, 101, ... for the model, then naive.
    assert [*data["forecasts"]] == ["open", "high", "low", "close", "volatility"]
    assert [*data["forecasts"]["close"]] == ["model", "naive", "har"]
    assert data["forecasts"]["close"]["model"] == [103.0, 107.0]
    assert data["forecasts"]["volatility"]["naive"] == [118.0, 119.0]


def test_a_receiver_that_is_down_gets_everything_once_and_in_order_when_it_is_back(post: Post) -> None:
    post.receiver.status = 503
    for number in range(10):
        post.issue(number)
        with pytest.raises(PublishError, match=r"2xx.*got status 503") as error:
            post.send()
        assert str(error.value).startswith(f"{post.receiver.url.split('/')[2]}: ") and "key=" not in str(
            error.value
        )
    assert (post.receiver.num_asked, post.receiver.taken) == (30, [])
    post.receiver.status = 200
    post.send()
    assert [close for _, close in post.receiver.forecasts] == [
        f"2023-11-15T{quarter // 4:02}:{quarter % 4 * 15:02}:00Z" for quarter in range(10)
    ]
    assert len({number for number, _ in post.receiver.taken}) == 10
    post.send()
    assert len(post.receiver.taken) == 10


def test_a_message_says_where_the_price_stays_if_that_is_forecast(post: Post) -> None:
    with_range = replace(made_entry(0), price_range=PriceRange(98.5, 104.25))
    post.outbox.keep_range(with_range)
    post.outbox.keep_range(made_entry(1))  # a model without quantiles
    post.issue(0, 1)
    post.send()
    first, second = (message["data"] for _, message in post.receiver.taken)
    assert first["range"] == {"share": 0.9, "low": 98.5, "high": 104.25}
    assert "range" not in second
    assert post.outbox._rows("SELECT * FROM ranges") == []


def test_what_stood_in_the_ledger_before_is_no_news(ledger: Ledger, receiver: WebhookReceiver) -> None:
    ledger.add(made_entry(0))
    for number in (1, 2):
        with Outbox(ledger.path, PLACE) as outbox:
            outbox.collect(ledger, no_model)
            ledger.add(made_entry(number))
            outbox.collect(ledger, no_model)
    send_messages(ledger.path, PLACE, Receiver(receiver.url), HASTY)
    assert [close for _, close in receiver.forecasts] == ["2023-11-15T00:15:00Z", "2023-11-15T00:30:00Z"]


def test_a_process_that_is_killed_between_ledger_and_outbox_loses_and_doubles_nothing(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        post.ledger.add(made_entry(number))
    real = Outbox.put
    calls = []

    def dies(self: Outbox, *given: Any) -> None:
        calls.append(given)
        real(self, *given)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Outbox, "put", dies)
    with pytest.raises(KeyboardInterrupt):
        post.outbox.collect(post.ledger, no_model)
    post.outbox.close()
    with Outbox(post.ledger.path, PLACE) as again:
        again.collect(post.ledger, no_model)
        again.collect(post.ledger, no_model)
    post.send()
    assert len(post.receiver.forecasts) == len({*post.receiver.forecasts}) == 3


def test_who_dies_before_the_answer_is_noted_sends_the_same_id_again(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    post.issue(0)
    real = Receiver.deliver

    def dies(self: Receiver, *given: Any) -> None:
        real(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Receiver, "deliver", dies)
        with pytest.raises(KeyboardInterrupt):
            post.send()
    post.send()
    assert len(post.receiver.taken) == 2 and post.receiver.taken[0] == post.receiver.taken[1]


def test_late_forecasts_and_other_models_are_told(post: Post) -> None:
    other = replace(made_entry().issuer, model_sha256="4" * 64, trained_until_s=FIRST_S)
    post.ledger.add(made_entry(0))
    post.ledger.add(made_entry(1, delay_s=900))
    post.ledger.add(made_entry(2, other))
    post.issue()
    post.send()
    assert post.receiver.kinds == ["forecast.issued", "forecast.late", "model.replaced", "forecast.issued"]
    data = post.receiver.taken[2][1]["data"]
    assert (data["series"], data["before"]) == ("BTCUSDT-15m", "0" * 64)
    assert (data["now"]["model_sha256"], data["now"]["trained_until"]) == ("4" * 64, "2023-11-15T00:00:00Z")


@pytest.mark.parametrize(
    "url",
    [
        "you.example",
        "ftp://you.example",
        "http://me:pass@you.example/",
        "http://",
        "http://a b",
        "https://you.example/hooks?key=pass word",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    with pytest.raises(ProfileError, match="--post: is http://HOST/PATH or https://HOST/PATH") as error:
        Receiver(url)
    assert "pass" not in str(error.value)


@pytest.mark.parametrize(
    "secret",
    [None, "", "short", "whsec_short", f"whsec_{'=' * 40}", "whsec_" + "A" * 33, f"whsec_{'A' * 31}="],
)
def test_a_secret_that_is_none_is_refused_and_not_shown(
    secret: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    if secret is not None:
        monkeypatch.setenv(SECRET_VARIABLE, secret)
    with pytest.raises(ProfileError, match="at least 24 bytes in base64") as error:
        Receiver("https://you.example/hooks")
    assert not secret or secret not in str(error.value)


def test_a_secret_as_the_advice_makes_it_is_taken_and_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (24, 32, 64):
        monkeypatch.setenv(SECRET_VARIABLE, "whsec_" + b64encode(bytes(range(size))).decode())
        receiver = Receiver("https://you.example:8443/hooks/in-the-path")
        assert receiver._secret == bytes(range(size))
        assert receiver.host == "you.example:8443"
        assert "in-the-path" not in repr(receiver) and "whsec" not in repr(receiver)


def test_a_file_that_is_no_outbox_is_refused_and_left_alone(ledger: Ledger) -> None:
    path = ledger.path.with_name(f"{ledger.path.name}.outbox")
    path.write_bytes(b"something else" * 100)
    with pytest.raises(Exception, match=r"ledger\.sqlite\.outbox") as error:
        Outbox(ledger.path, PLACE)
    assert error.value.got == "file is not a database"
    assert path.read_bytes() == b"something else" * 100


def test_neither_secret_nor_address_is_written(post: Post) -> None:
    post.issue(0)
    post.receiver.status = 400
    with pytest.raises(PublishError):
        post.send()
    written = b"".join(file.read_bytes() for file in post.outbox.path.parent.iterdir())
    assert b"naive" in written
    assert b"in-the-address" not in written and SECRET.encode() not in written


def test_a_receiver_that_sends_messages_elsewhere_is_not_followed(post: Post) -> None:
    post.issue(0)
    post.receiver.status = 307
    with pytest.raises(PublishError, match="got status 307"):
        post.send()
    assert post.receiver.asked == {"/hooks/v8?key=in-the-address"}


def test_a_model_that_decayed_is_told_once(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """What decay is, `tests/annexes/live/promotion/test_renewal.py` tells; here it is heard of."""
    asked: list[Any] = []

    def detect_decay(evaluation: Any, losses: Any, best_baselines: Any) -> tuple[bool, str]:
        asked.append(losses)
        return True, "volatility 2.1 times naive, 0.7 on its test span"

    monkeypatch.setattr(posting, "detect_decay", detect_decay)
    monkeypatch.setattr(posting, "live_losses", lambda *given: np.ones(1))
    about = type(
        "About", (), {"model_sha256": "0" * 64, "is_evaluated": True, "evaluation": None, "verdicts": {}}
    )
    model: Any = type("Model", (), {"series": "BTCUSDT-15m", "about": about})
    for number in range(-1, 193, 96):
        post.ledger.add(made_entry(number))
        post.ledger.add(made_entry(number + 1))
        post.outbox.collect(post.ledger, lambda series: model)
    post.send()
    assert len(asked) == 3  # once a day
    assert post.receiver.kinds == [*["forecast.issued"] * 2, "model.decayed", *["forecast.issued"] * 4]
    told = post.receiver.taken[2][1]
    assert (told["timestamp"], told["data"]["series"]) == ("2023-11-15T00:00:05Z", "BTCUSDT-15m")
    assert told["data"]["why"].startswith("volatility 2.1 times naive")


def test_trouble_is_told_once_until_it_is_over(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    messages: list[str] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        post.receiver.status = {2: 503, 3: 200, 5: 503, 7: 200}.get(len(pauses), post.receiver.status)
        if len(pauses) in (2, 5):
            post.issue(len(pauses))
        if len(pauses) == 9:
            raise OverError

    monkeypatch.setattr(posting, "POST_RETRY_POLICY", HASTY)
    monkeypatch.setattr(posting.time, "sleep", sleep)
    monkeypatch.setattr(send_messages, "__defaults__", (HASTY,))
    with pytest.raises(OverError):
        keep_sending(post.ledger.path, PLACE, Receiver(post.receiver.url), messages.append)
    assert pauses == [1.0, 1.0, 30.0, 1.0, 1.0, 30.0, 30.0, 1.0, 1.0]
    assert len(post.receiver.forecasts) == 2
    host = post.receiver.url.split("/")[2]
    assert len(messages) == 2 and messages[0] == messages[1]
    assert re.match(f"{host}: .*; got status 503. .*{re.escape(str(post.outbox.path))}", messages[0])


class OverError(Exception):
    """The process ends."""
