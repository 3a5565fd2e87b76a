"""The language of pages: sentences stand in English in the code, a catalogue has them in another language.

    say("Of {n}, {wins} beat it.", n=40, wins=3)      # a sentence, whose values stay as they are
    term(against.outcome)                             # a word that is data: an outcome, a task, a stage

Which language holds is chosen around the drawing of a page (`language`), so nothing hands it on. What is
printed on a terminal, written as JSON or CSV, and told of an error is English.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Final, Literal, get_args

import yaml

from v8.storage import packaged

ENGLISH: Final = "en"
Language = Literal["en", "zh-TW"]
LANGUAGES: Final[tuple[Language, ...]] = get_args(Language)

_CHOSEN: Final = ContextVar("language", default=ENGLISH)


@contextmanager
def language(name: str | None = None) -> Iterator[None]:
    """Write what is said inside in one of `LANGUAGES`, by default that of files: `V8_LANG` names it.

    It is written as a browser writes it.
    """
    before = _CHOSEN.set(name or preferred(os.environ.get("V8_LANG", "")))
    try:
        yield
    finally:
        _CHOSEN.reset(before)


def chosen() -> str:
    """Return the language that holds, as HTML's `lang` has it."""
    return _CHOSEN.get()


def say(sentence: str, **values: object) -> str:
    """Return a sentence in the language that holds, with values in place of `{name}`.

    The sentence is written out where it is said, so that a test finds those that a catalogue lacks.
    """
    return term(sentence).format(**values)


def term(word: str) -> str:
    """Return a word in the language that holds, as it is where the catalogue has none."""
    return catalogue(chosen()).get(word, word)


@cache
def catalogue(name: str) -> Mapping[str, str]:
    """Return the sentences of a language by their English; of English itself there are none."""
    return {} if name == ENGLISH else yaml.safe_load(packaged("v8", f"{name}.yaml"))


def preferred(accepted: str) -> str:
    """Return the language that a browser's `Accept-Language` names first among those there are.

    >>> preferred("zh-Hant-TW,zh;q=0.9,en;q=0.8"), preferred("de, en"), preferred("")
    ('zh-TW', 'en', 'en')
    """
    for name in accepted.lower().split(","):
        for known in LANGUAGES:
            if name.strip().partition("-")[0].partition(";")[0] == known[:2]:
                return known
    return ENGLISH
