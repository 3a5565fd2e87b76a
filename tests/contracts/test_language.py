"""Every sentence that pages say stands in each catalogue, with the same places for values, and no other."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import pytest

from v8.language import ENGLISH, LANGUAGES, catalogue, language, say

PACKAGE = Path(__file__).parents[2] / "v8"
TERMS: set[str] = {"Series"}
"""Words that are data: what `term` is given."""


def said() -> dict[str, str]:
    """Return every sentence that is said, and where."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        source = file.read_text()
        if "from v8.language import" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(func=ast.Name(id="say"), args=[ast.Constant(value=str(sentence))]):
                    found[sentence] = f"{file.relative_to(PACKAGE)}:{node.lineno}"
                case ast.Call(func=ast.Name(id="say")):
                    raise AssertionError(f"{file}:{node.lineno}: say takes a sentence that is written out")
    return found


def places(sentence: str) -> set[str | None]:
    return {name for _, name, _, _ in string.Formatter().parse(sentence)} - {None}


@pytest.mark.parametrize("name", [name for name in LANGUAGES if name != ENGLISH])
def test_no_sentence_is_missing_or_kept_though_nobody_says_it(name: str) -> None:
    sentences, kept = said(), catalogue(name)
    assert {text: where for text, where in sentences.items() if text not in kept} == {}
    assert sorted(set(kept) - set(sentences) - TERMS) == []
    assert [text for text, told in kept.items() if places(text) != places(told)] == []


def test_a_sentence_keeps_its_values_and_the_language_ends_with_its_block() -> None:
    with language("zh-TW"):
        assert say("Series") == "序列"
    assert say("Series") == "Series"
