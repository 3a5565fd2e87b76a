"""Texts that somebody else wrote, made fit to be shown: one bounded line, no control characters, no password.

File names, keys, values, addresses and other programs' messages may hold anything: line breaks that forge a
second message, escapes that move a terminal's cursor, megabytes, the password of a proxy.
"""

import re
from typing import Final

MOST_SHOWN: Final = 120  # characters of a text that are shown unless told otherwise
_CUT: Final = " ... "
_MOST_READ: Final = 20_000  # of a longer text only the begin and the end are looked at
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/?#\s]*@")


def shown(text: object, most: int = MOST_SHOWN) -> str:
    r"""Write a text as one line of at most `most` characters; its middle goes first.

    Blanks of every kind become one blank, control characters their escapes, and the user and password of an
    address three stars.

    >>> shown("two\nlines"), shown("\x1b[31mred"), shown("http://me:secret@host/x")
    ('two lines', '\\x1b[31mred', 'http://***@host/x')
    >>> shown("a" * 50, 20)
    'aaaaaaaa ... aaaaaaa'
    """
    words = without_credentials(_shortened(str(text), _MOST_READ)).split()
    line = "".join(letter if letter.isprintable() else _escaped(letter) for letter in " ".join(words))
    return _shortened(line, most)


def without_credentials(text: str) -> str:
    """Take the user and password out of every address in a text.

    >>> without_credentials("ftp://a:b@c and https://d/e@f")
    'ftp://***@c and https://d/e@f'
    """
    return _CREDENTIALS.sub("***@", text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    kept = most - len(_CUT)
    return text[: kept - kept // 2] + _CUT + text[len(text) - kept // 2 :]
