"""Keep the translations of v8's pages: `scripts/translations` installs what it needs and calls this.

scripts/translations extract [FILE]    write all English sentences, a template for a program that translates
scripts/translations update            add new sentences to the catalogues, remove those that are used nowhere
scripts/translations check             name what is missing, stale, fuzzy, or lacks a value of the English
scripts/translations compile           write the .mo files, which v8 reads
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from babel.messages.catalog import Catalog

from catalogues.checks import problems
from catalogues.extraction import REPOSITORY, template
from catalogues.files import (
    TEMPLATE,
    TRANSLATED,
    compile_catalogue,
    po_file,
    update_catalogue,
    write_catalogue,
)


def main(words: Sequence[str] | None = None) -> None:
    """Do what the command line asks for; exit status 1 where a check found something."""
    parser = argparse.ArgumentParser(
        prog="scripts/translations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("extract", "update", "check", "compile"))
    parser.add_argument("file", nargs="?", type=Path, help=f"for extract; default {named(TEMPLATE)}")
    arguments = parser.parse_args(words)
    if arguments.file and arguments.command != "extract":
        parser.error(f"only extract takes a file; got {arguments.file}.")
    if arguments.command == "compile":
        for language in TRANSLATED:
            print(f"wrote {named(compile_catalogue(po_file(language)))}")
        return
    try:
        sentences = template()
    except ValueError as error:
        sys.exit(f"error: {error}")
    if arguments.command == "extract":
        extract(sentences, arguments.file or TEMPLATE)
    elif arguments.command == "update":
        update(sentences)
    else:
        check(sentences)


def named(file: Path) -> str:
    """Write a path from the root of the repository, if it is below it."""
    return str(file.relative_to(REPOSITORY) if file.is_relative_to(REPOSITORY) else file)


def extract(sentences: Catalog, file: Path) -> None:
    """Write the template."""
    write_catalogue(file, sentences)
    print(f"wrote {len(sentences)} sentences to {named(file)}")


def update(sentences: Catalog) -> None:
    """Bring every catalogue up to date, and list what it lost and lacks."""
    for language in TRANSLATED:
        catalogue = update_catalogue(po_file(language), sentences)
        for message in catalogue.obsolete.values():
            print(f"removed, used nowhere: {message.id!r}, {message.string!r}")
        for message in catalogue:
            if message.id and (message.fuzzy or not message.string):
                print(f"to translate: {message.id!r}")
        print(f"wrote {named(po_file(language))} and its .mo")


def check(sentences: Catalog) -> None:
    """Print what is wrong with the catalogues."""
    mistakes = [
        f"error: {named(po_file(language))}: {problem}"
        for language in TRANSLATED
        for problem in problems(po_file(language), sentences)
    ]
    if mistakes:
        sys.exit("\n".join(mistakes))


if __name__ == "__main__":
    main()
