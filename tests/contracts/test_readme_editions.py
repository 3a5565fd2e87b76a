"""Both editions of the README say the same, each in its words; `tests/parts/editions.py` compares them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from editions import CHINESE, ENGLISH, differences, strange_words

REPOSITORY: Final = Path(__file__).parents[2]
MOST_LINES: Final = 150
"""Whoever comes anew reads so much; all else stands on the pages of docs/."""

EDITION: Final = """\
## Candles

A download takes 120 s, and `--bars N` [asks](https://example.org) for more.

```console
scripts/v8 data --series BTCUSDT-15m  # one series
scripts/v8 doctor
scripts/v8 features
```

## Worth

| | error | |
|---|---|---|
| HAR | 0.892 | `har` |
| EWMA | 0.896 | |
| ours | **0.885** | |

Commit c0e2e8a.

## Files

```
runs/aligned/
  history.csv     losses by epoch
```

* one
* two
"""


def read(name: str) -> str:
    return (REPOSITORY / name).read_text("utf-8")


def test_both_editions_say_the_same() -> None:
    assert not (told := differences(read(ENGLISH), read(CHINESE))), "\n".join(told)


@pytest.mark.parametrize(("edition", "other"), [(ENGLISH, CHINESE), (CHINESE, ENGLISH)])
def test_each_edition_links_to_the_other_at_its_top(edition: str, other: str) -> None:
    assert read(edition).splitlines()[2].endswith(f"]({other})")


@pytest.mark.parametrize("edition", [ENGLISH, CHINESE])
def test_an_edition_is_short_and_what_it_links_to_is_there(edition: str) -> None:
    text = read(edition)
    assert len(text.splitlines()) <= MOST_LINES
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    assert len(links) >= 8
    assert [link for link in links if not (REPOSITORY / link).is_file()] == []


def test_the_chinese_edition_is_written_as_in_taiwan() -> None:
    assert not (told := [*strange_words(read(CHINESE))]), "\n".join(told)


@pytest.mark.parametrize(
    ("old", "new", "title"),
    [
        ("takes 120 s", "takes 125 s", "Candles"),
        ("`--bars N`", "`--rows N`", "Candles"),
        ("scripts/v8 data", "scripts/v8 report", "Candles"),
        ("# one series", "# a series", None),
        ("scripts/v8 doctor\nscripts/v8 features", "scripts/v8 features\nscripts/v8 doctor", "Candles"),
        ("](https://example.org)", "](https://example.com)", "Candles"),
        ("0.892", "0.893", "Worth"),
        ("**0.885**", "0.885", "Worth"),
        ("| EWMA | 0.896 | |\n", "", "Worth"),
        ("## Worth", "### Worth", "Worth"),
        ("c0e2e8a", "c0e2e8b", "Worth"),
        ("* two\n", "two\n", "Files"),
        ("history.csv", "losses.csv", "Files"),
        ("losses by epoch", "what it lost", None),
    ],
)
def test_a_change_of_one_edition_is_told_with_its_section(old: str, new: str, title: str | None) -> None:
    assert EDITION.count(old) == 1
    told = differences(EDITION, EDITION.replace(old, new))
    assert [sentence.split("'")[1] for sentence in told] == ([title] if title else [])
