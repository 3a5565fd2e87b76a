"""Inputs of every kind: a valid one, randomly changed with knowledge of its structure.

A case consists of files and words. `fuzzing.targets` says which kinds there are, and passes them to v8.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import math
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from fuzzing.days import DAY, OURS, changed_day, sound_day
from fuzzing.given import TABLE, candles_told, covariates
from v8.data.market.column_names import ARCHIVE_COLUMNS
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.forecaster.metadata import PLAN_FILE
from v8.profile.profile import config_path, load_profile
from v8.publish.hub.staging import stage_run
from v8.runs.backtest import Backtest, CandleSpan, lay_folds

SERIES = Series("BTCUSDT", "15m")
MONTH = "2024-12"

_ODD_WORDS = """
é 日本 🙂 null true yes NaN inf -inf 1e999 1e-999 -0 0x10 010 1_0 1:30 2024-13-45 300000-01-01 0001-01-01
../../x /etc/passwd http://u:p@h/ << *a &a !!python/name:os.system = --- { ] " ' | % <script> {0} %s $HOME
BTCUSDT-1h BTCUSDT BTCUSDT-15m ohlc close lstm_dense
"""
_ODD_SIGNS = ("", " ", "\t", "\0", "\n", "\r", "\x1b[31m\x07", "\u202e", "\ufeff", "\ud800")
_LONG_TEXTS = ("a" * 300, "a" * 5_000, "[" * 3_000, "9" * 30, "9" * 5_000)
ODD_TEXTS = (*_ODD_SIGNS, *_ODD_WORDS.split(), *_LONG_TEXTS)
_ODD_WHOLES = (0, 1, -1, 2, 7, 1518048000)
_POWERS = (2**31, 2**31 - 1, 2**63, 2**64, -(2**63), 10**13, 10**18, 10**30, 10**400)
_ODD_FLOATS = (0.0, -0.0, 0.5, 1e-300, 5e-324, 1e18, 1e300, sys.float_info.max, math.inf, -math.inf, math.nan)
ODD_NUMBERS = (*_ODD_WHOLES, *_POWERS, *_ODD_FLOATS)
_ODD_TREES: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"a": {}}, [None], [1, "a"], {"": 0})
ODD_VALUES: tuple[Any, ...] = (*ODD_TEXTS, *ODD_NUMBERS, *_ODD_TREES)


@dataclass(frozen=True)
class Case:
    """One input.

    Args:
        name: What was changed.
        files: Content by path within the folder of the case.
        words: Words of a command line, or a seed.
        kind: A key of `KINDS`.
    """

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    kind: str = ""

    def to_json(self) -> str:
        """Write it as a file that `--replay` reads."""
        files = {path: base64.b64encode(content).decode() for path, content in self.files.items()}
        return json.dumps({**vars(self), "files": files})

    @classmethod
    def from_json(cls, text: str) -> Case:
        tree = json.loads(text)
        files = {path: base64.b64decode(content) for path, content in tree["files"].items()}
        return cls(**{**tree, "files": files, "words": tuple(tree["words"])})


def seed_case(random: Random) -> Case:
    """Make a case of which the input is drawn where it is used."""
    return Case("seed", words=(str(random.randrange(2**31)),))


def changed_bytes(random: Random, content: bytes) -> bytes:
    """Cut, flip, repeat, remove or insert."""
    start = random.randrange(len(content) + 1)
    stop = min(len(content), start + random.choice((1, 1, 4, 60, 2_000)))
    junk = random.choice((b"\0", b"\xff\xfe", b"\r", b'"', b"\n\n", b";", b"[" * 3_000, random.randbytes(20)))
    return random.choice(
        (
            content[:start],
            content[start:],
            content[:start] + content[stop:],
            content[:start] + junk + content[start:],
            content[:start] + junk + content[stop:],
            content[:stop] + content[start:],
            content[:start] + random.choice((b"x", b"1,", b" ", b"[")) * 10_000 + content[stop:],
        )
    )


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def changed_tree(random: Random, tree: Any) -> Any:
    """Drop, replace, nest, scale or move one to three values of a tree, or rename a key."""
    tree = json.loads(json.dumps(tree))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            return random.choice(ODD_VALUES)
        # By depth first, so that long lists of numbers do not hide the keys above them.
        container, key = random.choice(
            random.choice((places[:20], places, [p for p in places if isinstance(p[0], dict)]))
        )
        value = container[key]
        change = random.randrange(7)
        if change == 0:
            container.pop(key)
        elif change == 1:
            container[key] = json.loads(json.dumps(random.choice(random.choice(places))))
        elif change == 2:
            container[key] = functools.reduce(
                lambda inner, _: [inner], range(random.choice((1, 5, 60))), value
            )
        elif change == 3 and isinstance(value, int | float) and not isinstance(value, bool):
            container[key] = random.choice(
                (-value, value * 10, value + 1, value * 1e300, str(value), value / 3)
            )
        elif change == 4 and isinstance(container, dict):
            container[random.choice(ODD_TEXTS)] = container.pop(key)
        elif change == 5 and isinstance(container, list):
            container[:] = container * random.choice((2, 3, 20))
        else:
            container[key] = random.choice(ODD_VALUES)
    return tree


# --- profiles --------------------------------------------------------------------------------------------


def profile_case(random: Random) -> Case:
    name = random.choice(("aligned", "frontier", "stable", "v7", "universe"))
    text = config_path(name).read_text("utf-8")
    method = random.choice(("tree", "tree", "line", "token", "bytes", "yaml"))
    if method == "tree":
        tree = changed_tree(random, yaml.safe_load(text))
        content = yaml.dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")
    elif method == "bytes":
        content = changed_bytes(random, text.encode())
    elif method == "yaml":
        content = (text + random.choice(_YAML)).encode("utf-8", "surrogatepass")
    else:
        content = _changed_text(random, text, by_line=method == "line").encode("utf-8", "surrogatepass")
    if random.random() < 0.05:
        content = content.decode("utf-8", "replace").encode(random.choice(("utf-16", "utf-8-sig", "utf-32")))
    return Case(f"{name}, {method}", {f"{name}.yaml": content})


_YAML = (
    "a: &a [*a]\n",
    "? [a, b]\n",
    "x: " + "[" * 3_000,
    "x: " + "{a: " * 500,
    "- " * 900,
    "x: !!binary aaaa\n",
    "%YAML 1.9\n---\n",
    'x: "\\UFFFFFFFF"\n',
    "x: |\n" + " a\n" * 9_000,
    "seed: " + "9" * 140_000,
    "\tx: 1\n",
    "".join(f"k{number}: 1\n" for number in range(4_000)),
    "b: &b [1,1]\n" + "".join(f"c{n}: &c{n} [*b,*b]\n" for n in range(99)),
)


def _changed_text(random: Random, text: str, *, by_line: bool) -> str:
    parts = text.splitlines(keepends=True) if by_line else text.split(" ")
    for _ in range(random.choice((1, 1, 2, 5))):
        place = random.randrange(len(parts))
        parts[place : place + random.choice((0, 1, 1))] = random.choice(
            (
                [],
                [random.choice(ODD_TEXTS)],
                [random.choice(parts)],
                [f"{parts[place]}{random.choice(ODD_TEXTS)}"],
            )
        )
    return ("" if by_line else " ").join(parts)


# --- candles ---------------------------------------------------------------------------------------------


@functools.cache
def _candles() -> pd.DataFrame:
    frame = open_source("demo").candles(SERIES, 200).to_frame().reset_index()
    return frame.assign(open_time=frame["open_time"].astype("datetime64[ms, UTC]").astype("int64"))


def _cells(random: Random) -> list[list[str]]:
    """Return a table of text: a header, or the columns of the archive, and rows, some cells odd."""
    frame = _candles().head(random.choice((1, 5, 60, 200)))
    rows = frame.astype(str).to_numpy().tolist()
    if random.random() < 0.3:
        rows = [[*row, *("0" * (len(ARCHIVE_COLUMNS) - len(row)))] for row in rows]
    else:
        rows.insert(0, list(frame.columns))
    for _ in range(random.choice((0, 0, 1, 1, 3, 30))):
        row = random.choice(rows[: random.choice((1, 2, len(rows)))])
        if not row:
            continue
        place = random.randrange(len(row))
        odd = str(random.choice(ODD_VALUES))
        row[place : place + random.choice((0, 1, 1, 1))] = random.choice(
            ([odd], [odd], [], row[place:], [row[0]])
        )
    return rows


def _csv(random: Random) -> bytes:
    separator = random.choice((",", ",", ";", "\t", "|", " "))
    end = random.choice(("\n", "\n", "\r", "\r\n"))
    front = random.choice(("", "", "sep=;", "sep=,", "https://www.example.org", "\n", "#", '"'))
    text = end.join([*([front] if front else []), *(separator.join(row) for row in _cells(random))])
    coding = random.choice(("utf-8",) * 9 + ("utf-8-sig", "utf-16", "latin-1"))
    content = text.encode(coding, "replace")
    return changed_bytes(random, content) if random.random() < 0.3 else content


def _parquet(random: Random) -> bytes:
    frame = odd_frame(random)
    stream = io.BytesIO()
    try:
        frame.to_parquet(stream)
    except Exception:  # noqa: BLE001 - what Parquet cannot hold is no input
        names = [f"{name}{place}" for place, name in enumerate(frame.columns)]
        pq.write_table(pa.table({name: [random.choice(ODD_TEXTS[:8])] * 9 for name in names}), stream)
    content = stream.getvalue()
    return changed_bytes(random, content) if random.random() < 0.5 else content


def odd_frame(random: Random) -> pd.DataFrame:
    """Return candles with columns of other types, names, indices and values."""
    frame = _candles().head(random.choice((0, 1, 5, 200)))
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        name = random.choice([*frame.columns, "symbol", "timeframe", "timestamp", "close"])
        with contextlib.suppress(
            ValueError, TypeError, KeyError, OverflowError
        ):  # of pandas: it stays as it was
            frame = random.choice(_FRAME_CHANGES)(random, frame, name)
    return frame


_COLUMN_TYPES = "str object float32 category bool complex datetime64[s] timedelta64[ns] Int64"


def _typed(random: Random, frame: pd.DataFrame, name: Any) -> pd.DataFrame:
    return frame.assign(**{name: frame[name].astype(random.choice(_COLUMN_TYPES.split()))})


def _valued(random: Random, frame: pd.DataFrame, name: Any) -> pd.DataFrame:
    values = (
        frame[name].astype(object).tolist() if name in list(frame.columns) and frame[name].ndim == 1 else []
    )
    values = values or [1] * len(frame)
    odd = (
        *ODD_VALUES,
        np.datetime64("300000-01-01"),
        pd.NaT,
        pd.Timestamp.max,
        b"1",
        1j,
        object,
        np.zeros(3),
    )
    for place in random.sample(range(len(values)), min(len(values), random.choice((1, 3, 200)))):
        values[place] = random.choice(odd)
    return frame.assign(**{str(name): pd.Series(values, dtype=object, index=frame.index)})


_FRAME_CHANGES: tuple[Callable[[Random, pd.DataFrame, Any], pd.DataFrame], ...] = (
    _typed,
    _typed,
    _valued,
    _valued,
    lambda random, frame, name: frame.drop(columns=name, errors="ignore"),
    lambda random, frame, name: frame.rename(
        columns={name: random.choice(("Open", "date", "open", 0, "x" * 5_000))}
    ),
    lambda random, frame, name: pd.concat([frame, frame.iloc[:, :1]], axis=1),
    lambda random, frame, name: frame.rename_axis(random.choice(("close", "open_time", None, 3))),
    lambda random, frame, name: frame.set_index(list(frame.columns)[: random.choice((1, 2))]),
    lambda random, frame, name: frame.sample(frac=1, random_state=random.randrange(99)),
    lambda random, frame, name: frame.set_axis(pd.MultiIndex.from_product([[0], frame.columns]), axis=1),
    lambda random, frame, name: frame.set_axis(pd.date_range("2024", periods=len(frame), tz="Asia/Tokyo")),
    lambda random, frame, name: frame.set_axis([0] * len(frame)),
)


def candles_case(random: Random) -> Case:
    """Write a file of candles of some kind and name."""
    method = random.choice(("csv", "csv", "csv", "parquet"))
    content = _csv(random) if method == "csv" else _parquet(random)
    files = {f"{random.choice(_FILE_NAMES)}.{method}": content}
    if random.random() < 0.2:
        files |= _archived(random, content, f"{SERIES}-{MONTH}.{method}")
    return Case(method, files)


_FILE_NAMES = (
    *(str(SERIES), str(SERIES), str(SERIES), "BTC_USDT_USDT-15m-futures", f"spot/{SERIES}"),
    *("BTC_USDT_USDT-15m-mark", "BTC_USDT_USDT-8h-funding_rate", f"markPriceKlines/{SERIES}"),
    *("BTCUSDT_15", "BINANCE_BTCUSDT, 15", "BTC-USDT-SWAP-15m", "index_BTCUSDT_15m", "mark-15m"),
)
"""Names of candle files, and of files with other prices."""


def _archived(random: Random, content: bytes, name: str) -> dict[str, bytes]:
    """Pack a file as the exchange archive does, with its checksum or another one."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as pack:
        pack.writestr(random.choice((name, name, "notes.txt")), content)
    path = f"{Path(name).stem}.zip"
    digest = sha256(stream.getvalue()).hexdigest()
    checksum = random.choice((f"{digest}  {path}\n", f"{digest}  {path}\n", f"{digest[::-1]}  {path}", "x"))
    return {path: stream.getvalue(), f"{path}.CHECKSUM": checksum.encode()}


