"""Texts that are safe for a terminal, a spreadsheet and Markdown."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as some

from v8.safe_text import as_code, for_spreadsheet, for_terminal


@given(some.text())
def test_a_terminal_gets_one_printable_line_and_printable_text_stays(text: str) -> None:
    line = for_terminal(text)
    assert line.isprintable()
    assert for_terminal(line) == line
    if text.isprintable():
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
