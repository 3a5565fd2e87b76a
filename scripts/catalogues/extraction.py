"""Find every English sentence and word that pages translate, with the files that it stands in."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from babel.messages.catalog import Catalog
from babel.messages.extract import extract

from catalogues.words import COMPOSED, REGISTERED, WRITTEN, Words
from v8.base.version import VERSION
from v8.base.wording import spaced

REPOSITORY: Final = Path(__file__).parents[2]
CALLS: Final = ("say", "term")
TRANSLATORS: Final = "Translators:"
"""Beginning of a comment before a call that says to translators what the sentence alone does not."""

_HEADER: Final = """\
# What the pages of v8 say, by the English sentence. How to translate: docs/en/how-to/translate.md.
# This file is distributed under the licence of v8."""
_MAINTAINERS: Final = "the v8 maintainers"

_TRANSLATING: Final = re.compile(
    r"^\s*from v8\.base\.wording import (?:\([^)]*|.*)\b(?:say|term)\b|^def say\(", re.MULTILINE
)
"""Stands in a module that translates: other functions are called `say`, too."""
_TEMPLATE_SENTENCE: Final = re.compile(r"\[\[(.+?)\]\]")  # as `v8.publish.report.markup.filled` finds them

Extracted = tuple[int, str | None, str | tuple[str, ...], list[str]]
"""What Babel wants of an extractor: line, name of the function, sentence, comments."""


def template() -> Catalog:
    """Collect the sentences of `v8/`, without translations, in the order of the files that they stand in.

    Raises:
        ValueError: If `say` is called with a sentence that is not written out, or a word of
            `catalogues.words` is no longer in its file.
    """
    check_words()
    words_by_file: dict[str, list[Words]] = {}
    for words in (*REGISTERED, *COMPOSED, *WRITTEN):
        words_by_file.setdefault(words.file, []).append(words)
    catalog = blank_catalogue()
    files = {*sentence_files(), *(REPOSITORY / name for name in words_by_file)}
    for file in sorted(files):
        name = file.relative_to(REPOSITORY).as_posix()
        for sentence, comments in sentences(file):
            catalog.add(sentence, locations=[(name, 0)], auto_comments=comments)
        for words in words_by_file.get(name, ()):
            for word in words.words:
                catalog.add(word, locations=[(name, 0)], auto_comments=[words.note])
    return catalog


def blank_catalogue(locale: str | None = None) -> Catalog:
    """Return a catalogue without sentences, of a locale such as `zh_TW`; of none, for a template."""
    return Catalog(
        locale=locale,
        project="v8",
        version=VERSION,
        charset="utf-8",
        header_comment=_HEADER,
        msgid_bugs_address="see CONTRIBUTING.md",
        last_translator=_MAINTAINERS,
        language_team=_MAINTAINERS,
        revision_date=datetime.now(UTC),
        fuzzy=False,
    )


def sentence_files() -> Iterator[Path]:
    """List the modules that translate, and all templates."""
    yield from (REPOSITORY / "v8").rglob("*.html")
    for file in (REPOSITORY / "v8").rglob("*.py"):
        if _TRANSLATING.search(file.read_text("utf-8")):
            yield file


def sentences(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the sentences of a module or a template, each with its comments for translators."""
    content = file.read_bytes()
    if file.suffix == ".html":
        extractor: Callable[..., Any] = extract_template  # Babel's own type has another order
    elif _TRANSLATING.search(content.decode("utf-8")):
        extractor = extract_module
    else:
        return
    options = {"file": file.relative_to(REPOSITORY).as_posix()}
    for _, sentence, comments, _ in extract(
        extractor, io.BytesIO(content), dict.fromkeys(CALLS), (TRANSLATORS,), options, strip_comment_tags=True
    ):
        yield str(sentence), [" ".join(comments)] if comments else []


def extract_module(
    file: IO[bytes], keywords: Iterable[str], comment_tags: Iterable[str], options: Mapping[str, Any]
) -> Iterator[Extracted]:
    """Find calls of `say` and `term` with a sentence; the arguments are those of every extractor of Babel.

    Raises:
        ValueError: If `say` is called with anything else.
    """
    source = file.read().decode("utf-8")
    lines = source.splitlines()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        match call:
            case ast.Call(func=ast.Name(id="say" | "term"), args=[ast.Constant(value=str(sentence))]):
                yield call.lineno, None, sentence, _comments_above(lines, call.lineno, tuple(comment_tags))
            case ast.Call(func=ast.Name(id="say")):
                raise ValueError(
                    f"{options['file']}:{call.lineno}: say takes a sentence that is written out; "
                    f"got {ast.unparse(call)}. Write the sentence as a literal, and its values as keywords."
                )


def extract_template(
    file: IO[bytes], keywords: Iterable[str], comment_tags: Iterable[str], options: Mapping[str, Any]
) -> Iterator[Extracted]:
    """Find `[[sentences]]` in markup; the arguments are those of every extractor of Babel."""
    for number, line in enumerate(file.read().decode("utf-8").splitlines(), start=1):
        for sentence in _TEMPLATE_SENTENCE.findall(line):
            yield number, None, sentence, []


def check_words() -> None:
    """Raise `ValueError` where a file of `catalogues.words` is gone, or a word is no longer in its file."""
    absent = [words.file for words in (*REGISTERED, *COMPOSED) if not (REPOSITORY / words.file).is_file()]
    for words in WRITTEN:
        file = REPOSITORY / words.file
        literals = _literals(file) if file.is_file() else set()
        absent += [f"{word!r} of {words.file}" for word in words.words if word not in literals]
    if absent:
        names = ", ".join(dict.fromkeys(absent))
        raise ValueError(
            f"scripts/catalogues/words.py names what is not there any more: {names}. "
            "Remove it, or name the file that holds it now."
        )


def _literals(file: Path) -> set[str]:
    """Return the texts in a module, also as `spaced` writes them."""
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts | {spaced(text) for text in texts}


def _comments_above(lines: list[str], line: int, tags: tuple[str, ...]) -> list[str]:
    """Return the comment right above a line, if it is for translators; lines count from 1."""
    comments: list[str] = []
    for text in reversed(lines[: line - 1]):
        if not text.strip().startswith("#"):
            break
        comments.insert(0, text.strip().removeprefix("#").strip())
    return comments if comments and comments[0].startswith(tags) else []
