"""The environment of a drill: a folder with a user's files, limited processes, checks after each call.

Everything goes through the command line in processes of their own. After each call this must hold: it ended
within its time limit, with a documented exit code, without a traceback, and printed nothing longer than a
message may be. At the end of each drill the user's own files are unchanged, and no temporary file is left.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import IO, Any

import pandas as pd
from later_candles import write_past
from published_weights import weights
from tiny_profiles import tiny_profile

REPOSITORY = Path(__file__).resolve().parents[2]
SERIES = "BTCUSDT-1h"
DOCUMENTED = frozenset({0, 2, 3, 4, 5, 6, 130})
"""Exit codes that the README explains."""

LONGEST_LINE = 640
"""A message has at most 600 characters; "error: " and a series' name may stand before it."""

LIMIT_S = 900.0
"""A call that takes longer hangs, on a machine with other work, too."""

OURS = frozenset({".lock", ".lock-holder"})
"""Hidden files that stay: removing a lock would race with one who waits for it."""

_LOG_LINE = re.compile(r"[EWI]0000 ")
"""What TensorFlow logs about the machine."""

TINY = tiny_profile(
    "dense_newest",
    dropout=0.2,
    newest_bars=900,
    features=("open", "high", "low", "close", "volatility"),
    lookback_bars=8,
    horizon_bars=2,
    tasks={"ohlc": {"weight": 1.0, "loss": "mae"}},
    training={"batch_size": 32, "epochs": 4, "learning_rate": 0.001},
)
"""The smallest profile worth killing."""


class ImpossibleHereError(Exception):
    """This machine does not allow the fault, such as mounting a disk."""


@dataclass(frozen=True)
class Ended:
    """A call that is over.

    Args:
        status: Exit code; None when it hung and was killed.
        output: What it wrote to standard output.
        errors: What it wrote to standard error.
        seconds: How long it took.
    """

    status: int | None
    output: str
    errors: str
    seconds: float

    @property
    def message(self) -> str:
        """The error, or else the last line of standard error or output."""
        lines = [line for line in f"{self.output}\n{self.errors}".splitlines() if line.strip()]
        lines = [line for line in lines if not _LOG_LINE.match(line)]
        errors = [line for line in lines if line.startswith(("error: ", SERIES))] or lines
        return errors[-1][:300] if errors else "nothing"