def archive_case(random: Random) -> Case:
    stream = io.BytesIO()
    right = f"{SERIES}-{MONTH}.csv"
    with zipfile.ZipFile(
        stream, "w", random.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_LZMA))
    ) as pack:
        names = random.choice(([right],) * 6 + ([], ["../../x"], [right, "b"], ["a" * 5_000], ["\x1b[31m"]))
        for name in names:
            pack.writestr(name, _csv(random))
    content = stream.getvalue()
    content = changed_bytes(random, content) if random.random() < 0.5 else content
    return Case("zip", {"answer.zip": content})


def odd_candles(random: Random) -> tuple[Any, str, pd.DataFrame]:
    """Return candles as they are handed over, what is wrong with them, and what they are."""
    return *candles_told(random, _candles(), SERIES), _candles()


def covariates_case(random: Random) -> Case:
    content = covariates(random)
    content = changed_bytes(random, content) if random.random() < 0.3 else content
    return Case("csv", {TABLE.file: content})


# --- what v8 wrote ---------------------------------------------------------------------------------------


@functools.cache
def _written(run: Path) -> dict[str, bytes]:
    """Read the files of a run folder by their path, and the manifest it would be published with."""
    files = {str(file.relative_to(run)): file for file in run.rglob("*") if file.is_file()}
    names = [path for path in files if not path.startswith(".") and "report" not in path]
    with TemporaryDirectory() as folder:
        files["manifest.json"] = Path(folder) / "manifest.json"
        stage_run(run, Path(folder), "user/name")
        return {path: files[path].read_bytes() for path in (*names, "manifest.json")}


