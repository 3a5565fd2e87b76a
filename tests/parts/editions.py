"""Two editions of a page say the same: commands, names, figures, tables, headings and links are equal.

Words differ, and so may comments in code and the explanations of a listing. All else is compared section by
section, and what differs is told with the section's two titles.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
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


@dataclass(frozen=True)
class Block:
    """A run of lines that belong together; `kind` names what they are, with a table's or list's shape."""

    kind: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(line.strip() for line in self.lines)


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it, up to the next heading."""

    level: int
    title: str
    blocks: tuple[Block, ...]


def sections_of(text: str) -> list[Section]:
    """Part an edition at its headings."""
    sections: list[Section] = []
    for kind, group in groupby(_kinds_and_lines(_without_tabs(text)), key=lambda line: line[0]):
        lines = tuple(line for _, line in group)
        if kind == "heading":
            sections.append(_heading(lines[0]))
        elif kind not in ("blank", "end of code"):
            sections[-1] = replace(sections[-1], blocks=(*sections[-1].blocks, _block(kind, lines)))
    return sections


def _heading(line: str) -> Section:
    """Begin a section; the anchor that a heading may name, `{#anchor}`, is no part of its title."""
    title = re.sub(r" \{#[\w-]+\}$", "", line)
    return Section(len(line) - len(line.lstrip("#")), title.lstrip("# "), ())


def _without_tabs(text: str) -> str:
    """Put what stands in tabs, which is indented, below each other; titles of tabs are words, and go."""
    if '\n=== "' not in text:
        return text
    return re.sub(r'^(?:=== ".*"\n| {4})', "", text, flags=re.MULTILINE)


def _kinds_and_lines(text: str) -> Iterator[tuple[str, str]]:
    kind = "blank"
    for line in text.splitlines():
        kind = _kind(line, kind)
        yield kind, line


def _kind(line: str, before: str) -> str:
    """Tell what a line is part of, from the line and what the one before it was part of."""
    if before.startswith("code"):
        return "end of code" if line == "```" else before
    if line.startswith("```"):
        return f"code {line[3:]}"
    starts = {"#": "heading", "|": "table", "* ": "list"}
    otherwise = "blank" if not line else "list" if before == "list" else "paragraph"
    return next((kind for start, kind in starts.items() if line.startswith(start)), otherwise)


def _block(kind: str, lines: tuple[str, ...]) -> Block:
    if kind == "table":
        return Block(f"table of {len(lines)} x {len(cells_of(lines[0]))}", lines)
    if kind == "list":
        return Block(f"list of {sum(line.startswith('* ') for line in lines)}", lines)
    return Block(kind, tuple(map(_listed_name if kind == "code " else _command, lines)))


def _listed_name(line: str) -> str:
    """Cut the explanation off a line of a listing, which two spaces part from the name."""
    return re.sub(r"(?<=\S)  +.*", "", line)


def _command(line: str) -> str:
    """Cut a comment off a line of code."""
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
    """List what must be the same in another edition, by its name."""
    yield "its heading's level", Counter([str(section.level)])
    yield "blocks", Counter([" + ".join(block.kind.strip() for block in section.blocks)])
    for number, block in enumerate(section.blocks, 1):
        if block.kind.startswith("code"):
            yield f"lines of block {number}", Counter(block.lines)
            yield f"the order of lines of block {number}", Counter([" / ".join(block.lines)])
        elif block.kind.startswith("table"):
            yield from _table_facts(block)
    text = " ".join(block.text for block in section.blocks if not block.kind.startswith(("code", "table")))
    yield "names in code type", names_in(text)
    yield "figures", figures_in(text)
    yield "links", links_in(text)


def _table_facts(table: Block) -> Iterator[tuple[str, Counter[str]]]:
    for row, line in enumerate(table.lines):
        for column, cell in enumerate(cells_of(line), 1):
            where = f"of row {row}, column {column} of its table"
            yield f"names in code type {where}", names_in(cell)
            yield f"figures {where}", figures_in(cell)
            yield f"bold type {where}", Counter(re.findall(r"\*\*", cell))


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
        words = section.title + " ".join(block.text for block in section.blocks)
        if foreign := {word: here for word, here in TAIWANESE.items() if word in words}:
            yield f"Section {section.title!r}: say {foreign}"
        if strange := {one for one in re.findall(r"[\u4e00-\u9fff]", words) if not _is_traditional(one)}:
            yield f"Section {section.title!r}: no traditional characters: {strange}"


def _is_traditional(letter: str) -> bool:
    """Big5 has no simplified characters."""
    return letter.encode("cp950", "ignore") != b""
