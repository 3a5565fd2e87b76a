"""Trains demo models in this environment for older ones to load: python tests/floors/save_models.py FOLDER

Beside each `model.keras` stand `windows.npy` and `prices.npz`, what went in and what came out here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from v8.engine.quiet import quiet_start

with quiet_start():
    import keras

PROFILES = ("aligned", "frontier")
RUN = "run --source demo --smoke --series BTCUSDT-15m --precision float32 --workers 1 --device cpu"


def save_models(folder: Path) -> None:
    """Train a model of each profile into `folder`/runs and note what it forecasts."""
    for profile in PROFILES:
        words = [*RUN.split(), "--profile", profile, "--runs", str(folder / "runs")]
        subprocess.run([sys.executable, "-m", "v8", *words], check=True, stdout=subprocess.DEVNULL)
        model_folder = folder / "runs" / f"{profile}-smoke" / "BTCUSDT-15m"
        model = keras.saving.load_model(model_folder / "model.keras")
        windows = np.random.default_rng(1).normal(1.0, 0.01, (4, *model.input_shape[1:])).astype(np.float32)
        np.save(model_folder / "windows.npy", windows)
        np.savez(model_folder / "prices.npz", **model.predict(windows, verbose=0))


if __name__ == "__main__":
    save_models(Path(sys.argv[1]))
