"""What somebody else wrote is shown on one bounded line, without control characters and passwords."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.errors import MAX_MESSAGE, ArtifactError, V8Error
from v8.redaction import shown


@given(st.text(), st.integers(10, 300))
def test_whatever_is_shown_is_one_bounded_printable_line(text: str, most: int) -> None:
    line = shown(text, most)
    assert line.isprintable()
    assert len(line) <= most


@pytest.mark.parametrize(
    "address",
    [
        "http://me:secret@host/data",
        "https://secret@host",
        "see ftp://me:p@secret@host:8/x, then go on",
        "http://me:secret@host/" + "x" * 50_000,
    ],
)
def test_a_password_in_an_address_is_never_shown(address: str) -> None:
    assert "secret" not in shown(address, 400)


def test_an_address_without_a_password_stays_as_it_is() -> None:
    assert shown("https://host/a/user@b") == "https://host/a/user@b"


@given(st.text(), st.text(), st.text(), st.text())
def test_an_error_is_one_bounded_line_whatever_it_quotes(where: str, rule: str, got: str, fix: str) -> None:
    sentence = str(V8Error(where=where * 40, rule=rule * 40, got=got * 400, fix=fix * 40))
    assert len(sentence) <= MAX_MESSAGE
    assert sentence.isprintable()


def test_a_long_error_keeps_the_begin_and_the_end_of_each_part() -> None:
    path = "/home/me/" + "deep/" * 200 + "run.json"
    sentence = str(ArtifactError(where=path, rule="must be whole", got="x" * 5_000, fix="Restore it"))
    assert sentence.startswith("/home/me/deep/")
    assert "run.json: must be whole; got xxx" in sentence
    assert sentence.endswith("xxx. Restore it.")
