#!/usr/bin/env python3
"""Measure how many cached answers a second the server of `v8 app` gives, and how long an overview takes.

    python scripts/bench_app.py                 # trains a run of the demo market first, in a temporary folder
    python scripts/bench_app.py --run runs/aligned --source live --seconds 10
    python scripts/bench_app.py --tiles 40 1000

The server is `python -m v8 app` in a process of its own. Clients are threads of this process, each with a
connection that stays open, on the same cores. The first answer, for which a forecast is made, is not counted.

With `--tiles` a thread of this process serves an overview of so many series instead: series of the demo
market, all forecast by one model. The table has the seconds until all tiles are computed, the seconds of the
answer once they are, its bytes, and if there is a headless browser, its seconds to the first paint with
content (the browser's own `first-contentful-paint`) and until the page is drawn.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from v8.annexes.live.app.answers import chart
from v8.annexes.live.app.connections import make_server, open_listener
from v8.annexes.live.app.forecast_view import ForecastView
from v8.annexes.live.app.guard import AccessPolicy
from v8.annexes.live.app.server import Site, make_application
from v8.annexes.live.app.service import ForecastService, ModelSnapshot, month_before
from v8.api.issuing import IssuedForecast
from v8.base.hardware import describe_machine
from v8.base.storage import passing_folder
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import read_metadata

REPOSITORY = Path(__file__).parents[1]

SERIES = "BTCUSDT-15m"
PROFILE = "frontier"


def main() -> None:
    """Measure the page and the API of a run, and overviews of many series."""
    options = parsed()
    with passing_folder("v8-bench-app") as folder:
        run = options.run or trained(folder)
        if options.tiles:
            print_machine()
            titles = ("tiles", "made in", "answer", "bytes", "painted in", "drawn in")
            print(f"{titles[0]:>8} " + " ".join(f"{title:>10}" for title in titles[1:]))
            for number in options.tiles:
                print(overview(run / SERIES, number, folder))
            return
        with served(run, options.source) as address:
            print_machine()
            print(f"{'address':<32} {'requests/s':>10} {'median':>9} {'99 %':>9} {'bytes':>8}")
            for path in (f"/api/forecast/{SERIES}", f"/part/{SERIES}", "/part", "/", "/api/health"):
                print(line(path, *measured(address, path, options.seconds, options.clients)))


def print_machine() -> None:
    """Print the machine and the command."""
    print(f"machine: {', '.join(f'{name} {value}' for name, value in describe_machine().items())}")
    print(f"command: python scripts/bench_app.py {' '.join(sys.argv[1:])}".rstrip())


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--run", type=Path, help="a run that has BTCUSDT-15m (default: one is trained)")
    words.add_argument("--source", default="demo", help="where candles come from (default: demo)")
    words.add_argument("--seconds", type=float, default=5.0, help="for each address (default: 5)")
    words.add_argument("--clients", type=int, default=4, help="connections at the same time (default: 4)")
    words.add_argument("--tiles", type=int, nargs="+", help="measure overviews of so many series instead")
    return words.parse_args()


def trained(folder: Path) -> Path:
    """Train the demo series once, on a tiny budget."""
    words = ["run", "--profile", PROFILE, "--source", "demo", "--smoke", "--series", SERIES]
    command = [sys.executable, "-m", "v8", *words, "--runs", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / f"{PROFILE}-smoke"


@contextmanager
def served(run: Path, source: str) -> Iterator[str]:
    """Serve a run on a free port until the block ends, and return host and port."""
    words = [sys.executable, "-m", "v8", "app", str(run), "--source", source, "--port", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        last_line = ""
        match = None
        for line in process.stderr or ():
            last_line = line
            match = re.search(r"http://[^/]*/", line)
            if match:
                break
        if match is None:
            raise SystemExit(last_line.strip() or "error: the server did not start")
        try:
            yield urlsplit(match[0]).netloc
        finally:
            process.terminate()


def overview(model: Path, number: int, folder: Path) -> str:
    """Serve an overview of so many series, and measure it; returns a line."""
    since = time.perf_counter()
    service = service_of(model, number)
    service.start(60)
    listener = open_listener("127.0.0.1", 0)
    server = make_server(make_application(Site(service, "demo"), AccessPolicy()), listener.limiter)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    try:
        while len(service.newest) < number:
            time.sleep(0.05)
        made_s = time.perf_counter() - since
        took = []
        size = 0
        for _ in range(5):
            started = time.perf_counter()
            size = len(fetch(http.client.HTTPConnection(address, timeout=60), "/"))
            took.append(time.perf_counter() - started)
        painted_s, drawn_s = drawn(f"http://{address}/", number, folder / f"browser-{number}")
    finally:
        server.should_exit = True
        thread.join()
        service.close()
    answer_ms = 1e3 * statistics.median(took)
    in_browser = f"{seconds_text(painted_s):>10} {seconds_text(drawn_s):>10}"
    return f"{number:>8,} {made_s:>8.1f} s {answer_ms:>7.0f} ms {size:>10,} {in_browser}"


def seconds_text(seconds: float | None) -> str:
    """Write seconds of a browser."""
    return "no browser" if seconds is None else f"{seconds:.2f} s"


def service_of(model: Path, number: int) -> ForecastService:
    """Return a service of so many series of the demo market, all forecast by one model."""
    forecaster = Forecaster.load(model)
    source = open_source("demo")
    own_metadata = read_metadata(model)
    names = [Series.parse(f"A{place:04}USDT-15m") for place in range(number)]
    metadata = {
        name: replace(own_metadata, series=str(name), content={**own_metadata.content, "series": str(name)})
        for name in names
    }
    fleet = ModelSnapshot("demo", None, dict.fromkeys(names, model), metadata, {})

    def issue(_: ModelSnapshot, series: Series) -> tuple[IssuedForecast, Any]:
        candles = source.candles(series, forecaster.needed_bars)
        forecast = forecaster.predict(replace(candles, series=forecaster.series))
        issued = IssuedForecast(forecaster, candles, forecast, "demo", int(time.time()), False)
        return issued, month_before(source, series, issued.closed_s // 86_400)

    place: Any = SimpleNamespace(refresh=lambda: fleet)
    return ForecastService(
        place,
        ForecastView,
        issue=issue,
        record=lambda: None,
        chart=chart,
        present=time.time,
        notify=print,
    )


def drawn(url: str, number: int, home: Path) -> tuple[float | None, float | None]:
    """Return the seconds that a browser takes to the first paint, and to the last tile; None without one."""
    file = REPOSITORY / "tests" / "annexes" / "live" / "app" / "devtools.py"
    spec = importlib.util.spec_from_file_location("devtools", file)
    assert spec and spec.loader
    devtools = sys.modules["devtools"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(devtools)
    program = devtools.find_browser()
    if program is None:
        return None, None
    with devtools.Browser(program, home) as browser:
        browser.look(1_280)
        started = time.perf_counter()
        browser.open(url, f"document.querySelectorAll('.tiles svg').length === {number}")
        browser.value("document.body.getBoundingClientRect().height")
        drawn_s = time.perf_counter() - started
        first_paint = "performance.getEntriesByName('first-contentful-paint')[0]"
        browser.wait(f"{first_paint} !== undefined")  # a busy machine notes it later than it draws
        return browser.value(f"{first_paint}.startTime") / 1e3, drawn_s


def measured(address: str, path: str, seconds: float, num_clients: int) -> tuple[list[float], float, int]:
    """Ask for one path from several connections.

    Returns:
        Seconds of every answer, seconds in all, bytes of an answer.
    """
    size = len(fetch(http.client.HTTPConnection(address, timeout=60), path))
    took: list[float] = []
    since = time.perf_counter()
    until = since + seconds
    threads = [
        threading.Thread(target=keep_asking, args=(address, path, until, took)) for _ in range(num_clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took, time.perf_counter() - since, size


def keep_asking(address: str, path: str, until: float, took: list[float]) -> None:
    """Request a path until a time of `time.perf_counter`, and note how long each answer took, in seconds."""
    connection = http.client.HTTPConnection(address, timeout=60)
    started = time.perf_counter()
    while started < until:
        fetch(connection, path)
        ended = time.perf_counter()
        took.append(ended - started)
        started = ended
    connection.close()


def fetch(connection: http.client.HTTPConnection, path: str) -> bytes:
    """Return the content of a path; end the script if the answer is an error."""
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise SystemExit(f"error: {path} was answered with {answer.status}")
    return content


def line(path: str, took: list[float], seconds: float, size: int) -> str:
    """Return one line of the table: requests a second, median and slowest percent, and bytes of a path."""
    median = statistics.median(took)
    slow = statistics.quantiles(took, n=100)[-1]
    rate = len(took) / seconds
    return f"{path:<32} {rate:>10,.0f} {1e3 * median:>6.1f} ms {1e3 * slow:>6.1f} ms {size:>8,}"


if __name__ == "__main__":
    main()