def record_case(random: Random, run: Path) -> Case:
    """Change a file of a finished run folder."""
    files = dict(_written(run))
    wanted = ("run.json", "metadata.json", "metadata.json", "forecasts.json", "history.csv", "manifest.json")
    ending = random.choice(wanted)
    path = next(path for path in files if path.endswith(ending))
    if ending == "history.csv" or random.random() < 0.2:
        files[path] = changed_bytes(random, files[path])
    else:
        text = json.dumps(changed_tree(random, json.loads(files[path])))
        files[path] = text.encode("utf-8", "surrogatepass")
    return Case(ending, files)


# --- days of a public ledger ----------------------------------------------------------------------------


def day_case(random: Random) -> Case:
    name, content = changed_day(random)
    if random.random() < 0.3:
        name = "bytes"
        content = changed_bytes(random, content)
    return Case(name, {OURS: sound_day(), DAY: content})


# --- plans of back-tests ---------------------------------------------------------------------------------


@functools.cache
def _plan() -> bytes:
    """Return the plan of a back-test of three folds, as one writes it."""
    series = (SERIES, Series("ETHUSDT", "1h"))
    profile = load_profile("range_paths")
    asked = Backtest(profile, series, 3, None, "python -m v8 backtest").plan(open_source("demo"))
    histories = {one: CandleSpan(0, 40_000 * one.bar_s) for one in series}
    return json.dumps(asdict(replace(asked, folds=lay_folds(histories, profile, 3), missing={}))).encode()


