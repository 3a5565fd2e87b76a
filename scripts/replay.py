#!/usr/bin/env python
"""Days of the present with real candles: forecast --every, ledger, update, page and API, killed on the way.

    python scripts/replay.py --archive DIR [--days 2] [--kills 10] [--epochs 2] [--age 0] [--profile frontier]

DIR is laid out as the exchange's archive. An exchange on loopback serves its candles at a time that this
program moves from close to close. A run is trained at the first moment; then `forecast --every` and `app`
follow, each a process of its own. In the middle of each day `update RUN --when always` trains a challenger,
each day of another series. After every close the ledger must hold the newest forecast of every series; every
few closes the API must tell that forecast, by the model that wrote it. All is done twice from one copy of the
run, undisturbed and with kills: both ledgers must be equal, row for row.
"""

# ruff: noqa: E402 - the package and the parts of its tests lie beside this folder
from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pandas as pd

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests/parts")]

from exchange_api import ExchangeApi
from watched_replay import AFTER_CLOSE_S, MOVED_CLOCK, ledger_rows

from v8.ledger.database import Ledger
from v8.market.series import Series
from v8.market.sources.vision import VisionSource

NAMES = ("BTCUSDT-15m", "SOLUSDT-15m", "ETHUSDT-1h")
BEGIN = pd.Timestamp("2024-09-03T12:00", tz="UTC")
END_OF_ARCHIVE = pd.Timestamp("2024-09-06T00:00", tz="UTC")
CLOSE_S = 900
DAY_S = 86_400
NUM_BARS = 12_000
CLOSES_BETWEEN_LOOKS = 24
LIMIT_S = 300.0


def main() -> None:
    """Replay twice, compare, print what was seen."""
    wanted = _arguments()
    with tempfile.TemporaryDirectory() as place, ExchangeApi() as exchange:
        _fill(exchange, wanted.archive)
        exchange.now_s = BEGIN.timestamp() + 5 - wanted.age * DAY_S
        folder = Path(place)
        trained = Replay(folder / "trained", exchange)
        trained.call("run", "--profile", wanted.profile, "--source", "live", "--epochs", str(wanted.epochs))
        ledgers = []
        for kills in (0, wanted.kills):
            shutil.copytree(trained.folder, replayed := folder / f"{kills}-kills")
            replay = Replay(replayed, exchange)
            exchange.now_s = BEGIN.timestamp() + 5
            replay.go(wanted.days, random.Random(7), kills)
            ledgers.append(ledger_rows(replay.ledger))
            told = ", ".join(f"{len(rows)} {name}" for name, rows in ledgers[-1].items())
            print(f"{kills} kills: {told}", flush=True)
        print(replay.call("track", replay.run, "--ledger", str(replay.ledger)))
        assert ledgers[0] == ledgers[1], "the ledgers differ"
        print("Both ledgers are equal, row for row.")


