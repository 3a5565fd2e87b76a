r"""Make texts of other people safe for the place that shows them.

A name, a path, a message or a cell may come from a file that somebody else wrote. Each place that shows text
has characters with a meaning of their own:

* a terminal: control characters and escape sequences move its cursor, change its colours and its title;
  bidirectional controls change the order in which a line is read (CVE-2021-42574);
* a spreadsheet: a cell that begins with one of `= + - @` is a formula (CWE-1236);
* Markdown: brackets, angle brackets and backquotes are links, HTML and code.

HTML is escaped by `v8.publish.report.markup`, which is the only module that builds it.

Messages of other packages quote addresses, headers and options, and with them passwords, keys and tokens:
`without_secrets` removes them from every message, traceback and line of a log.
"""

import re
from typing import Final

_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Characters that begin a formula; spreadsheets with Asian settings read the wide forms, too.

A tab or a line end at the start of a cell is dropped before the rest is read. Source: OWASP, CSV Injection.
"""

_MARKUP: Final = ("<", ">", "[", "]", "`", "\\", "://")
"""Characters that begin HTML, a link or code in Markdown."""

_NAMES_OF_SECRETS: Final = (
    r"(?:(?:api|access|private)[_-]?key|secret|token|passw(?:or)?d|passphrase|signature|credential)"
)
"""Part of the name of an option whose value is secret."""

_VALUE: Final = r"(?:\\?\"[^\"]*\"?|\\?'[^']*'?|[^\s,;&})\"']+)"
"""A value of an option, in quotation marks or without; the end of a text may be missing."""

_SECRETS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        # User and password of an address; a password that is not encoded may hold a slash.
        (r"(?<=://)(?:[^/?#\s]*|[^/?#\s:@]{0,200}:(?!\d{1,5}[/?#])[^\s@'\"]{0,200})@", "***@"),
        # The query of an address: Azure signs by `sig`, exchanges and mirrors use `key` or `auth`.
        (
            rf"((?:[?&;]|%3f|%26)[\w.-]{{0,40}}(?:{_NAMES_OF_SECRETS}|sig|key|pass|pwd|auth|jwt)[\w.-]{{0,40}}"
            r"(?:=|%3d))[^&;#\s'\"<>)]+",
            r"\1***",
        ),
        # Addresses that let anybody post: bots of Telegram, hooks of Discord, Slack, Teams and others.
        (r"(/bot)\d+:[\w-]+", r"\1***"),
        (r"(https?://[^\s'\"]{0,200}?/(?:web)?hooks?(?:b2)?/)[^\s?#'\"<>)]+", r"\1***"),
        (r"(https?://hooks\.[^\s/'\"]{1,200}/)[^\s?#'\"<>)]+", r"\1***"),
        # Headers.
        (
            r"(cookie\\?['\"]?\s?[:=]\s?\\?['\"]?)(?:[^\s=;,'\"]{1,200}=[^\s;,'\"]+(?:;\s?)?)+",
            r"\1***",
        ),
        (
            r"(authorization\\?['\"]?\s?[:=]\s?\\?['\"]?)"
            r"(?:(?:bearer|basic|digest|token)\s+)?(?!(?:bearer|basic)\b)[^\s'\",;]+",
            r"\1***",
        ),
        (
            r"(-(?:key|apikey|token|secret|sign|signature|passphrase)\\?['\"]?:\s?\\?['\"]?)[^\s'\",;]{8,}",
            r"\1***",
        ),
        (r"(bearer|basic)\s+[A-Za-z0-9+/=._~-]{16,}", r"\1 ***"),
        # Options as JSON and Python write them, as NAME=VALUE, and what looks like a value in a sentence.
        (rf"({_NAMES_OF_SECRETS}[\w.-]{{0,40}}(?:\\?['\"]\s?:\s?|=)){_VALUE}", r"\1***"),
        (rf"({_NAMES_OF_SECRETS}[\w.-]{{0,40}} = )(?:\"[^\"]*\"|'[^']*')", r"\1***"),
        (rf"({_NAMES_OF_SECRETS}: )(?=\S{{0,200}}\d)\S{{8,}}", r"\1***"),
        (rf"(--[\w-]{{0,40}}{_NAMES_OF_SECRETS} )(?=\S{{0,200}}\d)\S{{8,}}", r"\1***"),
        # Tokens that are known by their beginning: Hugging Face, GitHub, Slack, Amazon, webhooks, JWT.
        (
            r"(hf_|gh[oprsu]_|github_pat_|xox[a-z]-|whsec_|\b(?:sk-|akia|eyj[\w-]{10,200}\.))[A-Za-z0-9+/=_.-]{16,}",
            r"\1***",
        ),
        (r"(?<!\d)\d{6,12}:AA[A-Za-z0-9_-]{30,}", "***"),  # a bot of Telegram
    )
)
"""What is cut from texts, and what takes its place."""

_SIGNS_OF_SECRETS: Final = (
    *("@", "/bot", ":aa", "hook", "api", "key", "secret", "token", "pass", "pwd", "sig", "auth", "jwt"),
    *("cred", "cookie", "bearer", "basic", "hf_", "gh", "xox", "sk-", "akia", "eyj"),
)
"""One of these is in every such text, in lower case: the patterns are tried only where it is."""

_LEAST_KEPT: Final = 6
"""Letters of the shortest text that `keep_secret` cuts: shorter ones are parts of plain words."""

_kept: Final[dict[str, None]] = {}


def keep_secret(text: str) -> None:
    """Let `without_secrets` remove a text that this process knows to be secret, whatever is around it."""
    if len(text) >= _LEAST_KEPT:
        _kept[text] = None


def without_secrets(text: str) -> str:
    """Remove passwords, keys and tokens from a text: from addresses, headers and options.

    >>> without_secrets("ftp://a:b@c and https://d/e@f"), without_secrets("https://you.example/c?token=abc&page=2")
    ('ftp://***@c and https://d/e@f', 'https://you.example/c?token=***&page=2')
    >>> without_secrets("{'apiKey': 'abc', 'timeout': 5}"), without_secrets("Authorization: Bearer abc")
    ("{'apiKey': ***, 'timeout': 5}", 'Authorization: ***')
    """
    for secret in _kept:
        text = text.replace(secret, "***")
    lower = text.lower()
    if not any(sign in lower for sign in _SIGNS_OF_SECRETS):
        return text
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def for_terminal(text: str) -> str:
    r"""Remove secrets, and replace every character that is not printable by its Python escape.

    Letters of all alphabets are printable; line ends, other control characters, bidirectional controls,
    characters without width and halves of a surrogate pair (bytes of a file name that are not UTF-8) are not.

    >>> for_terminal("run \x1b[31mred\u202e"), for_terminal("K 線")
    ('run \\x1b[31mred\\u202e', 'K 線')
    """
    return _printable(without_secrets(text))


def for_file(text: str) -> str:
    r"""Do the same with a text of many lines, whose line ends and tabs stay.

    >>> for_file("one\n\ttwo \x1b[31mred")
    'one\n\ttwo \\x1b[31mred'
    """
    return re.sub(r"[^\n\t]+", lambda part: _printable(part[0]), without_secrets(text))


def _printable(text: str) -> str:
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
    return _printable(f"'{text}" if is_formula else text)


def as_code(text: str) -> str:
    """Write a text as code within a line of Markdown, whatever it holds.

    The fence is longer than every run of backquotes in the text. Source: CommonMark 0.31, section 6.1.

    >>> as_code("time"), as_code("a`b")
    ('`time`', '`` a`b ``')
    """
    line = _printable(text)
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
