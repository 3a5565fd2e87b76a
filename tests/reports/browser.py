"""A real headless browser: what a page looks like after its scripts have run, and what they complained of.

Looks for Chromium or Chrome on the PATH. Nothing is installed, and nothing is fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

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
        found = re.search(rf'<html[^>]* data-{name}="([^"]*)"', self.dom)
        assert found, f"no data-{name} on the root element"
        return found[1]


def find_browser() -> str | None:
    """Return the program of a browser: `V8_TEST_BROWSER`, or the first known one on the PATH."""
    chosen = os.environ.get("V8_TEST_BROWSER")
    return chosen or next((found for name in BROWSERS if (found := shutil.which(name))), None)


def visit(browser: str, page: Path, workplace: Path, *, fragment: str = "") -> Visit:
    """Open a page with a fresh browser that knows nothing."""
    done = subprocess.run(
        [browser, *_FLAGS, f"--user-data-dir={workplace / 'browser'}", f"{page.as_uri()}{fragment}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "HOME": str(workplace)},
    )
    return Visit(done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line])
