"""Real runs of the command line in processes of their own, shared by the tests that look at them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from forked import called
from made_once import made_once
from programs import run_program
from tiny_profiles import tiny_profile

from v8.data.market.series import Series
from v8.data.market.sources import open_source

REPOSITORY = Path(__file__).parents[2]
NUM_BARS = 420
GOOD = ("BTCUSDT-15m", "ETHUSDT-1h")
BROKEN = "DOGEUSDT-1h"
"""A series whose file has no rows."""


@dataclass
class Workplace:
    """A user's folder: a profile, candle files, runs.

    Args:
        folder: Where everything lies.
        env: Environment of the processes.
    """

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def run(self) -> Path:
        return self.runs / "tiny"

    @property
    def candles(self) -> Path:
        return self.folder / "candles"

    @property
    def profile(self) -> Path:
        return self.folder / "tiny.yaml"

    def words(self, *series: str, more: tuple[str, ...] = ()) -> list[str]:
        chosen = [word for name in series for word in ("--series", name)]
        options = ["--profile", str(self.profile), "--source", "files", "--data-dir", str(self.candles)]
        return ["run", *options, "--runs", str(self.runs), *chosen, *more]

    def start(self, words: list[str], **options: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "v8", *words],
            cwd=self.folder,
            env=self.env,
            text=True,
            errors="replace",  # a test sets the code page of another system
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **options,
        )

    def call(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        """Do what `python -m v8` does with arguments, to its end, in a process that is forked."""
        return called(*words, cwd=self.folder, env=self.env, tf=True)

    def call_anew(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        """Run `python -m v8` with arguments to its end; Python starts anew."""
        return run_program(
            [sys.executable, "-m", "v8", *words], cwd=self.folder, env=self.env, errors="replace", timeout=300
        )

    def change_profile(self, key: str, value: object) -> None:
        content = yaml.safe_load(self.profile.read_text())
        content["training"][key] = value
        self.profile.write_text(yaml.safe_dump(content, sort_keys=False))


TINY = tiny_profile(
    newest_bars=400,
    features=("open", "high", "low", "close", "volatility"),
    horizon_bars=2,
    network={"family": "bilstm_seq2seq", "encoder_units": (4,), "decoder_units": (4,), "dropout": 0.2},
    tasks={"ohlc": {"weight": 1.0, "loss": "mae"}, "volatility": {"weight": 0.3, "loss": "mae"}},
    training={"batch_size": 8, "epochs": 12, "learning_rate": 0.001, "early_stopping_patience_epochs": 50},
    calibration="ensemble",
    seed=7,
)
"""It trains in a moment."""


def write_candles(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    frame = open_source("demo").candles(Series.parse(name), NUM_BARS).to_frame()
    frame.to_csv(folder / f"{name}.csv")
    return folder / f"{name}.csv"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workplace, subprocess.CompletedProcess[str]]:
    """A finished run over two good series and one without candles. Look, do not touch."""

    def train(folder: Path) -> subprocess.CompletedProcess[str]:
        place = place_at(folder)
        place.profile.write_text(TINY.model_dump_json())  # JSON is YAML
        for name in GOOD:
            write_candles(place.candles, name)
        (place.candles / f"{BROKEN}.csv").write_text("open_time,open,high,low,close,volume\n")
        return place.call_anew(place.words(*GOOD, BROKEN, more=("--workers", "1")))

    folder, done = made_once(tmp_path_factory, "workplace", train)
    return place_at(folder), done


def place_at(folder: Path) -> Workplace:
    """Return a workplace whose processes keep their caches beside it."""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "V8_HOME": str(folder / "home")}
    for name in ("TF_CPP_MIN_LOG_LEVEL", "PYTHONWARNINGS"):
        env.pop(name, None)
    return Workplace(folder, env)


@pytest.fixture
def workplace(trained: tuple[Workplace, subprocess.CompletedProcess[str]], tmp_path: Path) -> Workplace:
    """A copy of the finished run's workplace, free to be changed."""
    original, _ = trained
    shutil.copytree(original.folder, tmp_path / "copy")
    return Workplace(tmp_path / "copy", dict(original.env))


@pytest.fixture
def snapshot() -> Callable[[Path], dict[str, bytes]]:
    def read(folder: Path) -> dict[str, bytes]:
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return read
