"""Checks the links of the built site: each must lead to a page that was built, and to an anchor on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

OTHER: Final = ("http", "https", "mailto", "data", "javascript")
"""Schemes of what lies elsewhere, which is not asked for: the check needs no network."""

NAMED: Final = ("canonical", "alternate", "prev", "next")
"""What a link element names and no browser fetches."""


@dataclass
class Page(HTMLParser):
    """What a page links to, the places it has, and what it would fetch from elsewhere."""

    text: str
    links: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note links and places of one element."""
        values = {name: value for name, value in attrs if value}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if "href" in values:
            self.links.append(values["href"])
        source = values.get("src") or (values.get("href", "") if tag == "link" else "")
        is_fetched = tag in ("script", "img") or (tag == "link" and values.get("rel") not in NAMED)
        if is_fetched and urlsplit(source).scheme in OTHER[:2]:
            self.fetched.append(source)


def broken_links(site: Path) -> Iterator[str]:
    """Yield a sentence for every link of a site that leads nowhere, and for what comes from other hosts."""
    pages = {file.resolve(): Page(file.read_text("utf-8")) for file in sorted(site.rglob("*.html"))}
    for file, page in pages.items():
        page_name = file.relative_to(site.resolve())
        yield from (f"{page_name}: fetches {address} from another host" for address in page.fetched)
        for link in dict.fromkeys(page.links):
            why = _why_broken(link, file, site.resolve(), pages)
            if why:
                yield f"{page_name}: {link} {why}"


def _why_broken(link: str, file: Path, site: Path, pages: dict[Path, Page]) -> str | None:
    parts = urlsplit(link)
    if parts.scheme in OTHER or parts.netloc:
        return None
    path = unquote(parts.path)
    target = (
        (site / path.lstrip("/") if path.startswith("/") else file.parent / path).resolve() if path else file
    )
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return "is no page"
    place = unquote(parts.fragment)
    if place and target in pages and place not in pages[target].places and not place.startswith("__"):
        return "is no place of that page"
    return None
