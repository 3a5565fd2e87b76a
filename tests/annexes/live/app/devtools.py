"""A real headless browser, driven by its DevTools protocol: nothing is installed, nothing is fetched.

Looks for Chromium or Chrome on the PATH. Tests of pages of a run use it, too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import connect

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, in a container
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-port=0",
)
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "/": 191}
_KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "+": 187, "-": 189}


def find_browser() -> str | None:
    """Return the program of a browser: `V8_TEST_BROWSER`, or the first known one on the PATH."""
    chosen = os.environ.get("V8_TEST_BROWSER")
    return chosen or next((found for name in BROWSERS if (found := shutil.which(name))), None)


class Navigated(AssertionError):
    """A page was asked something and left before it answered."""


class Browser:
    """One page of a fresh browser, and all it told.

    Args:
        program: The browser.
        home: An empty place for what it keeps.

    Attributes:
        asked: Every address that a page asked for.
        complaints: Lines of the console, errors of scripts and of loading.
        weights: Bytes that came for each request, headers included.
    """

    def __init__(self, program: str, home: Path) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.weights: dict[str, int] = {}
        self._num_sent = 0
        self._process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={home}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(home)},
        )
        self._socket = self._opened(home / "DevToolsActivePort")

    def __enter__(self) -> Browser:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(timeout=30)

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._num_sent += 1
        self._socket.send(json.dumps({"id": self._num_sent, "method": method, "params": parameters}))
        while True:
            heard = json.loads(self._socket.recv(timeout=60))
            if heard.get("id") == self._num_sent:
                if "navigated" in heard.get("error", {}).get("message", ""):
                    raise Navigated(heard["error"]["message"])
                assert "error" not in heard, heard
                found: dict[str, Any] = heard["result"]
                return found
            self._note(heard.get("method"), heard.get("params", {}))

    def look(self, width: int, *, is_dark: bool = False) -> None:
        """Set the width of the page in pixels, and the reader's setting."""
        self.tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.tell("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str, until: str) -> None:
        """Open an address and wait until an expression of the page holds."""
        self.tell("Page.navigate", url=url)
        self.wait(until)

    def wait(self, until: str) -> None:
        """Wait until an expression of the page holds, at most a minute."""
        for _ in range(600):
            with suppress(Navigated):  # the page that was asked has just been left
                if self.value(f"document.readyState === 'complete' && ({until})"):
                    return
            time.sleep(0.1)
        raise AssertionError(f"{until} did not come to hold within a minute")

    def value(self, expression: str) -> Any:
        """Return what an expression of the page is."""
        told = self.tell("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        about = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        # What a key does by itself, such as following a link, comes of the sign that it makes.
        sign = {"text": "\r"} if key == "Enter" else {}
        self.tell("Input.dispatchKeyEvent", type="keyDown" if sign else "rawKeyDown", **about, **sign)
        self.tell("Input.dispatchKeyEvent", type="keyUp", **about)

    def point(self, x: float, y: float) -> None:
        """Move the pointer to a place of the window."""
        self.tell("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def write(self, text: str) -> None:
        """Write a text where the page takes one."""
        self.tell("Input.insertText", text=text)

    def _opened(self, told: Path) -> Any:
        for _ in range(600):
            if told.exists() and "\n" in (lines := told.read_text()):
                break
            assert self._process.poll() is None, "the browser does not start"
            time.sleep(0.1)
        with urllib.request.urlopen(f"http://127.0.0.1:{lines.splitlines()[0]}/json", timeout=60) as answer:
            pages = [each for each in json.load(answer) if each["type"] == "page"]
        # Standing outside of a block: it is closed by ours.
        return connect(pages[0]["webSocketDebuggerUrl"], max_size=None, proxy=None).__enter__()

    def _note(self, method: str | None, told: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        elif method == "Network.loadingFinished":
            self.weights[told["requestId"]] = int(told["encodedDataLength"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(told)[:500])

    def strangers(self, url: str) -> list[str]:
        """List what was asked for that is not of the server at `url`."""
        ours = urlsplit(url).netloc
        return [each for each in self.asked if urlsplit(each).netloc != ours and each != "about:blank"]
