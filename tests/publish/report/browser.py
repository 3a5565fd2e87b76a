"""A real headless browser: what a page looks like after its scripts have run, and what they complained of.

Looks for Chromium or Chrome on the PATH. Nothing is installed, and nothing is fetched.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, in a container
    "--disable-gpu",
    "--hide-scrollbars",  # they take a part of the width
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--enable-logging=stderr",
    "--window-size=1200,1600",
    "--virtual-time-budget=10000",
    "--dump-dom",
)


_SCROLLED: Final = """<script>
addEventListener("load", () => setTimeout(() => {
  document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
  setTimeout(() => {
    const titles = [...document.querySelectorAll("caption span")];
    const edges = titles.map((title) => title.getBoundingClientRect().right);
    const content = Math.max(document.documentElement.scrollWidth, ...edges);
    parent.postMessage({ name: location.pathname.split("/").at(-1), content, innerWidth }, "*");
  }, 1000);
}, 1000));
</script>"""
"""Unfolds a page, then sends the page around it how wide it is, and how wide its window is."""

_FRAMES: Final = """<body style="margin: 0"><script>
const measured = {{}};
addEventListener("message", ({{ data }}) => {{
  measured[data.name] = [data.content, data.innerWidth];
  document.documentElement.dataset.measured = JSON.stringify(measured);
}});
</script>{frames}"""


@dataclass(frozen=True)
class Visit:
    """A page after its scripts have run.

    Args:
        dom: The document as it then is.
        console: Lines that the page wrote to the console, whatever their level.
    """

    dom: str
    console: list[str]

    def told(self, name: str) -> str:
        """Return the value of a `data-` attribute of the root element."""
        match = re.search(rf'<html[^>]* data-{name}="([^"]*)"', self.dom)
        assert match, f"no data-{name} on the root element"
        return match[1]


def find_browser() -> str | None:
    """Return the program of a browser: `V8_TEST_BROWSER`, or the first known one on the PATH."""
    chosen = os.environ.get("V8_TEST_BROWSER")
    return chosen or next((found for name in BROWSERS if (found := shutil.which(name))), None)


@dataclass(frozen=True)
class Browser:
    """Opens pages, each with a fresh browser that knows nothing.

    Args:
        program: The browser.
        make_folder: Makes an empty folder.
    """

    program: str
    make_folder: Callable[[], Path]

    def __call__(self, page: Path, fragment: str = "", *flags: str) -> Visit:
        workplace = self.make_folder()
        result = subprocess.run(
            [
                self.program,
                *_FLAGS,
                *flags,
                f"--user-data-dir={workplace / 'browser'}",
                f"{page.as_uri()}{fragment}",
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env={**os.environ, "HOME": str(workplace)},
        )
        return Visit(result.stdout, [line for line in result.stderr.splitlines() if ":CONSOLE" in line])

    def act(self, page: Path, script: str) -> dict[str, Any]:
        """Run a script at the end of a copy of a page; return what it wrote into `data-measured`, as JSON.

        The policy of the page would stop the script, so it is left out of the copy.
        """
        copy = self.make_folder() / "page.html"
        content, num_policies = re.subn(r"<meta http-equiv[^>]*>", "", page.read_text("utf-8"))
        assert num_policies == 1
        copy.write_text(content.replace("</body>", f"{script}</body>"), "utf-8")
        found: dict[str, Any] = json.loads(html.unescape(self(copy).told("measured")))
        return found

    def scroll_widths(self, pages: Mapping[str, str], width: int) -> dict[str, tuple[int, int]]:
        """Lay out pages so many pixels wide, all at once and unfolded.

        Args:
            pages: The content of each page, by its name.
            width: Width of the window of each, in pixels.

        Returns:
            For each page the width of its content and of its window, in pixels. Where the first is larger,
            the page scrolls sideways, or a title of a table is cut.
        """
        folder = self.make_folder()
        for name, page in pages.items():
            content, num_policies = re.subn(r"<meta http-equiv[^>]*>", "", page)
            assert num_policies == 1
            (folder / name).write_text(content.replace("</body>", f"{_SCROLLED}</body>"), "utf-8")
        style = f"border: 0; width: {width}px; height: 1500px"
        frames = "".join(f'<iframe src="{name}" style="{style}"></iframe>' for name in pages)
        framed = folder / "framed.html"
        framed.write_text(_FRAMES.format(frames=frames), "utf-8")
        measured = json.loads(html.unescape(self(framed).told("measured")))
        return {name: (content, window) for name, (content, window) in measured.items()}
