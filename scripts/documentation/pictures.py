"""Pictures of the app and of a report for the tutorial, made from a run of the simulated market.

    scripts/docs pictures [RUN]

A headless Chromium draws the pages of `RUN`, a run of `--source demo`; without one, `run --smoke` makes it in
`build/pictures`. Each picture is written to `docs/en/images`, 1280 px wide, with at most `MAX_BYTES`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image

from documentation.reference import REPOSITORY

IMAGES: Final = REPOSITORY / "docs" / "en" / "images"
SERIES: Final = "BTCUSDT-15m"
WIDTH_PX: Final = 1280
MAX_BYTES: Final = 150_000
NUM_COLOURS: Final = (256, 128, 64, 32)
"""Colours of a picture's palette; the first number with which it is small enough is taken."""
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WAIT_S: Final = 300


@dataclass(frozen=True)
class Picture:
    """One picture: its file, the page, and how high the window is."""

    name: str
    address: str  # a path of the app, or a file of the run
    height_px: int


APP: Final = (
    Picture("app-overview.png", "/", 900),
    Picture("app-series.png", f"/series/{SERIES}", 1100),
    Picture("app-api.png", "/api", 900),
)
REPORT: Final = Picture("report.png", "report.html", 1000)


def make_pictures(run: Path | None) -> None:
    """Draw every picture again.

    Args:
        run: A run of the simulated market that forecasts `SERIES`; None to train one.
    """
    folder = run or _trained(REPOSITORY / "build" / "pictures")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(
            f"pictures: need a browser on the PATH; got none of {', '.join(BROWSERS)}. Install chromium."
        )
    report = folder / REPORT.address
    _draw(browser, REPORT, report.resolve().as_uri())
    with _app(folder) as address:
        for picture in APP:
            _draw(browser, picture, address + picture.address)


def _trained(place: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    words = ["run", "--profile", "frontier", "--source", "demo", "--smoke"]
    subprocess.run(_v8(*words), cwd=place, check=True)
    return place / "runs" / "frontier-smoke"


def _v8(*words: str) -> list[str]:
    return [sys.executable, "-m", "v8", *words]


@contextmanager
def _app(run: Path) -> Iterator[str]:
    """Serve the app until every forecast is made, and yield its address."""
    with subprocess.Popen(
        _v8("app", str(run), "--source", "demo", "--port", "0"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,  # messages, the address among them
        text=True,
    ) as process:
        try:
            assert process.stderr
            found = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stderr)
            address = next(match[0] for match in found if match)
            _wait_for_forecasts(address)
            yield address
        finally:
            process.terminate()


def _wait_for_forecasts(address: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            text = answer.read().decode()
        num_series = re.search(r"^v8_series\{\} (\d+)", text, re.MULTILINE)
        assert num_series
        if text.count("v8_forecast_age_seconds{") == int(num_series[1]):
            return
        time.sleep(1)
    sys.exit(f"pictures: the app must forecast within {WAIT_S} s; it did not. Call it again.")


def _draw(browser: str, picture: Picture, address: str) -> None:
    raw = REPOSITORY / "build" / picture.name
    raw.parent.mkdir(exist_ok=True)
    words = [
        browser,
        "--headless=new",
        "--no-sandbox",  # a container's user may be root
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--hide-scrollbars",
        "--lang=en",
        "--virtual-time-budget=8000",
        f"--window-size={WIDTH_PX},{picture.height_px}",
        f"--screenshot={raw}",
        address,
    ]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
    _compress(raw, IMAGES / picture.name)
    raw.unlink()
    print(f"{picture.name}: {(IMAGES / picture.name).stat().st_size:,} bytes")


def _compress(raw: Path, target: Path) -> None:
    """Write a picture with the largest palette that keeps it below `MAX_BYTES`."""
    aside = target.with_suffix(".new")
    with Image.open(raw) as image:
        for num_colours in NUM_COLOURS:
            reduced = image.convert("RGB").quantize(num_colours, dither=Image.Dither.NONE)
            reduced.save(aside, "PNG", optimize=True)
            if aside.stat().st_size <= MAX_BYTES:
                break
    aside.replace(target)
