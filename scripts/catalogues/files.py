"""Catalogues as files in `v8/base/locale/LANGUAGE/LC_MESSAGES`: `v8.po` for translators, `v8.mo` for v8."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from catalogues.extraction import REPOSITORY, blank_catalogue
from v8.base.storage import write_bytes
from v8.base.wording import ENGLISH, LANGUAGES

LOCALES: Final = REPOSITORY / "v8" / "base" / "locale"
TRANSLATED: Final = tuple(name for name in LANGUAGES if name != ENGLISH)
TEMPLATE: Final = REPOSITORY / "build" / "v8.pot"


def po_file(language: str) -> Path:
    """Return where the catalogue of a language is, such as `zh-TW`."""
    return LOCALES / language.replace("-", "_") / "LC_MESSAGES" / "v8.po"


def read_catalogue(file: Path) -> Catalog:
    """Read a catalogue.

    Raises:
        babel.messages.pofile.PoFileError: If a line of it is no gettext.
    """
    with file.open("rb") as stream:
        return read_po(stream, locale=file.parents[1].name, charset="utf-8", abort_invalid=True)


def update_catalogue(file: Path, template: Catalog) -> Catalog:
    """Write a catalogue with exactly the sentences of a template, and its compiled form.

    A sentence that was changed gets the translation of the nearest old one, marked fuzzy; no page shows it
    until the mark is removed. What is used nowhere leaves the file, and is in `obsolete` of the result.
    """
    catalogue = read_catalogue(file) if file.is_file() else blank_catalogue(file.parents[1].name)
    catalogue.update(template, update_creation_date=False)
    write_catalogue(file, catalogue)
    compile_catalogue(file)
    return catalogue


def write_catalogue(file: Path, catalogue: Catalog) -> None:
    """Write a catalogue, one line a sentence and one a translation, so that both can be searched for."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(file, po_text(catalogue))


def po_text(catalogue: Catalog) -> bytes:
    """Return a catalogue as a file; references have no line numbers, which every change would move."""
    for message in catalogue:
        message.flags.discard("python-format")  # "1.3 % lower" is no place for a value
    stream = io.BytesIO()
    write_po(stream, catalogue, width=0, ignore_obsolete=True, include_previous=True, include_lineno=False)
    return stream.getvalue().rstrip(b"\n") + b"\n"


def compile_catalogue(file: Path) -> Path:
    """Write the `.mo` of a catalogue beside it, without what is marked fuzzy; return where it is."""
    stream = io.BytesIO()
    write_mo(stream, read_catalogue(file))
    compiled = file.with_suffix(".mo")
    write_bytes(compiled, stream.getvalue())
    return compiled
