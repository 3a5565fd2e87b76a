"""Replay days with real candles: forecast --every, ledger, update, page and API, undisturbed and killed.

    python tests/drills/replay.py --archive DIR [--days 2] [--kills 10] [--epochs 2] [--bars 8000] [--age 0]

DIR has the layout of the exchange's archive. An exchange on loopback serves its candles at a time that this
program moves from close to close. A run is trained `--age` days before the first close; then
`forecast --every` and `app` follow it, each a process of its own. In the middle of each day
`update RUN --when always` trains a challenger for every series; with few bars neither model learns much, and
either may win. After every close the ledger must hold the newest forecast of every series; every few closes,
and an hour after an update, the API must return that forecast, by the model that wrote it. Everything is done
twice from one copy of the run, without and with kills: both ledgers must be equal, row for row.
"""

# ruff: noqa: E402 - the package and the parts of its tests are next to this folder
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

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests/parts")]

from exchange_api import ExchangeApi
from watched_replay import MOVED_CLOCK, WatchedReplay, ledger_rows

from v8.annexes.live.ledger.database import Ledger
from v8.annexes.live.ledger.entries import place_name
from v8.annexes.live.promotion.decisions import read_promotions
from v8.data.market.series import Series
from v8.data.market.sources.vision import VisionSource

NAMES = ("BTCUSDT-15m", "SOLUSDT-15m", "ETHUSDT-1h")
BEGIN = pd.Timestamp("2024-09-03T12:00", tz="UTC")
END_OF_ARCHIVE = pd.Timestamp("2024-09-06T00:00", tz="UTC")
DAY_S = 86_400
CLOSES_OF_DAY = DAY_S // 900
NUM_BARS = 12_000
"""More than a training and the days to come take."""

CLOSES_BETWEEN_LOOKS = 24
CLOSES_OF_SLOWEST = 4
"""By so many closes after an update, what serves since then has forecast every series."""

ABOUT = 4
"""Where a row of forecasts says who issued it, see `ledger_rows`."""

LIMIT_S = 600.0
"""Seconds that a close may take on a busy machine, start and compilation included."""


