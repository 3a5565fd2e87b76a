"""Markup: text is escaped, markup stays, and there is no third way."""

from __future__ import annotations

import html

from hypothesis import given
from hypothesis import strategies as st

from v8.base.wording import Table
from v8.publish.report.markup import Html, element, facts, join, shown_table


@given(text=st.text())
def test_text_reads_the_same_inside_an_element_and_makes_no_markup(text: str) -> None:
    made = element("p", text)
    inner = made.removeprefix("<p>").removesuffix("</p>")
    assert html.unescape(inner) == html.unescape(html.escape(text))
    assert not set("<>\"'") & set(inner)


@given(text=st.text())
def test_an_attribute_cannot_be_left_by_its_value(text: str) -> None:
    made = element("p", class_=text)
    assert made.count('"') == 2
    assert made.endswith('"></p>')


def test_markup_is_not_escaped_again() -> None:
    assert element("p", element("b", "&")) == "<p><b>&amp;</b></p>"
    assert join([Html("<br>"), "<br>"]) == "<br>&lt;br&gt;"


def test_tables_and_facts_escape_every_cell() -> None:
    made = shown_table(Table(["<a>"], [["<b>", "<c>"]], "<d>")) + facts([("<e>", "<f>")])
    for letter in "abcdef":
        assert f"&lt;{letter}&gt;" in made
