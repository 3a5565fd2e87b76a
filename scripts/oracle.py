#!/usr/bin/env python
"""Check that a change left every number as it was: record a checkout before and after it, and compare.

    python scripts/oracle.py record OUT [--checkout DIR] [--archive DIR] [--only STEP ...]
    python scripts/oracle.py compare BEFORE AFTER

`record` runs the command line of DIR (this checkout by default, with DIR/.venv where there is one) in
float32 with loops compiled stepwise: runs of four profiles, with --archive one on real candles, too, a
back-test of two folds, forecasts into a ledger through an update, and a repository published to a Hub on
loopback, pulled and forecast from. Their files lie in OUT; OUT/digests.json has a sha256 a file and a
weight. Times, speeds, memory, versions and the machine are left out; of a page the text is compared, of a
ledger the rows. `compare` names what differs and what only one of them has, and then exits with status 1.
"""

# ruff: noqa: E402 - the parts of the tests are next to this folder
import argparse
import hashlib
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests/parts"), str(REPOSITORY / "tests/publish/hub")]

import h5py
import numpy as np
import pandas as pd
from exchange_api import ExchangeApi
from later_candles import BEGIN_S, with_future
from loopback import WRITE_TOKEN, LoopbackHub
from watched_replay import ledger_rows

FIXED = ["--device", "cpu", "--workers", "1"]
EXACT = ["--precision", "float32"]
RUNS = {
    "aligned": "--profile aligned --smoke --source demo --series BTCUSDT-15m --series ETHUSDT-1h",
    "frontier": "--profile frontier --bars 2500 --epochs 3 --source demo --series BTCUSDT-1h"
    " --series ETHUSDT-15m --series SOLUSDT-1h",
    "v4_gru": "--profile v4_gru --smoke --source demo --series BTCUSDT-15m",
    "range_paths": "--profile range_paths --bars 2500 --source demo --series BTCUSDT-1h --series XRPUSDT-15m",
}
LIVE_SERIES = "BTCUSDT-1h"
CLOSES = 4
"""Closes forecast before an update, and after it."""

CHANGING = {"created_at", "seconds", "versions", "machine", "command", "peak_memory_bytes", "windows_per_s"}
CHANGING |= {"peak_process_bytes", "place", "revision"}
CHANGING |= {"format"}
PAGE = "page: "
"""Begins the name of a text, whose words may change."""
LEFT_OUT = {"timing.json", "manifest.json"}
QUANTITY = re.compile(r"\b[\d.,]+ ((ms|s|min|h|B|KB|MB|GB|GFLOP/s|windows/s)\b|毫秒|秒|分鐘|小時)")
TODAY = re.compile(r"20(2[6-9]|[3-9]\d)-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?|python -m v8 \S+ [^<\"]*")


def record(wanted: argparse.Namespace) -> None:
    """Run every step, and write down what it left."""
    wanted.out.mkdir(parents=True, exist_ok=True)
    steps: dict[str, Callable[[Product], None]] = {
        name: partial(run, words=words) for name, words in RUNS.items()
    }
    if wanted.archive:
        steps["real"] = partial(real, archive=wanted.archive)
    steps |= {"backtest": backtest, "live": live}
    for name, step in steps.items():
        if wanted.only and name not in wanted.only:
            continue
        place = wanted.out / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        step(Product(wanted.checkout.resolve(), place, wanted.out))
        print(f"{name}: done", flush=True)
    digests = dict(sorted(pair for path in files(wanted.out) for pair in digest(path, wanted.out)))
    (wanted.out / "digests.json").write_text(json.dumps(digests, indent=1))
    print(f"{len(digests)} digests in {wanted.out / 'digests.json'}")


