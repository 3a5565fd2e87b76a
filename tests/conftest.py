"""Small real parts that many rooms' tests are built from."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# `huggingface_hub` reads them when it is imported, which the tests of any room may be the first to do.
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import hypothesis
import pytest
from exchange_api import ExchangeApi
from made_once import made_once, shared_folder
from run_doubles import train_series
from skips import SkipCounter
from tiny_profiles import tiny_profile

from v8.base import registry
from v8.base.process import for_children, repeated
from v8.base.registry import own_entries
from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.data.market.sources import SOURCES, open_source
from v8.model.baselines.baselines import BASELINES
from v8.profile.families import FAMILIES
from v8.profile.indicators import FEATURES
from v8.profile.profile import Profile, load_profile
from v8.profile.tasks import TASKS

# Other work on a machine must not fail a test: none of them asserts how long something takes.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

# A shell makes what it starts in the background deaf to Ctrl-C, and that goes on to its children.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    # The processes of pytest-xdist hand their reports to the first one.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipCounter(), "skips")


HALFWAY = '''"""The close goes half of the way back to the mean of the twenty known ones."""

import numpy as np

from v8.profile.columns import TASK_OHLC
from v8.model.baselines.baselines import BASELINES, Baseline


def fit_halfway(train, scaling):
    def forecast(span):
        halfway = (span.last_close + span.history_close.mean(axis=1)) / 2
        return {TASK_OHLC: np.broadcast_to(halfway[:, None, None], span.target_shape(TASK_OHLC))}

    return forecast


BASELINES.register(Baseline("halfway", "The close goes half of the way back.", "a test", fit_halfway))
'''
"""A plug-in."""


@pytest.fixture(scope="session")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plug-in that registers a baseline."""
    file = tmp_path_factory.mktemp("plugins") / "halfway.py"
    file.write_text(HALFWAY)
    return file


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget after a test which plug-ins it loaded, and what they registered."""
    monkeypatch.setenv(registry.PLUGINS_PLACE, "")
    before = {id(kind): (kind, dict(kind)) for kind in (BASELINES, FAMILIES, FEATURES, SOURCES, TASKS)}
    yield
    for kind, entries in before.values():
        for name in kind.keys() - entries.keys():
            del kind[name]
    for known in (registry.loaded_plugins, repeated, for_children, own_entries):
        known.clear()


@pytest.fixture
def exchange_api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExchangeApi]:
    """Serve an exchange at 2024-09-04T12:07:00Z, API and archive, and make it the only one there is.

    It is years behind this machine: no test but those of the clock counts the question for a newest candle.
    """
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("v8.data.market.sources.rest.MOST_APART_S", float("inf"))
    with ExchangeApi() as served:
        monkeypatch.setenv("V8_REST_URL", served.url)
        monkeypatch.setenv("V8_VISION_URL", served.url)
        yield served


@pytest.fixture(autouse=True)
def _english() -> Iterator[None]:
    """Take back the language that a command of a test chose: `--lang` sets it for its whole process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("V8_LANG", raising=False)
        yield
        os.environ.pop("V8_LANG", None)


@pytest.fixture(scope="session", autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what v8 keeps of this machine, features and programs for this call of pytest, not for the user.

    What a test says nothing about is measured once, whatever process asks.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("V8_HOME", str(shared_folder(tmp_path_factory) / "home"))
        yield


@dataclass(frozen=True)
class TrainedRun:
    """One tiny series that the engine trained, evaluated and saved from the files of a user.

    Args:
        path: The run folder; tests copy it before they change anything.
        profile: What was trained.
        candles: What it was trained on.
        candles_dir: The folder of the CSV file they were read from.
    """

    path: Path
    profile: Profile
    candles: Candles
    candles_dir: Path

    @property
    def series(self) -> Series:
        return self.candles.series

    @property
    def folder(self) -> Path:
        return self.path / str(self.series)


@pytest.fixture(scope="session")
def frontier_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run of `frontier` on BTCUSDT-1h: v8 itself computes all of its features.

    Tests copy it before they change anything.
    """

    def train(home: Path) -> None:
        profile = load_profile("frontier").with_budget(epochs=1, newest_bars=1_500)
        series = Series.parse("BTCUSDT-1h")
        frame = open_source("demo").candles(series, profile.newest_bars).to_frame()
        train_series(home, profile, check_candles(frame, series, source="live"))

    home, _ = made_once(tmp_path_factory, "frontier", train)
    return home / "runs" / "frontier"


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    # As wide as `aligned`, with two features of the package ta, so that all of its way is gone with them, and
    # of the family that compiles fastest.
    ours = [name for name in load_profile("aligned").features if name not in ("bb_width", "bb_upper")]
    features = (*ours, "ta.stoch(window=10)", "ta.bollinger_lband")
    profile = tiny_profile("dense_newest", dropout=0.2, training={"epochs": 2}, features=features)
    series = Series.parse("BTCUSDT-15m")

    def train(home: Path) -> None:
        (home / "candles").mkdir()
        frame = open_source("demo").candles(series, profile.newest_bars).to_frame()
        frame.to_csv(home / "candles" / f"{series}.csv")
        train_series(home, profile, candles_of(home))

    def candles_of(home: Path) -> Candles:
        return open_source("files", data_dir=home / "candles").candles(series, profile.newest_bars)

    home, _ = made_once(tmp_path_factory, "trained", train)
    return TrainedRun(home / "runs" / "tiny", profile, candles_of(home), home / "candles")