def plan_case(random: Random) -> Case:
    content = _plan()
    if random.random() < 0.3:
        return Case("bytes", {PLAN_FILE: changed_bytes(random, content)})
    tree = json.loads(content)
    folds = tree["folds"]
    method = random.choice(("tree", "tree", "fold", "profile"))
    if method == "fold":
        folds.insert(random.randrange(4), json.loads(json.dumps(random.choice(folds))))
    elif method == "profile":
        tree["profile"] = changed_tree(random, tree["profile"])
    else:
        tree = changed_tree(random, tree)
    return Case(method, {PLAN_FILE: json.dumps(tree).encode("utf-8", "surrogatepass")})


# --- command lines ---------------------------------------------------------------------------------------


def words_case(random: Random) -> Case:
    """Write a command line, and the files that it may name."""
    command, *flags = random.choice(_COMMANDS)
    words = [command]
    for name in random.sample(flags, random.randint(0, len(flags))):
        flag, _, values = name.partition("=")
        words += [flag] if not values else [flag, random.choice(values.split("/")).replace("~", "/")]
    if random.random() < 0.4 and len(words) > 1:
        words[random.randrange(1, len(words))] = str(random.choice(ODD_VALUES))
    if random.random() < 0.2:
        words.insert(random.randrange(len(words) + 1), str(random.choice(ODD_VALUES)))
    if command in ("compare-profiles", "run", "doctor"):
        words.append(random.choice(_REFUSED[command]))
    if "--source" not in words and command in ("data", "predict"):
        words += ["--source", "demo"]  # the archive is no part of this
    profile = profile_case(random)
    files = {"mine.yaml": next(iter(profile.files.values())), f"candles/{SERIES}.csv": _csv(random)}
    return Case(command, files, tuple(words))