class Replay:
    """A user's folder, and what runs in it.

    Args:
        folder: Run folder, caches and ledger lie in it.
        exchange: What everybody asks.
    """

    def __init__(self, folder: Path, exchange: ExchangeApi) -> None:
        self.folder, self.exchange = folder, exchange
        folder.mkdir(exist_ok=True)
        self.ledger = folder / "runs/ledger.sqlite"
        self.env = {
            **os.environ,
            "V8_HOME": str(folder / "home"),
            "V8_REST_URL": exchange.url,
            "V8_VISION_URL": exchange.url,
            "NO_PROXY": "127.0.0.1",
        }

    @property
    def run(self) -> str:
        """The run folder, relative to the user's."""
        (run,) = (self.folder / "runs").glob("*/run.json")
        return str(run.parent.relative_to(self.folder))

    def call(self, command: str, *words: str) -> str:
        """Call a command to its end, with all series where none is named."""
        chosen = [word for name in NAMES for word in ("--series", name)] if command == "run" else []
        done = subprocess.run(
            [sys.executable, str(MOVED_CLOCK), command, *words, *chosen],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command that goes on."""
        return subprocess.Popen(
            [sys.executable, str(MOVED_CLOCK), *words],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def go(self, num_days: int, draws: random.Random, num_kills: int) -> None:
        """Move the clock through the days."""
        closes = range(num_days * DAY_S // CLOSE_S)
        killed = {number: draws.uniform(0, 1.5) for number in draws.sample(closes, num_kills)}
        watch = partial(self.start, "forecast", self.run, "--every", "--ledger", str(self.ledger))
        watching = watch()
        serving = self.start("app", self.run, "--source", "live", "--port", "0", "--ledger", str(self.ledger))
        assert serving.stdout
        url = next(line for line in serving.stdout if "http" in line).split("http", 1)[1].split()[0]
        for number in closes:
            self.exchange.now_s = BEGIN.timestamp() + number * CLOSE_S + AFTER_CLOSE_S
            if number in killed:
                time.sleep(killed[number])
                watching.kill()
                watching.communicate()
                watching = watch()
            self._wait(watching)
            if number % CLOSES_BETWEEN_LOOKS == 0:
                self._look(f"http{url}")
            if number % (DAY_S // CLOSE_S) == DAY_S // CLOSE_S // 2:
                name = NAMES[number // (DAY_S // CLOSE_S) % len(NAMES)]
                print(self.call("update", self.run, "--when", "always", "--series", name), flush=True)
        for process in (watching, serving):
            process.send_signal(signal.SIGINT)
            process.communicate()

    def _wait(self, watching: subprocess.Popen[str]) -> None:
        end = time.monotonic() + LIMIT_S
        while not all(map(self._is_done, NAMES)):
            if time.monotonic() > end or watching.poll() is not None:
                raise TimeoutError(f"not done at {self.exchange.now_s}: {watching.poll()}")
            time.sleep(0.05)

    def _is_done(self, name: str) -> bool:
        if not self.ledger.exists():
            return False
        with Ledger.open(self.ledger) as ledger:
            place, newest_s = ledger.place(self.folder / self.run), self._newest_s(name)
            waiting = [entry.due_s for entry in ledger.pending(place, name).values()]
            return ledger.newest(place, name) == newest_s and min(waiting) > newest_s

    def _newest_s(self, name: str) -> int:
        bar_s = Series.parse(name).bar_s
        return int(self.exchange.now_s) // bar_s * bar_s

    def _look(self, url: str) -> None:
        """Compare what the API tells with the ledger, and look whether the page is there."""
        for name in NAMES:
            newest = pd.Timestamp(self._newest_s(name), unit="s", tz="UTC").strftime("%Y-%m-%dT%H:%M:%SZ")
            told = self._told(f"{url}api/forecast/{name}", newest)
            with Ledger.open(self.ledger) as ledger:
                pending = ledger.pending(ledger.place(self.folder / self.run), name).values()
            (entry,) = (one for one in pending if one.issued_for_s == self._newest_s(name))
            assert told["model"]["sha256"] in repr(entry.issuer), name
            _json(f"{url}api/track/{name}")
        assert b"<title>" in urllib.request.urlopen(url, timeout=60).read()

    def _told(self, url: str, newest: str) -> Any:
        """Ask until the server has looked at the clock, which it does now and then only."""
        end = time.monotonic() + LIMIT_S
        while (told := _json(url))["first_bar"] != newest:
            if time.monotonic() > end:
                raise TimeoutError(f"{url}: {told['first_bar']} instead of {newest}")
            time.sleep(0.5)
        return told


def _json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


def _fill(exchange: ExchangeApi, archive: Path) -> None:
    """Put the archive's candles into the exchange."""
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(archive))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = VisionSource(base_url=f"http://127.0.0.1:{server.server_port}", now=END_OF_ARCHIVE.timestamp)
        for name in NAMES:
            exchange.put(name, source.candles(Series.parse(name), NUM_BARS).to_frame())
        server.shutdown()


def _arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--archive", type=Path, required=True, help="candles in the exchange's layout")
    parser.add_argument("--days", type=int, default=2, help="days to replay")
    parser.add_argument(
        "--age", type=int, default=0, help="days before the first one that the run is trained"
    )
    parser.add_argument("--kills", type=int, default=10, help="kills of forecast --every")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of every training")
    parser.add_argument("--profile", default="frontier", help="what to train")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
