"""Makes demo models in this environment for older ones to load: python tests/floors/save_models.py FOLDER

Beside each `model.keras` stand `windows.npy` and `prices.npz`, what went in and what came out here. One that
trains in moments is trained; of the others the weights are drawn, because their programs take long to
compile, and what is compared is the file.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from v8.base.process import quiet_start
from v8.data.feature_store import FeatureStore
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.profile.profile import load_profile
from v8.runs.events import RunObserver
from v8.runs.local import InProcessEngine
from v8.runs.plan import Job, Recipe

with quiet_start():
    import keras

    from v8.model.training.trainer import FleetMember, Trainer, TrainingResult

TRAINED = "frontier"
DRAWN = ("aligned", "v4_transformer", "v4_gru", "v4_lstm", "v3")
SERIES = "BTCUSDT-15m"
RUN = f"run --source demo --smoke --series {SERIES} --precision float32 --workers 1 --device cpu"
NUM_BARS = 850
DEVIATION = 0.02
"""Of drawn weights: small, so that forecasts stay near the last close."""


class DrawingTrainer(Trainer):
    """Draws weights where another trains."""

    def fit_fleet(self, members: Sequence[FleetMember]) -> Iterator[tuple[int, TrainingResult]]:
        draws = np.random.default_rng(1)
        shapes = [weight.shape for weight in self.network.trainable_variables]
        weights = [draws.normal(0, DEVIATION, shape).astype(np.float32) for shape in shapes]
        for place in range(len(members)):
            yield place, TrainingResult("epochs", weights, {}, "CPU:0", 0, (), 0.0, 0, 0.0)


def save_models(folder: Path) -> None:
    """Make a model of each profile in `folder`/runs and note what it forecasts."""
    words = [*RUN.split(), "--profile", TRAINED, "--runs", str(folder / "runs")]
    subprocess.run([sys.executable, "-m", "v8", *words], check=True, stdout=subprocess.DEVNULL)
    note_prices(folder / "runs" / f"{TRAINED}-smoke" / SERIES)
    for profile in DRAWN:
        path = folder / "runs" / f"{profile}-smoke" / SERIES
        save_drawn(profile, path)
        note_prices(path)


def save_drawn(name: str, folder: Path) -> None:
    """Save a whole artefact of a profile whose weights are drawn."""
    profile = load_profile(name).with_budget(newest_bars=NUM_BARS)
    candles = DemoSource().candles(Series.parse(SERIES), NUM_BARS)
    job = Job(Recipe(profile, is_publishable=False), candles, 1, folder)
    with tempfile.TemporaryDirectory() as caches:
        engine = InProcessEngine(trainer_factory=DrawingTrainer, store=FeatureStore(Path(caches)))
        (outcome,) = engine.train([job], RunObserver())
    if outcome.reason:
        raise SystemExit(f"{name}: {outcome.reason}\n{outcome.trace}")


def note_prices(folder: Path) -> None:
    """Write what goes in and comes out beside a model."""
    model = keras.saving.load_model(folder / "model.keras")
    windows = np.random.default_rng(1).normal(1.0, 0.01, (4, *model.input_shape[1:])).astype(np.float32)
    np.save(folder / "windows.npy", windows)
    np.savez(folder / "prices.npz", **model(windows))


if __name__ == "__main__":
    save_models(Path(sys.argv[1]))
