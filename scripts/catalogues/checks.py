"""What is wrong with a catalogue, a sentence for each entry."""

from __future__ import annotations

import string
from collections.abc import Iterator
from gettext import GNUTranslations
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import PoFileError

from catalogues.files import read_catalogue


def problems(file: Path, template: Catalog) -> list[str]:
    """List what is wrong with a catalogue and its compiled form.

    Args:
        file: The catalogue, a `.po`; the `.mo` is beside it.
        template: All sentences that are used.
    """
    try:
        catalogue = read_catalogue(file)
    except (OSError, PoFileError) as error:
        return [f"{file.name}: {error}. Mend that line, or call scripts/translations update."]
    sentences = [
        *_missing(catalogue, template),
        *_stale(catalogue, template),
        *_repeated(file, catalogue),
        *(problem for message in catalogue if message.id for problem in _mistakes(message)),
    ]
    if not _is_compiled(file, catalogue):
        sentences.append("v8.mo does not hold what v8.po does: call scripts/translations compile.")
    return sentences


def places(sentence: str) -> set[str]:
    """Return the names of the values that a sentence has places for.

    >>> sorted(places("{low} to {high}"))
    ['high', 'low']
    """
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name is not None}


def _missing(catalogue: Catalog, template: Catalog) -> Iterator[str]:
    for message in template:
        entry = catalogue.get(message.id) if message.id else message
        if message.id and (entry is None or not entry.string):
            files = ", ".join(name for name, _ in message.locations)
            yield f"{message.id!r} of {files} has no translation: call scripts/translations update, add it."


def _stale(catalogue: Catalog, template: Catalog) -> Iterator[str]:
    for message in catalogue:
        if message.id and message.id not in template:
            yield f"{message.id!r} is used nowhere: call scripts/translations update, which removes it."


def _repeated(file: Path, catalogue: Catalog) -> Iterator[str]:
    """Find sentences that stand in the file twice: of two translations one would be lost."""
    num_entries = sum(line.startswith("msgid ") for line in file.read_text("utf-8").splitlines())
    num_sentences = sum(1 for message in catalogue if message.id)
    if num_entries != num_sentences + 1:  # the header is an entry, too
        yield (
            f"{file.name} has {num_entries - 1} entries of {num_sentences} sentences: remove the repeated."
        )


def _mistakes(message: Message) -> Iterator[str]:
    if message.fuzzy:
        yield f"{message.id!r} is marked fuzzy: correct its translation, then remove the mark."
    if not message.string:
        return
    try:
        translated = places(str(message.string))
    except ValueError as error:
        yield f"The translation of {message.id!r} has a brace without its partner: {error}."
        return
    if translated != places(str(message.id)):
        yield (
            f"{message.id!r} has places for {_listed(places(str(message.id)))}; "
            f"got {_listed(translated)} in its translation."
        )


def _listed(names: set[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names)) or "nothing"


def _is_compiled(file: Path, catalogue: Catalog) -> bool:
    compiled = file.with_suffix(".mo")
    if not compiled.is_file():
        return False
    with compiled.open("rb") as stream:
        translations = GNUTranslations(stream)
    return all(
        translations.gettext(str(message.id))
        == (message.id if message.fuzzy else message.string or message.id)
        for message in catalogue
        if message.id
    )
