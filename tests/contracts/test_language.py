"""Pages say their sentences in the language of their block; `scripts/check` examines the catalogues."""

from __future__ import annotations

from gettext import GNUTranslations
from pathlib import Path

import pytest
from catalogues.files import TRANSLATED

from v8.base.wording import ENGLISH, LANGUAGES, catalogue, language, say, term


@pytest.mark.parametrize(
    "content", [None, b"", b"\xde\x12\x04\x95", b"no catalogue", b"\xde\x12\x04\x95" + b"\xff" * 60]
)
def test_without_a_catalogue_that_can_be_read_pages_are_english(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    if content is not None:
        compiled = tmp_path / "locale/zh_TW/LC_MESSAGES/v8.mo"
        compiled.parent.mkdir(parents=True)
        compiled.write_bytes(content)
    monkeypatch.setattr("v8.base.wording.files", lambda package: tmp_path)
    catalogue.cache_clear()
    try:
        with language("zh-TW"):
            assert say("{n} days", n=2) == "2 days"
    finally:
        catalogue.cache_clear()


def test_every_language_but_english_has_a_catalogue() -> None:
    assert set(TRANSLATED) == set(LANGUAGES) - {ENGLISH}
    assert all(isinstance(catalogue(name), GNUTranslations) for name in TRANSLATED)


def test_a_sentence_keeps_its_values_and_the_language_ends_with_its_block() -> None:
    with language("zh-TW"):
        assert say("Series") == "序列"
        assert say("{low} to {high}", low=1, high=2) == "1 到 2"
    assert say("Series") == "Series"


def test_a_word_without_a_translation_stays_as_it_is() -> None:
    with language("zh-TW"):
        assert term("BTCUSDT-15m") == "BTCUSDT-15m"
        assert term("") == ""
