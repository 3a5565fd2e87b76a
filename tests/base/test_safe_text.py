"""Texts that are safe for a terminal, a spreadsheet and Markdown."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as some

from v8.base import wording
from v8.base.errors import shown
from v8.base.wording import as_code, for_file, for_spreadsheet, for_terminal, keep_secret, without_secrets

SECRET = "S3cr3tOf-Nobody_0123456789abcdefABCDEF"


@given(some.text())
def test_a_terminal_gets_one_printable_line_and_printable_text_stays(text: str) -> None:
    line = for_terminal(text)
    assert line.isprintable()
    assert for_terminal(line) == line
    if text.isprintable() and without_secrets(text) == text:
        assert line == text


@pytest.mark.parametrize(
    "text", ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", " =1", "＝1", "-2+3+cmd|' /C calc'!A0", "-"]
)
def test_a_text_that_begins_like_a_formula_is_quoted(text: str) -> None:
    assert for_spreadsheet(text).startswith("'")
    assert for_spreadsheet(for_spreadsheet(text)) == for_spreadsheet(text)


@pytest.mark.parametrize("text", ["-0.25", "+1e-5", "-inf", "12", "BTCUSDT-15m", "–", "", "a=b"])
def test_numbers_and_other_texts_stay(text: str) -> None:
    assert for_spreadsheet(text) == text


@given(some.text(min_size=1))
def test_no_cell_begins_like_a_formula_unless_it_is_a_number(text: str) -> None:
    stream = io.StringIO()
    csv.writer(stream).writerow([for_spreadsheet(text), 1])
    (cell, _), *others = csv.reader(io.StringIO(stream.getvalue()))
    assert not others
    if cell.lstrip().startswith(("=", "+", "-", "@")):
        float(cell)


@given(some.text("a` \n", min_size=1))
def test_code_in_markdown_ends_where_the_text_ends(text: str) -> None:
    code = as_code(text)
    fence = code[: len(code) - len(code.lstrip("`"))]
    assert code.endswith(fence)
    within = code[len(fence) : -len(fence)]
    assert fence not in within.replace("`" * (len(fence) + 1), "")
    assert "\n" not in code


@pytest.mark.parametrize(
    "text",
    [
        "http://me:{}@host/x",
        "http://me:a/{}@host/x",
        "postgresql://me:{}@host/db",
        "API request to http://me:{}@host/api failed with too many 503 error responses",
        "Max retries exceeded with url: /api/candles?page=2&access_token={} (Caused by",
        "https://host/x?token={}",
        "https://host/x?sig={}",
        "https://host/x?auth={}",
        "https://host/x?X-Amz-Credential={}&X-Amz-Signature={}",
        "https%3A%2F%2Fhost%3Ftoken%3D{}",
        "binance GET https://host/api/v3/account?timestamp=1&signature={} 401",
        '{{"apiKey":"{}","secret": "{}"}}',
        "{{'apiKey': '{}', 'privateKey': '{}', 'password': '{}'}}",
        '{{\\"secret\\": \\"{}\\"}}',
        "'apiKey': '{}...",  # a text that was cut
        "password={}",
        "Exchange(token='{}')",
        "api_key = '{}'",
        "password: {}",
        "wandb --api-key {}",
        "Authorization: Bearer {}",
        "{{'Authorization': 'Basic {}'}}",
        "sent Bearer {} to it",
        "Cookie: session={}",
        "Set-Cookie: lang=en; session={}; Path=/",
        "red \x1b[31mhf_{}",
        "'X-MBX-APIKEY': '{}'",
        "OK-ACCESS-PASSPHRASE: {}",
        "no user has hf_{}",
        "ghp_{} is not valid",
        "eyJhbGciOiJIUzI1NiJ9.{}.abc",
        "https://api.telegram.org/bot123456789:{}/sendMessage",
        "https://discord.com/api/webhooks/123/{}",
        "https://hooks.slack.com/services/T0/B0/{}",
        "https://you.webhook.office.com/webhookb2/1/IncomingWebhook/{}",
        "https://chat.example/hooks/{}",
    ],
)
def test_no_message_and_no_file_holds_a_secret_of_an_address_a_header_or_an_option(text: str) -> None:
    text = text.replace("{}", SECRET).replace("{{", "{").replace("}}", "}")
    assert SECRET in text
    for cut in (without_secrets(text), for_terminal(text), for_file(text), shown(text, 300)):
        assert SECRET not in cut
        assert "***" in cut
        assert without_secrets(cut) == cut


@pytest.mark.parametrize(
    "text",
    [
        "run.json, key series.status: must be one of done, failed; got 'x'",
        "HF_TOKEN: must be set; got none",
        "Send it in the header Authorization: Bearer; whoever runs the server has it",
        "https://host:8080/a@b and you/models@0123456",
        "sorted(rows, key=lambda row: row.time)",
        "--key-of-profile training.epochs=3, got the token of a sentence",
        "python -c 'import secrets; print(secrets.token_urlsafe())'",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text


def test_a_text_that_is_known_to_be_secret_is_cut_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wording, "_kept", {})
    keep_secret("my own")
    keep_secret("short")  # of five letters: it would be cut out of plain words
    assert shown("ValueError: my own is too short") == "ValueError: *** is too short"


def test_a_text_of_a_file_keeps_its_lines_and_no_control_character() -> None:
    assert for_file("a\n\tb\x1b]0;c\x07\r\n\udc80") == "a\n\tb\\x1b]0;c\\x07\\r\n\\udc80"


@pytest.mark.parametrize(
    "part", ["http://", "?token", "key='", "://a:", "_token", "x-key-", "a:b@", "'secret': "]
)
def test_a_long_text_is_read_in_time_that_grows_with_its_length(part: str) -> None:
    assert len(without_secrets(part * 20_000)) <= 8 * 20_000 * len(part)
