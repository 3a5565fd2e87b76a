#!/usr/bin/env python3
"""Measures how many cached forecasts a second the page's server answers; prints one line a route.

    python scripts/bench_app.py                 # a demo run is trained first, once, under a passing folder
    python scripts/bench_app.py --run runs/aligned --source live --seconds 10

The server is `python -m v8 app` in a process of its own; clients are threads of this one, each with a
connection that it keeps, on the same cores. The first answer, for which a forecast is made, is not counted.
"""

from __future__ import annotations

import argparse
import http.client
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from v8.hardware import describe_machine
from v8.storage import passing_folder

SERIES = "BTCUSDT-15m"


def main() -> None:
    options = parsed()
    with passing_folder("v8-bench-app") as folder:
        run = options.run or trained(folder)
        with served(run, options.source) as address:
            print(f"machine: {', '.join(f'{name} {value}' for name, value in describe_machine().items())}")
            print(f"command: python scripts/bench_app.py {' '.join(sys.argv[1:])}".rstrip())
            print(f"{'address':<32} {'requests/s':>10} {'median':>9} {'99 %':>9} {'bytes':>8}")
            for path in (f"/api/forecast/{SERIES}", f"/part/{SERIES}", "/", "/api/health"):
                print(line(path, *measured(address, path, options.seconds, options.clients)))


def parsed() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--run", type=Path, help="a run that has BTCUSDT-15m (default: one is trained)")
    words.add_argument("--source", default="demo", help="where candles come from (default: demo)")
    words.add_argument("--seconds", type=float, default=5.0, help="for each address (default: 5)")
    words.add_argument("--clients", type=int, default=4, help="connections at the same time (default: 4)")
    return words.parse_args()


def trained(folder: Path) -> Path:
    """Train the demo series once, on a tiny budget."""
    words = ["run", "--source", "demo", "--smoke", "--series", SERIES, "--runs", str(folder)]
    subprocess.run([sys.executable, "-m", "v8", *words], check=True, stdout=subprocess.DEVNULL)
    return folder / "aligned-smoke"


@contextmanager
def served(run: Path, source: str) -> Iterator[str]:
    """Serve a run on a free port until the block ends, and return host and port."""
    words = [sys.executable, "-m", "v8", "app", str(run), "--source", source, "--port", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.readline() if process.stderr else ""
        found = re.search(r"http://[^/]*/", said)
        if found is None:
            raise SystemExit(said.strip() or "error: the server did not start")
        try:
            yield urlsplit(found[0]).netloc
        finally:
            process.terminate()


def measured(address: str, path: str, seconds: float, num_clients: int) -> tuple[list[float], float, int]:
    """Ask for one path from several connections.

    Returns:
        Seconds of every answer, seconds in all, bytes of an answer.
    """
    size = len(asked(http.client.HTTPConnection(address, timeout=60), path))
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
    connection = http.client.HTTPConnection(address, timeout=60)
    while (begun := time.perf_counter()) < until:
        asked(connection, path)
        took.append(time.perf_counter() - begun)
    connection.close()


def asked(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise SystemExit(f"error: {path} was answered with {answer.status}")
    return content


def line(path: str, took: list[float], seconds: float, size: int) -> str:
    median, slow = statistics.median(took), statistics.quantiles(took, n=100)[-1]
    rate = len(took) / seconds
    return f"{path:<32} {rate:>10,.0f} {1e3 * median:>6.1f} ms {1e3 * slow:>6.1f} ms {size:>8,}"


if __name__ == "__main__":
    main()
