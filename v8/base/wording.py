r"""Texts for people: translated sentences, numbers, durations and tables; and texts of others, made safe.

The code holds English sentences, and a gettext catalogue their translations:

    say("Of {n}, {wins} beat it.", n=40, wins=3)      # a sentence with values, which are not translated
    term(against.outcome)                             # a word that is data: an outcome, a task, a stage

The language is a context variable, which is set while a page is drawn (`language`), so it is not passed as an
argument. Messages on a terminal, JSON, CSV and errors are always English. `scripts/translations` extracts the
sentences into `v8/base/locale`, and compiles what translators write there into the files that are read here.

Every table is a `Table`; a missing number is a dash. Markdown and CSV are written here, HTML in
`v8.publish.report.markup`, which escapes all cells that are not markup, and lines of a terminal in
`v8.base.terminal`.

A name, a path, a message or a cell may come from a file that somebody else wrote. Each place that shows text
has characters with a meaning of their own:

* a terminal: control characters and escape sequences move its cursor, change its colours and its title;
  bidirectional controls change the order in which a line is read (CVE-2021-42574);
* a spreadsheet: a cell that begins with one of `= + - @` is a formula (CWE-1236);
* Markdown: brackets, angle brackets and backquotes are links, HTML and code.

Messages of other packages quote addresses, headers and options, and with them passwords, keys and tokens:
`without_secrets` removes them from every message, traceback and line of a log.
"""

import csv
import io
import os
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from gettext import GNUTranslations, NullTranslations
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    import pandas as pd


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


ABSENT: Final = "–"


def number(value: float | None) -> str:
    """Write a unitless number with three decimals.

    >>> number(0.97049), number(-0.0001), number(None)
    ('0.970', '0.000', '–')
    """
    return ABSENT if value is None else f"{round(value, 3) + 0.0:,.3f}"


def column(values: Iterable[float | None]) -> list[str]:
    """Write the numbers of one column with equal decimals: three digits of the largest, at most 3 decimals.

    >>> column([-1192.7241, 35.2, None]), column([12.34, 0.5]), column([0.0421, -0.1])
    (['-1,193', '35', '–'], ['12.3', '0.5'], ['0.042', '-0.100'])
    """
    numbers = list(values)
    largest = max((abs(value) for value in numbers if value is not None), default=0.0)
    decimals = 0 if largest >= 100 else 1 if largest >= 10 else 2 if largest >= 1 else 3
    return [ABSENT if value is None else f"{round(value, decimals) + 0.0:,.{decimals}f}" for value in numbers]


def digits(value: float) -> str:
    """Write a positive number with at least two significant digits.

    >>> digits(0.0042), digits(0.15), digits(1.0), digits(12.345), digits(62675.4)
    ('0.0042', '0.15', '1.00', '12.3', '62,675')
    """
    if value >= 10:
        return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def epochs(best: float, run: float) -> str:
    """Write the number of the best epoch and the number of all epochs.

    >>> epochs(12, 30), epochs(0, 0)
    ('12 of 30', 'fitted')
    """
    # Translators: so many of all: the epoch that was kept, of all epochs; series of a back-test.
    return say("{best} of {run}", best=f"{best:g}", run=f"{run:g}") if run else say("fitted")


def p_value(value: float | None) -> str:
    """Write a p-value with two significant digits, or that it is below 0.001.

    >>> p_value(0.032), p_value(0.5), p_value(0.0004), p_value(0.996), p_value(None)
    ('0.032', '0.50', '< 0.001', '1.00', '–')
    """
    if value is None:
        return ABSENT
    if value < 0.001:
        return "< 0.001"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def chance(value: float | None) -> str:
    """Write a p-value within a sentence, without the sign "<", which is markup in HTML.

    >>> chance(0.032), chance(0.0004)
    ('p 0.032', 'p below 0.001')
    """
    return f"p {p_value(value).replace('< ', 'below ')}"


def count(value: float | None) -> str:
    """Write a count, or a median of counts.

    >>> count(12.0), count(7.5), count(None)
    ('12', '7.5', '–')
    """
    return ABSENT if value is None else f"{value:,.10g}"


def percent(share: float | None, decimals: int = 1) -> str:
    """Write a share of 1 in percent.

    >>> percent(0.5123), percent(None)
    ('51.2 %', '–')
    """
    return ABSENT if share is None else f"{share * 100:.{decimals}f} %"