class Product:
    """The command line of a checkout, in a folder of its own."""

    def __init__(self, checkout: Path, place: Path, out: Path) -> None:
        self.place = place
        self.out = out
        self.checkout = checkout
        own = checkout / ".venv/bin/python"
        self.python = str(own if own.exists() else sys.executable)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(checkout),
            "V8_HOME": str(out.resolve().parent / f"{out.name}-home"),
            "XLA_FLAGS": "--xla_cpu_enable_fast_math=false",  # a user's own: none are chosen by measuring
            "NO_PROXY": "127.0.0.1",
            "COLUMNS": "120",
        }

    def call(self, *words: str, saved: str | None = None, program: Path | None = None) -> str:
        """Call a command to its end; what it prints is kept as the file `saved`."""
        start = [str(program)] if program else ["-m", "v8"]
        completed = subprocess.run(
            [self.python, *start, *words],
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode:
            sys.exit(f"{' '.join(words)}: exit {completed.returncode}\n{completed.stdout}{completed.stderr}")
        if saved:
            (self.place / saved).write_text(completed.stdout)
        return completed.stdout


def run(product: Product, *, words: str) -> None:
    """Train and evaluate, then forecast."""
    product.call("run", *words.split(), *FIXED, *EXACT)
    (path,) = (product.place / "runs").iterdir()
    folders = [entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    series = min(folders)
    product.call(
        "predict", str(path), "--series", series, "--source", "demo", "--format", "json", saved="now.json"
    )


def real(product: Product, *, archive: Path) -> None:
    """Train on the candles of an archive."""
    handler = partial(_Silent, directory=str(archive.resolve()))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        product.environment["V8_VISION_URL"] = f"http://127.0.0.1:{server.server_port}"
        words = ["--profile", "frontier", "--bars", "4000", "--epochs", "3", "--series", "ETHUSDT-15m"]
        product.call("run", *words, "--source", "vision", *FIXED, *EXACT)
        server.shutdown()


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def backtest(product: Product) -> None:
    """Judge two folds."""
    words = ["--profile", "frontier", "--folds", "2", "--history", "4000", "--bars", "2500", "--epochs", "2"]
    product.call("backtest", *words, "--series", "BTCUSDT-1h", "--source", "demo", "--out", "tested", *FIXED)


def live(product: Product) -> None:
    """Forecast closes of an exchange before and after an update; publish what came of it."""
    candles = with_future(LIVE_SERIES, 4000, 3 * CLOSES)
    candles.iloc[:, :4] *= 1e6  # the exchange writes no exponents
    moved = product.checkout / "tests/parts/moved_clock.py"
    ledger = product.place / "ledger.sqlite"
    with ExchangeApi(now_s=BEGIN_S + 10) as exchange:
        exchange.put(LIVE_SERIES, candles)
        product.environment |= {"V8_REST_URL": exchange.url, "V8_VISION_URL": exchange.url}
        call = partial(product.call, program=moved)
        words = ["--profile", "frontier", "--bars", "2500", "--epochs", "2", "--series", LIVE_SERIES]
        call("run", *words, "--source", "live", *FIXED, *EXACT)
        (path,) = (product.place / "runs").iterdir()
        for number in range(2 * CLOSES):
            if number == CLOSES:
                call("update", str(path), "--when", "always", "--source", "live", *FIXED, saved="update.txt")
            exchange.now_s = BEGIN_S + 10 + 3600 * (number + 1)
            call("forecast", str(path), "--source", "live", "--ledger", str(ledger))
        call("track", str(path), "--ledger", str(ledger), "--format", "json", saved="track.json")
        publish(product, path)


def publish(product: Product, path: Path) -> None:
    """Publish a run, keep what the Hub then holds, pull it, and forecast from it."""
    with LoopbackHub() as server:
        product.environment |= {"HF_ENDPOINT": server.url, "HF_TOKEN": WRITE_TOKEN, "HF_HUB_DISABLE_XET": "1"}
        product.environment["HF_HOME"] = str(product.place / "hf")
        product.call("publish", str(path), "--repo", "someone/fleet")
        for name, content in server.files("someone/fleet").items():
            to = product.place / "published" / name
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(content)
        words = ["--series", LIVE_SERIES, "--source", "live", "--format", "json"]
        moved = product.checkout / "tests/parts/moved_clock.py"
        product.call("predict", "--repo", "someone/fleet", *words, saved="pulled.json", program=moved)
    shutil.rmtree(product.place / "hf")


def files(out: Path) -> Iterator[Path]:
    """List the files that count."""
    for path in sorted(out.rglob("*")):
        if path.is_file() and path.parent != out and path.name not in LEFT_OUT and ".lock" not in path.name:
            yield path


def digest(path: Path, out: Path) -> Iterator[tuple[str, str]]:
    """Give the digests of a file by name: one, or one a weight and one of the rest."""
    name = str(path.relative_to(out))
    match path.suffix:
        case ".keras":
            with zipfile.ZipFile(path) as inside:
                yield f"{name}:config", sha256(inside.read("config.json"))
                with h5py.File(io.BytesIO(inside.read("model.weights.h5"))) as weights:
                    digests: list[tuple[str, str]] = []
                    weights.visititems(partial(_weight, digests))
                    yield from ((f"{name}:{weight}", value) for weight, value in digests)
        case ".json":
            content = json.loads(path.read_text())
            yield name, sha256(json.dumps(steady(content), sort_keys=True).encode())
        case ".csv":
            table = pd.read_csv(path)
            columns = [
                column for column in table.columns if not re.search("seconds|windows_per_s|time", column)
            ]
            yield name, sha256(table[columns].to_csv().encode())
        case ".npz":
            with np.load(path) as arrays:
                for key in arrays.files:
                    yield f"{name}:{key}", sha256(np.ascontiguousarray(arrays[key]).tobytes())
        case ".html" | ".md" | ".txt":
            yield f"{PAGE}{name}", sha256(text_of(path.read_text()).encode())
        case ".js":  # a page in another language: a call with a JSON document
            document = path.read_text().partition("(")[2].rpartition(")")[0]
            yield name, sha256(json.dumps(steady(json.loads(document)), sort_keys=True).encode())
        case ".sqlite":
            rows = {
                table: [[str(cell) for cell in row] for row in rows]
                for table, rows in ledger_rows(path).items()
            }
            yield name, sha256(text_of(json.dumps(rows)).encode())
        case ".gz" | ".png" | ".sqlite-wal" | ".sqlite-shm":
            pass
        case _:
            yield name, sha256(path.read_bytes())


def _weight(digests: list[tuple[str, str]], name: str, item: Any) -> None:
    if isinstance(item, h5py.Dataset):
        digests.append((name, sha256(np.ascontiguousarray(item[()]).tobytes())))


def sha256(content: bytes) -> str:
    """Return the digest in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def steady(value: Any) -> Any:
    """Leave out of a JSON document what no two runs share."""
    match value:
        case dict():
            return {key: steady(value) for key, value in value.items() if key not in CHANGING}
        case list():
            return [steady(value) for value in value]
        case str():
            return text_of(value)
    return value


def text_of(page: str) -> str:
    """Return the words of a page, with times of today, durations and sizes as one word each."""
    bare = re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", TODAY.sub("TODAY", QUANTITY.sub("QUANTITY", html.unescape(bare))))


def digests_of(out: Path, *, has_pages: bool) -> dict[str, str]:
    """Return the digests of a recording."""
    pairs = (pair for path in files(out) for pair in digest(path, out))
    return {name: value for name, value in sorted(pairs) if has_pages or not name.startswith(PAGE)}


def compare(wanted: argparse.Namespace) -> None:
    """Name what differs between two recordings."""
    before = digests_of(wanted.before, has_pages=wanted.pages)
    after = digests_of(wanted.after, has_pages=wanted.pages)
    changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    for title, names in (
        ("differs", changed),
        ("only before", sorted(before.keys() - after.keys())),
        ("only after", sorted(after.keys() - before.keys())),
    ):
        for name in names:
            print(f"{title}: {name}")
    print(f"{len(before)} digests before, {len(after)} after: {len(changed)} differ")
    if changed or before.keys() != after.keys():
        sys.exit(1)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record")
    recording.set_defaults(call=record)
    recording.add_argument("out", type=Path)
    recording.add_argument("--checkout", type=Path, default=REPOSITORY)
    recording.add_argument("--archive", type=Path, help="candles laid out as the exchange's archive")
    recording.add_argument("--only", nargs="*", help="steps to take again")
    comparing = commands.add_parser("compare")
    comparing.set_defaults(call=compare)
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--pages", action="store_true", help="compare the words of pages and texts, too")
    wanted = parser.parse_args()
    wanted.call(wanted)


if __name__ == "__main__":
    main()