def main() -> None:
    """Replay twice, compare, print what was seen."""
    wanted = _arguments()
    # A shell makes what it starts in the background deaf to Ctrl-C, and that goes on to its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as place, ExchangeApi() as exchange:
        _fill(exchange, wanted.archive, NUM_BARS + wanted.age * CLOSES_OF_DAY)
        exchange.now_s = BEGIN.timestamp() + 5 - wanted.age * DAY_S
        folder = Path(place)
        trained = Replay(folder / "trained", exchange)
        budget = ["--epochs", str(wanted.epochs), "--bars", str(wanted.bars)]
        trained.call("run", "--profile", wanted.profile, "--source", "live", *budget)
        ledgers = []
        for kills in (0, wanted.kills):
            replayed = folder / f"{kills}-kills"
            shutil.copytree(trained.folder, replayed)
            replay = Replay(replayed, exchange)
            exchange.now_s = BEGIN.timestamp() + 5
            replay.go(wanted.days, random.Random(7), kills)
            ledgers.append(_without_digests(ledger_rows(replay.ledger)))
            counts = ", ".join(f"{len(rows)} {name}" for name, rows in ledgers[-1].items())
            print(f"{kills} kills: {counts}; champions challenged: {replay.verdicts()}", flush=True)
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
        self.folder = folder
        self.exchange = exchange
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

    def verdicts(self) -> str:
        """Return how the challenges ended."""
        decisions = read_promotions(self.folder / self.run).decisions
        names = {
            name: [decision.series for decision in decisions if decision.verdict == name]
            for name in ("kept", "replaced")
        }
        return "; ".join(f"{len(series)} {name} ({', '.join(series)})" for name, series in names.items())

    def call(self, command: str, *words: str) -> str:
        """Call a command to its end, with all series where none is named."""
        chosen = [word for name in NAMES for word in ("--series", name)] if command == "run" else []
        completed = subprocess.run(
            [sys.executable, str(MOVED_CLOCK), command, *words, *chosen],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode:
            sys.exit(f"{command}: exit {completed.returncode}\n{completed.stdout}{completed.stderr}")
        return completed.stdout

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
        num_closes = num_days * CLOSES_OF_DAY
        kills = {number: draws.uniform(0, 1.5) for number in draws.sample(range(num_closes), num_kills)}
        watch = partial(self.start, "forecast", self.run, "--every", "--ledger", str(self.ledger))
        begin_s = BEGIN.timestamp()
        place = place_name(self.folder / self.run, self.ledger)
        watched = WatchedReplay(self.exchange, self.ledger, place, watch, begin_s=begin_s, limit_s=LIMIT_S)
        serving = self.start("app", self.run, "--source", "live", "--port", "0", "--ledger", str(self.ledger))
        assert serving.stdout
        url = next(line for line in serving.stdout if "http" in line).split("http", 1)[1].split()[0]
        watched.go(NAMES, num_closes, kills, partial(self._at_close, watched, f"http{url}"))
        for process in (watched.process, serving):
            process.send_signal(signal.SIGINT)
            process.communicate()

    def _at_close(self, watched: WatchedReplay, url: str, number: int) -> None:
        """Look at the API now and then, and challenge every champion at noon of each day."""
        since_noon = number % CLOSES_OF_DAY - CLOSES_OF_DAY // 2
        if number % CLOSES_BETWEEN_LOOKS == 0 or since_noon == CLOSES_OF_SLOWEST:
            self._look(watched, url)
        if since_noon == 0:
            print(self.call("update", self.run, "--when", "always"), flush=True)

    def _look(self, watched: WatchedReplay, url: str) -> None:
        """Compare the answers of the API with the ledger, and look whether the page is there."""
        for name in NAMES:
            newest_s = watched.newest_s(name)
            newest = pd.Timestamp(newest_s, unit="s", tz="UTC").strftime("%Y-%m-%dT%H:%M:%SZ")
            answer = self._await_forecast(f"{url}api/forecast/{name}", newest)
            with Ledger.open(self.ledger) as ledger:
                pending = ledger.pending(watched.place, name).values()
            (entry,) = (entry for entry in pending if entry.issued_for_s == newest_s)
            assert answer["model"]["sha256"] in repr(entry.issuer), name
            _json(f"{url}api/track/{name}")
        with urllib.request.urlopen(url, timeout=60) as page:
            assert b"<title>" in page.read()

    def _await_forecast(self, url: str, newest: str) -> Any:
        """Ask until the server has looked at the clock, which it does now and then only."""
        end = time.monotonic() + LIMIT_S
        answer = _json(url)
        while answer["first_bar"] != newest:
            if time.monotonic() > end:
                raise TimeoutError(f"{url}: {answer['first_bar']} instead of {newest}")
            time.sleep(0.5)
            answer = _json(url)
        return answer


def _without_digests(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Leave out the digests of model files.

    Each replay trains its own challengers. Their weights are equal to the bit, and so must forecasts be,
    but Keras writes into the file when it was saved.
    """
    forecasts = []
    for row in rows["forecasts"]:
        details = json.loads(row[ABOUT])
        del details["model_sha256"]
        forecasts.append((*row[:ABOUT], details, *row[ABOUT + 1 :]))
    return {**rows, "forecasts": forecasts}


def _json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


def _fill(exchange: ExchangeApi, archive: Path, num_bars: int) -> None:
    """Put the archive's candles into the exchange."""
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(archive))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ["V8_VISION_URL"] = f"http://127.0.0.1:{server.server_port}"
        source = VisionSource(now=END_OF_ARCHIVE.timestamp)
        for name in NAMES:
            exchange.put(name, source.candles(Series.parse(name), num_bars).to_frame())
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
    parser.add_argument("--bars", type=int, default=8_000, help="candles of every training")
    parser.add_argument("--profile", default="frontier", help="what to train")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
