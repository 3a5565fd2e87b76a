"""Two editions of a page say the same: commands, names, figures, tables, headings and links are equal.

Words differ, and so may comments in code and the explanations of a listing. All else is compared section by
section, and what differs is told with the section's two titles.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

ENGLISH = "README.md"
CHINESE = "README.zh-TW.md"

TAIWANESE: Final = {
    "內存": "記憶體",
    "線程": "執行緒",
    "進程": "行程",
    "文件夾": "資料夾",
    "默認": "預設",
    "配置文件": "設定檔",
    "緩存": "快取",
    "服務器": "伺服器",
    "網絡": "網路",
    "軟件": "軟體",
    "信息": "資訊",
    "加載": "載入",
    "打印": "印出",
    "用戶": "使用者",
    "數組": "陣列",
    "函數": "函式",
    "代碼庫": "程式碼庫",
    "源碼": "原始碼",
    "方差": "變異數",
    "置信": "信賴",
    "回歸": "迴歸",
    "滑點": "滑價",
    "令牌": "權杖",
}
"""Words of other places, and what is said in Taiwan."""


CODE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCE: Final = "```"
"""What stands in the text of a section where code was."""

HEADING: Final = re.compile(r"^(#+) (.*?)(?: \{#[\w-]+\})?$", re.MULTILINE)
"""The anchor that a heading may name, `{#anchor}`, is no part of its title."""


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it, up to the next heading; of each code block its language, too."""

    level: str
    title: str
    text: str
    codes: tuple[tuple[str, str], ...]


def sections_of(text: str) -> list[Section]:
    text = _without_tabs(text)
    codes = iter(CODE.findall(text))
    parts = HEADING.split(CODE.sub(FENCE, text))[1:]
    return [
        Section(level, title, body.strip(), tuple(islice(codes, body.count(FENCE))))
        for level, title, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]


def _without_tabs(text: str) -> str:
    """Put what stands in tabs, which is indented, below each other; titles of tabs are words, and go."""
    if '\n=== "' not in text:
        return text
    return re.sub(r'^(?:=== ".*"\n| {4})', "", text, flags=re.MULTILINE)


def _shape(block: str) -> str:
    """Name what a block of lines is, with the size of a table or list."""
    rows = [line for line in block.splitlines() if line.startswith("|")]
    if rows:
        return f"table of {len(rows)} x {len(cells_of(rows[0]))}"
    num_items = len(re.findall(r"^\* ", block, re.MULTILINE))
    return f"list of {num_items}" if num_items else "code" if block == FENCE else "paragraph"


def _facts_of_line(line: str, language: str) -> str:
    """Cut a comment off code, and off a listing the explanation that two spaces part from the name."""
    if not language:
        return re.sub(r"(?<=\S)  +.*", "", line)
    return "" if line.startswith("# ") else line.partition(" #")[0].rstrip()


def cells_of(line: str) -> list[str]:
    return line.removeprefix("|").removesuffix("|").split("|")


def names_in(text: str) -> Counter[str]:
    return Counter(re.findall(r"`([^`]+)`", text))


def figures_in(text: str) -> Counter[str]:
    """Count numbers and commits, but not the digits of names such as V7."""
    commit = r"[0-9a-f]{7}(?![A-Za-z\d])"
    number = r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?"
    return Counter(re.findall(rf"(?<![A-Za-z\d.])(?:{commit}|{number})", re.sub("`[^`]+`", "", text)))


def links_in(text: str) -> Counter[str]:
    targets = re.findall(r"\]\(([^)]+)\)|(https?://[^\s`)，。]+)", text)
    alike = ((one or other).replace("docs/zh-TW/", "docs/en/") for one, other in targets)
    return Counter(one for one in alike if one not in (ENGLISH, CHINESE))


def facts_of(section: Section) -> Iterator[tuple[str, Counter[str]]]:
    yield "its heading's level", Counter([section.level])
    yield "blocks", Counter([" + ".join(map(_shape, re.split(r"\n\s*\n", section.text)))])
    for number, (language, code) in enumerate(section.codes, 1):
        lines = [_facts_of_line(line, language) for line in code.splitlines()]
        yield f"lines of code block {number}", Counter(lines)
        yield f"the order of lines of code block {number}", Counter([" / ".join(lines)])
    lines = section.text.splitlines()
    rows = [line for line in lines if line.startswith("|")]
    for row, line in enumerate(rows):
        for column, cell in enumerate(cells_of(line), 1):
            bold = Counter(re.findall(r"\*\*", cell))
            yield f"row {row}, column {column} of its tables", names_in(cell) + figures_in(cell) + bold
    text = " ".join(line.strip() for line in lines if not line.startswith(("|", FENCE)))
    yield "names in code type", names_in(text)
    yield "figures", figures_in(text)
    yield "links", links_in(text)


def differences(english: str, chinese: str) -> list[str]:
    """Tell in which sections two editions differ; the first one alone where an edition lacks a section."""
    ours = sections_of(english)
    theirs = sections_of(chinese)
    found = [told for pair in zip(ours, theirs, strict=False) if (told := _difference(*pair))]
    if len(ours) == len(theirs):
        return found
    return found[:1] or [f"One edition ends early, after section {ours[: len(theirs)][-1].title!r}."]


def _difference(ours: Section, theirs: Section) -> str | None:
    for (what, expected), (_, got) in zip(facts_of(ours), facts_of(theirs), strict=False):
        if expected != got:
            return (
                f"Section {ours.title!r} ({theirs.title}) differs in {what}: {ENGLISH} alone has "
                f"{_listed(expected - got)}; {CHINESE} alone has {_listed(got - expected)}."
            )
    return None


def _listed(counted: Counter[str]) -> str:
    return ", ".join(counted.elements()) or "nothing"


def strange_words(text: str) -> Iterator[str]:
    """Tell in which sections words stand that Taiwan has others for, or signs that are not traditional."""
    for section in sections_of(text):
        words = section.title + section.text + "".join(code for _, code in section.codes)
        if foreign := {word: here for word, here in TAIWANESE.items() if word in words}:
            yield f"Section {section.title!r}: say {foreign}"
        if strange := {one for one in re.findall(r"[\u4e00-\u9fff]", words) if not _is_traditional(one)}:
            yield f"Section {section.title!r}: no traditional characters: {strange}"


def _is_traditional(letter: str) -> bool:
    """Big5 has no simplified characters."""
    return letter.encode("cp950", "ignore") != b""
