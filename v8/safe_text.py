r"""Make texts of other people safe for the place that shows them.

A name, a path, a message or a cell may come from a file that somebody else wrote. Each place that shows text
has characters with a meaning of their own:

* a terminal: control characters and escape sequences move its cursor, change its colours and its title;
  bidirectional controls change the order in which a line is read (CVE-2021-42574);
* a spreadsheet: a cell that begins with one of `= + - @` is a formula (CWE-1236);
* Markdown: brackets, angle brackets and backquotes are links, HTML and code.

HTML is escaped by `v8.reports.markup`, which is the only module that builds it.
"""

import re
from typing import Final

_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Characters that begin a formula; spreadsheets with Asian settings read the wide forms, too.

A tab or a line end at the start of a cell is dropped before the rest is read. Source: OWASP, CSV Injection.
"""

_MARKUP: Final = ("<", ">", "[", "]", "`", "\\", "://")
"""Characters that begin HTML, a link or code in Markdown."""


def for_terminal(text: str) -> str:
    r"""Replace every character that is not printable, line ends included, by its Python escape.

    Letters of all alphabets are printable; control characters, bidirectional controls, characters without
    width and halves of a surrogate pair (bytes of a file name that are not UTF-8) are not.

    >>> for_terminal("run \x1b[31mred\u202e"), for_terminal("K 線")
    ('run \\x1b[31mred\\u202e', 'K 線')
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape_of(letter) for letter in text)


def for_spreadsheet(text: str) -> str:
    r"""Write a text as a cell that no spreadsheet computes and no terminal obeys.

    A text that begins like a formula gets an apostrophe in front, unless it is a number.

    >>> for_spreadsheet("=1+1"), for_spreadsheet("BTCUSDT-15m"), for_spreadsheet("-0.25")
    ("'=1+1", 'BTCUSDT-15m', '-0.25')
    """
    is_formula = text.lstrip(" ").startswith(_FORMULA_STARTS) and not _is_number(text)
    return for_terminal(f"'{text}" if is_formula else text)


def as_code(text: str) -> str:
    """Write a text as code within a line of Markdown, whatever it holds.

    The fence is longer than every run of backquotes in the text. Source: CommonMark 0.31, section 6.1.

    >>> as_code("time"), as_code("a`b")
    ('`time`', '`` a`b ``')
    """
    line = for_terminal(text)
    runs = re.findall("`+", line)
    if not runs:
        return f"`{line}`"
    fence = "`" * (max(map(len, runs)) + 1)
    return f"{fence} {line} {fence}"


def markup_in(text: str) -> str | None:
    """Say which sign of a text is markup in Markdown; None where the text means only itself.

    >>> markup_in("a < b"), markup_in("a and b")
    ('is plain text without <', None)
    """
    for sign in _MARKUP:
        if sign in text:
            return f"is plain text without {sign}"
    return None


def _escape_of(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
