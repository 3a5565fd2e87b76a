"""Translation of pages: the code holds English sentences, and a gettext catalogue their translations.

    say("Of {n}, {wins} beat it.", n=40, wins=3)      # a sentence with values, which are not translated
    term(against.outcome)                             # a word that is data: an outcome, a task, a stage

The language is a context variable, which is set while a page is drawn (`language`), so it is not passed as an
argument. Messages on a terminal, JSON, CSV and errors are always English. `scripts/translations` extracts the
sentences into `v8/base/locale`, and compiles what translators write there into the files that are read here.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from gettext import GNUTranslations, NullTranslations
from importlib.resources import files
from typing import Final, Literal, get_args

ENGLISH: Final = "en"
Language = Literal["en", "zh-TW"]
LANGUAGES: Final[tuple[Language, ...]] = get_args(Language)

_CHOSEN: Final = ContextVar("language", default=ENGLISH)


@contextmanager
def language(name: str | None = None) -> Iterator[None]:
    """Use one of `LANGUAGES` inside the block.

    Args:
        name: The language; None for the one that the environment variable `V8_LANG` names, in the syntax of
            the header `Accept-Language`.
    """
    before = _CHOSEN.set(name or preferred(os.environ.get("V8_LANG", "")))
    try:
        yield
    finally:
        _CHOSEN.reset(before)


def chosen() -> str:
    """Return the current language, in the syntax of HTML's `lang`."""
    return _CHOSEN.get()


def say(sentence: str, **values: object) -> str:
    """Return a sentence in the current language, with values in place of `{name}`.

    The sentence must be a literal in the code, so that a test finds sentences without a translation.
    """
    return term(sentence).format(**values)


def term(word: str) -> str:
    """Return a word in the current language; without a translation the word itself."""
    return catalogue(chosen()).gettext(word) if word else ""  # an empty word would get gettext's header


@cache
def catalogue(name: str) -> NullTranslations:
    """Return the translations of a language.

    Those of English leave every sentence as it is, and so does a catalogue that is not there or not readable.
    """
    if name == ENGLISH:
        return NullTranslations()
    compiled = files("v8.base") / "locale" / name.replace("-", "_") / "LC_MESSAGES" / "v8.mo"
    try:
        with compiled.open("rb") as stream:
            return GNUTranslations(stream)
    except (OSError, ValueError, LookupError, struct.error):
        return NullTranslations()


def preferred(accepted: str) -> str:
    """Return the first available language of a browser's header `Accept-Language`, or English.

    >>> preferred("zh-Hant-TW,zh;q=0.9,en;q=0.8"), preferred("de, en"), preferred("")
    ('zh-TW', 'en', 'en')
    """
    for name in accepted.lower().split(","):
        code = name.strip().partition("-")[0].partition(";")[0]
        for available in LANGUAGES:
            if code == available[:2]:
                return available
    return ENGLISH