def duration(seconds: float | None, *, is_estimate: bool = False, omits_zero: bool = False) -> str:
    """Write seconds in a suitable unit.

    Args:
        seconds: The duration; None is written as a dash.
        is_estimate: Whether it is rounded to what is known.
        omits_zero: Whether a smaller unit that is zero is left out.

    >>> duration(0.25), duration(61.2), duration(3 * 3600 + 60), duration(None)
    ('0.25 s', '1 min 1 s', '3 h 1 min', '–')
    >>> duration(4.2, is_estimate=True), duration(95, is_estimate=True), duration(7384, is_estimate=True)
    ('4 s', '2 min', '2 h 3 min')
    >>> duration(36_000, omits_zero=True), duration(9_000, omits_zero=True), duration(900, omits_zero=True)
    ('10 h', '2 h 30 min', '15 min')
    """
    if seconds is None:
        return ABSENT
    if seconds < (90 if is_estimate else 60):
        decimals = 2 if seconds < 10 and not is_estimate else 0
        return say("{n} s", n=f"{seconds:.{decimals}f}")
    if is_estimate and seconds < 3600:
        return say("{n} min", n=round(seconds / 60))
    minutes, rest_s = divmod(round(seconds), 60)
    hours, rest_min = divmod(minutes, 60)
    if hours:
        parts = [say("{n} h", n=hours), say("{n} min", n=rest_min)]
        is_round = rest_min == 0
    else:
        parts = [say("{n} min", n=minutes), say("{n} s", n=rest_s)]
        is_round = rest_s == 0
    return parts[0] if omits_zero and is_round else " ".join(parts)


def moment(text: str | None) -> str:
    """Write an ISO 8601 time without seconds and zone.

    >>> moment("2026-08-01T00:15:00+00:00"), moment("2026-08-01T00:15:00Z"), moment(None)
    ('2026-08-01 00:15', '2026-08-01 00:15', '–')
    """
    return ABSENT if text is None else text[:16].replace("T", " ")


def capitalized(clause: str) -> str:
    """Begin a clause with a capital letter; `str.capitalize` would make all other letters small.

    >>> capitalized("start another run with V8_HOME"), capitalized("")
    ('Start another run with V8_HOME', '')
    """
    return clause[:1].upper() + clause[1:]


def between(ends: Iterable[str]) -> str:
    """Write a range by its smallest and its largest value, which are already texts.

    >>> between(["20 min", "30 min"])
    '20 min to 30 min'
    """
    low, high = ends
    # Translators: a range, from its smallest to its largest value.
    return say("{low} to {high}", low=low, high=high)


def plural(number: int, noun: str) -> str:
    """Write a count with its noun.

    >>> plural(1, "candle"), plural(3, "candle")
    ('1 candle', '3 candles')
    """
    return f"{number} {term(noun)}" if number == 1 or chosen() != ENGLISH else f"{number} {noun}s"


def spaced(name: str) -> str:
    """Write a key of a file as words.

    >>> spaced("num_windows"), spaced("range_paths")
    ('windows', 'range paths')
    """
    return name.removeprefix("num_").replace("_", " ")


Cells = Iterable[object]


class Table:
    """A table: rows of cells, and names of columns with their units. The first column names the rows.

    Cells are formatted texts, or numbers for a CSV file, in which None is an empty cell. In a table of prose
    (`is_prose`) all cells are aligned left; otherwise all columns except the first are aligned right.

    >>> table = Table(("a", "b"), [("1", "x|y"), ("2", None)], "How it went")
    >>> print(table.csv(), end="")
    a,b
    1,x|y
    2,
    """

    def __init__(
        self, columns: Iterable[str], rows: Iterable[Cells], title: str = "", *, is_prose: bool = False
    ) -> None:
        self.columns = list(columns)
        self.rows = [list(row) for row in rows]
        self.title = title
        self.is_prose = is_prose

    def markdown(self) -> str:
        r"""Return the table in Markdown, without its title; vertical bars in cells are escaped.

        >>> print(Table(("a", "b"), [("1", "x|y")]).markdown())
        | a | b |
        | --- | --- |
        | 1 | x\|y |
        """
        lines: list[list[object]] = [[*self.columns], ["---"] * len(self.columns), *self.rows]
        written = ([for_terminal(str(cell)).replace("|", "\\|") for cell in line] for line in lines)
        return "\n".join(f"| {' | '.join(line)} |" for line in written)

    def csv(self) -> str:
        """Return the table as CSV: numbers with all their digits, texts as `for_spreadsheet` writes them."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([for_spreadsheet(name) for name in self.columns])
        for cells in self.rows:
            writer.writerow([_csv_cell(cell) for cell in cells])
        return stream.getvalue()


def frame_csv(frame: "pd.DataFrame", *, index_label: str | None = None, has_header: bool = True) -> str:
    """Write a frame as CSV, numbers with all their digits, texts as `for_spreadsheet` writes them.

    Args:
        frame: Columns of numbers, times or texts, whose names are texts.
        index_label: Name of the first column, which holds the index; None leaves the index out.
        has_header: Whether the first line names the columns.

    >>> import pandas
    >>> print(frame_csv(pandas.DataFrame({"name": ["=1+1", None], "value": [-0.5, 2.0]})), end="")
    name,value
    '=1+1,-0.5
    ,2.0
    """
    safe = frame.rename(columns=_csv_cell)
    if index_label is not None:
        safe = safe.rename(index=_csv_cell)
    for place, kind in enumerate(frame.dtypes):
        if kind.kind == "O":  # texts, or a mixture of texts and numbers
            safe.isetitem(place, frame.iloc[:, place].map(_csv_cell).to_numpy())
    text = safe.to_csv(
        index=index_label is not None, index_label=index_label, header=has_header, lineterminator="\n"
    )
    return str(text)


def _csv_cell(cell: object) -> object:
    return for_spreadsheet(cell) if isinstance(cell, str) else cell


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
