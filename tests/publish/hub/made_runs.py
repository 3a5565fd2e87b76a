"""Run folders of finished series made in a moment: evaluated for real, with one small real Keras file."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from described_models import MACHINE, described_features, described_training
from evaluating import evaluate_arrays, rolled

from v8.base.storage import digest_file, write_json, write_text
from v8.data.market.series import Series, load_universe
from v8.forecaster.metadata import ARTIFACT_FORMAT, HISTORY_FILE, METADATA_FILE, MODEL_FILE
from v8.model.evaluation.evaluation import Evaluation
from v8.profile.profile import load_profile
from v8.profile.tasks import TASKS
from v8.runs.run_folder import RunFolder, RunRecord, SeriesState

HORIZON_BARS = 2
UNIVERSE = tuple(str(series) for series in load_universe())
"""The 40 series of the default universe."""

SKILLED = 0.25
LOSING = -0.25
"""Share of the way from naive to the actual values: errors are 0.75 and 1.25 times the naive ones."""

SHORT = 0.5
"""Half of the way, evaluated on six windows: too few to say what is chance."""

NAIVE_IS_TRUE = 9.0
"""The naive forecast makes no error, so that nothing can be a multiple of it."""


def write_keras_file(path: Path) -> None:
    """Save the smallest network that looks like ours: two tasks of it do not matter here."""
    import keras

    window = keras.Input((4, 2), name="window")
    outputs = keras.layers.Dense(1, name="ohlc")(keras.layers.Flatten()(window))
    keras.Model(window, outputs).save(path)


class RunMaker:
    """Makes run folders below one folder.

    Args:
        folder: Where to.
        keras_file: The model of every series.
    """

    UNIVERSE = UNIVERSE
    SKILLED = SKILLED
    LOSING = LOSING
    SHORT = SHORT
    NAIVE_IS_TRUE = NAIVE_IS_TRUE

    def __init__(self, folder: Path, keras_file: Path) -> None:
        self._folder = folder
        self._keras_file = keras_file
        self._num_made = 0

    def __call__(
        self,
        series: Sequence[str] = ("BTCUSDT-15m", "ETHUSDT-1h"),
        *,
        shares: Mapping[str, float] | None = None,
        source: str = "vision",
        unfinished: Mapping[str, SeriesState] | None = None,
    ) -> Path:
        """Return a run whose series are done.

        Args:
            series: Finished series.
            shares: How good each is; `SKILLED` unless it says otherwise.
            source: Name of the candle source; "demo" is not publishable.
            unfinished: States of further series without an artefact.
        """
        self._num_made += 1
        path = self._folder / f"run-{self._num_made}"
        record = RunRecord.begin(load_profile("aligned"), source, source != "demo", "python -m v8 run")
        with RunFolder(path, record) as run:
            for name, state in (unfinished or {}).items():
                run.set_state(Series.parse(name), **vars(state))
            for name in series:
                write_artifact(path / name, name, self._keras_file, (shares or {}).get(name, SKILLED), source)
                run.set_state(Series.parse(name), status="done")
        return path

    @staticmethod
    def change(run: Path, series: str, **changes: Any) -> None:
        """Change keys of one series' metadata."""
        file = run / series / METADATA_FILE
        write_json(file, json.loads(file.read_text()) | changes)


def write_artifact(folder: Path, series: str, keras_file: Path, share: float, source: str) -> None:
    folder.mkdir(parents=True)
    # Every model is another file, as trained ones are: a zip may end with a comment.
    comment = series.encode()
    content = keras_file.read_bytes()[:-2] + len(comment).to_bytes(2, "little") + comment
    (folder / MODEL_FILE).write_bytes(content)
    write_text(folder / HISTORY_FILE, "epoch,train_loss,validation_loss\n1,1.0,1.0\n2,0.9,0.9\n")
    write_json(folder / METADATA_FILE, metadata_of(series, share, source, digest_file(folder / MODEL_FILE)))


def metadata_of(series: str, share: float, source: str, model_sha256: str) -> dict[str, Any]:
    """Return metadata with the keys that publishing reads."""
    profile = load_profile("aligned")
    return {
        "format": ARTIFACT_FORMAT,
        "series": series,
        "created_at": "2026-11-01T12:00:00+00:00",
        "is_demo_market": source == "demo",
        "candles": {
            "source": source,
            "is_publishable": source != "demo",
            "first_open": "2026-08-01T00:00:00+00:00",
            "last_open": "2026-10-31T23:45:00+00:00",
            "num_bars": 8_000,
            "digest": "cd" * 32,
            "report": {"num_read": 8_000, "num_kept": 8_000},
        },
        "profile": profile.model_dump(mode="json"),
        "profile_digest": profile.digest,
        "features": described_features(profile.features),
        "lookback_bars": profile.lookback_bars,
        "horizon_bars": HORIZON_BARS,
        "bar_s": Series.parse(series).bar_s,
        "tasks": {
            task: {"columns": list(columns), "unit": "quote currency"}
            for task, columns in ((name, one.columns) for name, one in TASKS.items() if one.is_of_bars)
        },
        "split": {
            span: {
                "rows": [0, 9],
                "first_open": "2026-10-20T00:00:00+00:00",
                "last_open": "2026-10-31T23:45:00+00:00",
                "num_windows": 1_120,
            }
            for span in ("train", "validation", "test")
        },
        "num_parameters": 234_567,
        "training": described_training(device="cpu"),
        "evaluation": copy.deepcopy(_evaluation(share).to_json()),
        "seconds": {"features": 0.5, "training": 61.0},
        "versions": {"python": "3.11.9", "v8": "0.1.0", "keras": "3.15.1"},
        "machine": MACHINE,
        "model_sha256": model_sha256,
    }


_EVALUATIONS: dict[float, Evaluation] = {}


def _evaluation(share: float) -> Evaluation:
    """Judge a forecast `share` of the way from naive to the actual values; its multiple is 1 - share."""
    if share not in _EVALUATIONS:
        seed, num_windows = (3, 6) if share == SHORT else (15, 240)
        rng = np.random.default_rng(seed)
        closes = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, (num_windows, 20)), axis=1))
        naive = rolled(closes, HORIZON_BARS)
        actual = {task: values * np.exp(rng.normal(0, 0.02, values.shape)) for task, values in naive.items()}
        # In logs, where errors in returns are measured, up to the second order.
        model = {task: naive[task] * (actual[task] / naive[task]) ** share for task in naive}
        if share == NAIVE_IS_TRUE:
            actual = naive
        offsets = {task: np.full(values.shape[1:], 0.001) for task, values in naive.items()}
        _EVALUATIONS[share] = evaluate_arrays(actual, model, closes, offsets)
    return _EVALUATIONS[share]
