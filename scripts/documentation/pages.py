"""Collects the pages of both languages for the builder, and records which English page a translation is of.

The front matter of a page of `docs/zh-TW` holds the digest of the English page that it translates. When the
English page changes, the translation is out of date until somebody has compared both and
`scripts/docs translated PAGE` has written the new digest. The Chinese site shows pages without a translation
in English, with a note at the top.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml

from documentation import notebooks
from documentation.reference import REPOSITORY, pages
from v8.base.version import VERSION

DOCS: Final = REPOSITORY / "docs"
BRIDGES: Final = DOCS / "bridges"
"""Files that users take into other programs; the pages on these link them."""
ENGLISH = "en"
CHINESE = "zh-TW"
LANGUAGES: Final = (ENGLISH, CHINESE)
TRANSLATED: Final = ("index.md", "tutorial.md", "how-to", "explanation", "reference")
"""What has to be there in every language; research, notebooks and what the code writes are English."""

NOT_TRANSLATED: Final = '!!! note ""\n\n    這一頁目前只有英文。\n\n'
"""Stands above English pages among Chinese ones."""

_FRONT: Final = re.compile(r"---\ntranslates: ([0-9a-f]{12})\n---\n\n?")


def english_pages() -> list[str]:
    """List the pages that every language needs, by their path below its folder."""
    roots = (DOCS / ENGLISH / name for name in TRANSLATED)
    files = (file for root in roots for file in (sorted(root.rglob("*.md")) if root.is_dir() else [root]))
    return [file.relative_to(DOCS / ENGLISH).as_posix() for file in files]


def introductions() -> dict[str, dict[str, str]]:
    """Return the Chinese title and introduction of each page that is English otherwise."""
    texts: dict[str, dict[str, str]] = yaml.safe_load(
        (DOCS / CHINESE / "introductions.yaml").read_text("utf-8")
    )
    return texts


def _introduced(text: str, introduction: Mapping[str, str]) -> str:
    """Replace the title and the first paragraph of an English page."""
    _, _, *rest = text.split("\n\n", 2)
    return "\n\n".join([f"# {introduction['title']}", introduction["text"], *rest])


def digest(page: str) -> str:
    """Return the digest of an English page."""
    return sha256((DOCS / ENGLISH / page).read_bytes()).hexdigest()[:12]


def lagging() -> Iterator[str]:
    """Say which translations lag behind."""
    for page in english_pages():
        file = DOCS / CHINESE / page
        if not file.is_file():
            yield f"docs/{CHINESE}/{page}: is missing; docs/{ENGLISH}/{page} is to be translated"
            continue
        front_matter = _FRONT.match(file.read_text("utf-8"))
        if front_matter is None or front_matter[1] != digest(page):
            yield (
                f"docs/{CHINESE}/{page}: lags behind docs/{ENGLISH}/{page}; compare them, then call "
                f"scripts/docs translated {page}"
            )


def mark_translated(page: str) -> None:
    """Write into a translation that it is one of the English page as it is now."""
    file = DOCS / CHINESE / page
    text = _FRONT.sub("", file.read_text("utf-8"), count=1)
    file.write_text(f"---\ntranslates: {digest(page)}\n---\n\n{text}", "utf-8")


def stage(out: Path, write: Mapping[str, Callable[[], str]] | None = None) -> list[Path]:
    """Put the pages of each language into a folder with its settings, and return the files of settings.

    Args:
        out: The folder.
        write: Who writes each page that the code writes, by its path; None for all that there are.
    """
    writers = pages() if write is None else write
    written = {path: write_page() for path, write_page in writers.items()}
    written |= {f"notebooks/{name}.md": notebooks.page(name) for name in notebooks.names()}
    return [_staged(language, out / language, written) for language in LANGUAGES]


def _staged(language: str, out: Path, written: dict[str, str]) -> Path:
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(DOCS / ENGLISH, out / "docs")
    shutil.copytree(DOCS / "research", out / "docs" / "research")
    (out / "docs" / "notebooks").mkdir()
    for name in notebooks.names():
        shutil.copy(notebooks.NOTEBOOKS / f"{name}.ipynb", out / "docs" / "notebooks")
    shutil.copytree(BRIDGES, out / "docs" / "bridges", ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in written.items():
        (out / "docs" / path).parent.mkdir(parents=True, exist_ok=True)
        (out / "docs" / path).write_text(text, "utf-8")
    if language != ENGLISH:
        introduced = introductions()
        for file in (out / "docs").rglob("*.md"):
            text = file.read_text("utf-8")
            introduction = introduced.get(file.relative_to(out / "docs").as_posix())
            file.write_text(
                _introduced(text, introduction) if introduction else NOT_TRANSLATED + text, "utf-8"
            )
        unshown = shutil.ignore_patterns("introductions.yaml")
        shutil.copytree(DOCS / language, out / "docs", ignore=unshown, dirs_exist_ok=True)
    shutil.copy(DOCS / "site.css", out / "docs" / "site.css")
    shutil.copytree(DOCS / "theme", out / "theme")
    settings = out / "zensical.toml"
    settings.write_text(_settings(language, repository_address()), "utf-8")
    return settings


def _settings(language: str, address: str) -> str:
    """Return the settings of a language, with the version and the address of the repository."""
    text = (DOCS / f"{language}.toml").read_text("utf-8").replace("v8 VERSION", f"v8 {VERSION}")
    if not address:
        return text
    name = urlsplit(address).path.strip("/") or urlsplit(address).netloc
    return text.replace(
        "[project]\n", f"[project]\nrepo_url = {json.dumps(address)}\nrepo_name = {json.dumps(name)}\n", 1
    )


def repository_address() -> str:
    """Return where the repository lies for readers of the site; empty if nothing says so.

    The environment variable V8_REPOSITORY_URL comes before `url` in setup.cfg. Only an address that begins
    with https:// is one.
    """
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg", "utf-8")
    address = os.environ.get("V8_REPOSITORY_URL") or setup.get("metadata", "url", fallback="") or ""
    return address if address.startswith("https://") else ""
