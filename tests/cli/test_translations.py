"""`scripts/translations`: what it extracts, what it changes in a catalogue, and what it refuses."""

from __future__ import annotations

from gettext import GNUTranslations
from io import BytesIO
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po
from catalogues import extraction
from catalogues.__main__ import main
from catalogues.checks import problems
from catalogues.extraction import TRANSLATORS, blank_catalogue, extract_module, extract_template
from catalogues.files import compile_catalogue, update_catalogue
from catalogues.words import Words

MODULE = """
from v8.base.wording import say, term

def page(name):
    # Translators: the name is that of a profile,
    # such as frontier.
    title = say("Run of {name}", name=f"{name}!")
    # A comment for programmers.
    return title + term("median") + term(name) + say(
        "Two "
        "parts."
    )
"""


def sentences_of(*texts: str) -> Catalog:
    sentences = blank_catalogue()
    for text in texts:
        sentences.add(text, locations=[("v8/page.py", 0)])
    return sentences


def both() -> Catalog:
    return sentences_of("median", "{low} to {high}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A catalogue of two sentences, both translated and compiled."""
    file = tmp_path / "zh_TW" / "LC_MESSAGES" / "v8.po"
    update_catalogue(file, both())
    write(file, '"median"\nmsgstr ""', '"median"\nmsgstr "中位數"')
    write(file, '{high}"\nmsgstr ""', '{high}"\nmsgstr "{low} 到 {high}"')
    compile_catalogue(file)
    return file


def write(file: Path, before: str, after: str) -> None:
    text = file.read_text("utf-8")
    assert before in text
    file.write_text(text.replace(before, after), "utf-8")


def shown(file: Path, sentence: str) -> str:
    return GNUTranslations(BytesIO(file.with_suffix(".mo").read_bytes())).gettext(sentence)


def test_a_module_is_searched_for_sentences_and_comments_for_translators() -> None:
    sentences = extract_module(BytesIO(MODULE.encode()), (), (TRANSLATORS,), {"file": "v8/page.py"})
    assert [(line, sentence, comments) for line, _, sentence, comments in sentences] == [
        (7, "Run of {name}", ["Translators: the name is that of a profile,", "such as frontier."]),
        (9, "median", []),
        (9, "Two parts.", []),
    ]


def test_a_template_is_searched_for_sentences() -> None:
    markup = "<h2>[[Series]]</h2>\n<p title='[[Show]]'>{table} [[{n} days]]</p>"
    sentences = [(line, text) for line, _, text, _ in extract_template(BytesIO(markup.encode()), (), (), {})]
    assert sentences == [(1, "Series"), (2, "Show"), (2, "{n} days")]


@pytest.mark.parametrize("argument", ['"a" + name', 'f"{name} days"', "name"])
def test_a_sentence_that_is_not_written_out_is_refused(argument: str) -> None:
    module = BytesIO(f"x = 1\ny = say({argument})".encode())
    with pytest.raises(ValueError, match=r"v8/page\.py:2: .*; got say\("):
        list(extract_module(module, (), (), {"file": "v8/page.py"}))


def test_words_that_their_files_no_longer_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Words("v8/publish/report/page.py", "", ("time", "tyme"))
    gone = Words("v8/publish/report/gone.py", "", ("time",))
    monkeypatch.setattr(extraction, "WRITTEN", (page, gone))
    folder = r"v8/publish/report"
    expected = rf"not there any more: 'tyme' of {folder}/page\.py, 'time' of {folder}/gone\.py\. Remove"
    with pytest.raises(ValueError, match=expected):
        extraction.template()


def test_a_complete_catalogue_has_no_problem(file: Path) -> None:
    assert problems(file, both()) == []
    assert shown(file, "{low} to {high}") == "{low} 到 {high}"


def test_a_check_names_the_entry_that_is_missing_or_used_nowhere(file: Path) -> None:
    missing, stale = problems(file, sentences_of("median", "fold"))
    assert missing.startswith("'fold' of v8/page.py has no translation")
    assert stale.startswith("'{low} to {high}' is used nowhere")
    write(file, 'msgstr "中位數"', 'msgstr ""')
    empty, _ = problems(file, both())
    assert empty.startswith("'median' of v8/page.py has no translation")


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (
            "{low} 到 {high}",
            "{high} 以下",
            r"'{low} to {high}' has places for {high}, {low}; got {high} in its",
        ),
        ("中位數", "{n} 中位數", "'median' has places for nothing; got {n}"),
        ("中位數", "中位數 {", "The translation of 'median' has a brace"),
        ('msgid "median"', '#, fuzzy\nmsgid "median"', "'median' is marked fuzzy"),
    ],
)
def test_a_check_names_the_entry_that_is_wrong(file: Path, before: str, after: str, problem: str) -> None:
    write(file, before, after)
    compile_catalogue(file)
    assert [text[: len(problem)] for text in problems(file, both())] == [problem]


def test_a_check_names_the_line_that_is_no_gettext(file: Path) -> None:
    file.write_text(f"<<<<<<< ours\n{file.read_text('utf-8')}", "utf-8")
    (problem,) = problems(file, both())
    assert problem.startswith("v8.po: ")
    assert " on 0. " in problem


def test_a_check_notices_that_the_compiled_catalogue_is_older(file: Path) -> None:
    write(file, "中位數", "中間值")
    (problem,) = problems(file, both())
    assert problem == "v8.mo does not hold what v8.po does: call scripts/translations compile."
    file.with_suffix(".mo").unlink()
    assert problems(file, both()) == [problem]


def test_a_changed_sentence_keeps_its_translation_as_a_proposal_that_no_page_shows(file: Path) -> None:
    changed = sentences_of("{low} up to {high}")
    catalogue = update_catalogue(file, changed)
    assert [*catalogue.obsolete] == ["median"]
    text = file.read_text("utf-8")
    assert '#, fuzzy, python-brace-format\n#| msgid "{low} to {high}"\nmsgid "{low} up to {high}"' in text
    assert 'msgstr "{low} 到 {high}"' in text
    assert "median" not in text
    assert shown(file, "{low} up to {high}") == "{low} up to {high}"
    (problem,) = problems(file, changed)
    assert problem.startswith("'{low} up to {high}' is marked fuzzy")


def test_a_second_update_changes_nothing_and_percent_signs_are_no_places(file: Path) -> None:
    sentences = sentences_of("median", "{low} to {high}", "0.987 is 1.3 % lower", "a" * 100)
    update_catalogue(file, sentences)
    first = file.read_text("utf-8")
    update_catalogue(file, sentences)
    assert file.read_text("utf-8") == first
    assert "python-format" not in first
    assert f'msgid "{"a" * 100}"\n' in first


def test_the_template_holds_every_sentence_without_translations(tmp_path: Path) -> None:
    main(["extract", str(tmp_path / "v8.pot")])
    with (tmp_path / "v8.pot").open("rb") as stream:
        template = read_po(stream)
    assert len(template) > 300
    assert {message.string for message in template if message.id} == {""}
    entry = template["No live record yet."]
    assert entry.locations == [("v8/annexes/live/app/page.py", None)]