_COMMAND_LINES = r"""
data --source=demo/files/files/visoin --series=BTCUSDT-15m/ETHUSDT-1h --bars=0/-5/7/300/1e9 \
    --data-dir=candles/none/mine.yaml
data --source=files --series=BTCUSDT-15m --data-dir=candles
features --series=BTCUSDT-15m/x/BTCUSDT-1m
report run/none/mine.yaml
run --source=demo --profile=mine.yaml/aligned/candles --series=BTCUSDT-15m --bars=0/50/800 --epochs=0/1/1e9 \
    --workers=0/2/auto --fleet-size=0/1/x --runs=runs/mine.yaml --precision=float32/x --device=cpu/tpu
run --source=demo --profile=mine.yaml --series=BTCUSDT-15m
predict none --source=demo/files --plot=a.png/none~a.png/candles/mine.yaml --bars=0/9 --format=csv/xml \
    --data-dir=candles
compare-profiles --profiles=mine.yaml/aligned --out=mine.yaml/candles/new --source=demo --repeat=0/1/x \
    --epochs=0/1
doctor --profile=mine.yaml/aligned --seconds=0/x/-1
pull --repo=nonsense/a~b~c/ --offline
"""
"""Commands, each with options of which some are taken, with one of their values; `~` stands for a slash."""

_COMMANDS = [line.split() for line in _COMMAND_LINES.replace("\\\n", "").strip().splitlines()]

_REFUSED = {
    "compare-profiles": ("--bars=0", "--no", "--profiles=none.yaml"),
    "run": ("--dry-run", "--no"),
    "doctor": ("--no", "--profile=x"),
}
"""What keeps a command that measures or trains from doing so."""