@dataclass
class Place:
    """One drill's own folder, with a home, files of the user, and the troubles found so far.

    Args:
        folder: Where everything lies.
        chance: Random numbers of this drill.
        more_env: Environment on top of the usual one.
    """

    folder: Path
    chance: random.Random
    more_env: dict[str, str] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    _outputs: dict[int, tuple[IO[str], IO[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("home", "tmp", "runs"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "tiny.yaml").write_text(TINY.model_dump_json())  # JSON is YAML
        (self.folder / "notes.txt").write_text("the user's own\n")
        (self.folder / "runs" / "notes.txt").write_text("the user's own, next to the runs\n")
        self._mine = digests(self.folder)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def run(self) -> Path:
        return self.runs / "tiny"

    @property
    def env(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "V8_"))}
        own = {
            "PYTHONPATH": str(REPOSITORY),
            "V8_HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "MPLCONFIGDIR": str(self.folder.parent / "matplotlib"),
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }
        return {**inherited, **own, **self.more_env}

    def job(self, *series: str, more: Sequence[str] = ()) -> list[str]:
        chosen = [word for name in series or (SERIES,) for word in ("--series", name)]
        words = ["run", "--profile", str(self.folder / "tiny.yaml"), *chosen, "--runs", str(self.runs)]
        return [*words, *(more or ("--source", "demo"))]

    def start(self, words: Sequence[str], program: Sequence[str] = ("-m", "v8")) -> subprocess.Popen[bytes]:
        """Start a call in a process group of its own."""
        # Into files: the end of a pipe would wait for workers that outlive a killed parent for a moment.
        output, errors = (tempfile.TemporaryFile("w+", errors="replace") for _ in range(2))  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, "-u", *program, *map(str, words)],
            cwd=self.folder,
            env=self.env,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        self._outputs[process.pid] = output, errors
        return process

    def finish(
        self, process: subprocess.Popen[bytes], limit_s: float = LIMIT_S, *, is_killed: bool = False
    ) -> Ended:
        """Wait for the end of a call, or kill it at its limit, and look at how it went."""
        started = time.monotonic()
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            kill(process)
            process.wait()
            status = None
        output, errors = map(_read, self._outputs[process.pid])
        ended = Ended(status, output, errors, time.monotonic() - started)
        self._examine(ended, is_killed=is_killed)
        return ended

    def call(self, words: Sequence[str], limit_s: float = LIMIT_S, **options: Sequence[str]) -> Ended:
        return self.finish(self.start(words, **options), limit_s)

    def make(self, words: Sequence[str], limit_s: float = LIMIT_S) -> Ended:
        """Call what others are compared with; it must succeed."""
        ended = self.call(words, limit_s)
        if ended.status != 0 or self.troubles:
            raise RuntimeError(
                f"{words[0]}, which nobody disturbs, ended with {ended.status}: {ended.message}"
            )
        return ended

    def again(self, words: Sequence[str], limit_s: float = LIMIT_S) -> Ended:
        """Call without the fault; it must finish and leave nothing behind."""
        ended = self.call(words, limit_s)
        self.require(ended.status == 0, f"the same command again ended with {ended.status}: {ended.message}")
        self.require_tidy()
        return ended

    def told_so_far(self, process: subprocess.Popen[bytes]) -> str:
        """Read what a call that goes on has written to standard error."""
        return os.pread(self._outputs[process.pid][1].fileno(), 1 << 16, 0).decode(errors="replace")

    def require(self, is_so: bool, trouble: str) -> None:
        if not is_so:
            self.troubles.append(trouble)

    def require_same(self, weights: dict[str, str], expected: dict[str, str]) -> None:
        """Note weights that are not those of the run that nobody disturbed."""
        others = [name for name in expected if weights.get(name) != expected[name]]
        if others:
            self.lost.append(f"weights of {', '.join(others)}")

    def require_same_contents(self, contents: dict[str, str], expected: dict[str, str]) -> None:
        """Note files of a run that are not those of the run that nobody disturbed."""
        names = sorted(contents.keys() | expected.keys())
        self.lost += [name for name in names if contents.get(name) != expected.get(name)]

    def continued(self, words: Sequence[str], expected: dict[str, str], run: Path | None = None) -> None:
        """Call again without the fault: it must finish with the same weights."""
        self.again(words)
        self.require_same(weights_of(run or self.run), expected)

    def require_tidy(self) -> None:
        """Note what is left with a temporary name after a call that went well."""
        left = leftovers(self.folder)
        if left:
            self.troubles.append(f"left behind: {', '.join(left[:4])}")

    def close(self) -> None:
        """Compare the user's own files with what they were."""
        now = digests(self.folder)
        self.lost += [f"the user's {name}" for name, digest in self._mine.items() if now.get(name) != digest]

    def _examine(self, ended: Ended, *, is_killed: bool) -> None:
        if ended.status is None:
            self.troubles.append("hung")
        elif ended.status not in DOCUMENTED and not is_killed:
            self.troubles.append(f"exit {ended.status}: {ended.message}")
        text = f"{ended.output}\n{ended.errors}"
        if "Traceback" in text:
            self.troubles.append(f"a traceback: {text.strip().splitlines()[-1][:160]}")
        longest = max(map(len, text.splitlines()), default=0)
        self.require(longest <= LONGEST_LINE, f"a line of {longest} characters")
        if ended.status in (2, 3, 5, 6):
            is_said = any(words in text for words in ("error: ", "series failed", "no usable candles"))
            self.require(is_said, f"exit {ended.status} without a sentence")


@dataclass
class Ground:
    """What all drills share: folders, the weights of runs that nobody disturbed, how much is to be done.

    Args:
        folder: Where each drill gets a folder.
        seed: Of all random numbers.
        size: "small", "usual" or "long".
        archive: Folder of an archive of real candles; None generates candles.
    """

    folder: Path
    seed: int = 0
    size: str = "usual"
    archive: Path | None = None
    _once_results: dict[str, Path] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def place(self, name: str) -> Place:
        path = Path(
            tempfile.mkdtemp(prefix=f"{hashlib.sha256(name.encode()).hexdigest()[:6]}-", dir=self.folder)
        )
        return Place(path / "user", random.Random(f"{self.seed} {name}"))

    def once(self, name: str, make: Callable[[Place], Path]) -> Path:
        """Return what `make` made the first time: a run folder that others compare with or copy."""
        with self._lock:
            if name not in self._once_results:
                self._once_results[name] = make(self.place(name))
            return self._once_results[name]

    def undisturbed(self) -> Path:
        """Return the tiny run of the demo market that nobody disturbed."""
        return self.once("undisturbed", _run_undisturbed)


def _run_undisturbed(place: Place) -> Path:
    place.make(place.job())
    return place.run


def train_on_past(place: Place, names: Sequence[str], num_past: int) -> Path:
    """Train on candles of the past, as files of the user, and return the run folder."""
    candles = place.folder / "candles"
    for name in names:
        write_past(candles, name, num_past)
    place.make(place.job(*names, more=("--source", "files", "--data-dir", str(candles))))
    return place.run


Do = Callable[[Ground, Place], str]
"""Does a drill and says how it came out."""


@dataclass(frozen=True)
class Drill:
    """One fault.

    Args:
        kind: Its group.
        fault: What goes wrong, as a clause.
        do: Does it.
        size: In which form it is done first: "small", "usual" or "long".
    """

    kind: str
    fault: str
    do: Do
    size: str


@dataclass(frozen=True)
class Outcome:
    """How a drill came out.

    Args:
        drill: Which.
        message: What happened, in a few words.
        lost: What was lost; empty when nothing was.
        troubles: Whatever must not happen and did.
        seconds: How long it took.
    """

    drill: Drill
    message: str
    lost: tuple[str, ...]
    troubles: tuple[str, ...]
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, silent or a traceback."""
        return not self.lost and not self.troubles


DRILLS: list[Drill] = []


def add(kind: str, fault: str, size: str, do: Callable[..., str], *arguments: object) -> None:
    """Register a drill that a function does with these arguments."""
    DRILLS.append(Drill(kind, fault, partial(do, *arguments), size))


def drill(kind: str, fault: str, size: str = "usual") -> Callable[[Do], Do]:
    def register(do: Do) -> Do:
        add(kind, fault, size, do)
        return do

    return register


def carry_out(drill: Drill, ground: Ground) -> Outcome:
    """Do a drill; what it raises is a trouble of its own."""
    place = ground.place(f"{drill.kind} {drill.fault}")
    started = time.monotonic()
    try:
        message = drill.do(ground, place)
        place.close()
    except ImpossibleHereError as error:
        message = f"not possible here: {error}"
    except Exception as error:  # noqa: BLE001 - the other drills go on, and this one has failed
        message = "the drill itself failed"
        place.troubles.append(f"{type(error).__name__}: {error}")
    seconds = time.monotonic() - started
    return Outcome(drill, message, tuple(place.lost), tuple(place.troubles), seconds)


def _read(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()


def kill(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Send a signal to a call and all its workers, as a terminal or a dying machine does."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextmanager
def killed_after(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Leave no process behind, whatever happens in the block."""
    try:
        yield process
    finally:
        kill(process)


def weights_of(run: Path) -> dict[str, str]:
    """Return a digest of every array of each series' model; the zip around them may differ in its times."""
    models = [path for path in sorted(run.glob("*/model.keras")) if ".replaced-" not in path.parent.name]
    return {path.parent.name: _digest_weights(path) for path in models}


def _digest_weights(model: Path) -> str:
    digest = hashlib.sha256()
    for name, array in weights(model).items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def contents_of(run: Path) -> dict[str, str]:
    """Return a digest of all that each series of a run saves, by file and member, without its times.

    Of `model.keras` it is each member of the zip and the whole file; of `metadata.json` each key.
    """
    contents = {}
    for folder in sorted(path.parent for path in run.glob("*/metadata.json")):
        model = (folder / "model.keras").read_bytes()
        contents[f"{folder.name}/model.keras"] = _sha256(model)
        with zipfile.ZipFile(io.BytesIO(model)) as archive:
            for member in archive.namelist():
                contents[f"{folder.name}/model.keras, {member}"] = _sha256(archive.read(member))
        for key, value in _without_times(folder / "metadata.json").items():
            contents[f"{folder.name}/metadata.json, {key}"] = _sha256(json.dumps(value).encode())
        contents[f"{folder.name}/forecasts.json"] = _sha256((folder / "forecasts.json").read_bytes())
        history = pd.read_csv(folder / "history.csv", dtype=str)
        timeless = history.drop(
            columns=[name for name in history.columns if name.endswith(("seconds", "_s"))]
        )
        contents[f"{folder.name}/history.csv"] = _sha256(timeless.to_csv(index=False).encode())
    return contents


def _without_times(file: Path) -> dict[str, Any]:
    """Read the metadata of a series, but not when and how fast it was made, and from where it resumed."""
    metadata: dict[str, Any] = json.loads(file.read_text())
    for key in ("created_at", "seconds"):
        del metadata[key]
    for key in ("windows_per_s", "peak_memory_bytes", "peak_process_bytes", "resumed_from_epoch"):
        del metadata["training"][key]
    return metadata


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file below a folder but those of locks."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in OURS)
    return {str(path.relative_to(folder)): _sha256(path.read_bytes()) for path in files}


def leftovers(folder: Path) -> list[str]:
    """List what has a temporary name: hidden files, and anything in the folder for temporary files."""
    hidden = [path for path in folder.rglob(".*") if path.name not in OURS]
    return [str(path.relative_to(folder)) for path in (*hidden, *(folder / "tmp").iterdir())]
