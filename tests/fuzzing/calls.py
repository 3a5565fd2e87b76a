"""Calls of the Python API with arguments of any kind, some of them unknown or one too many."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd

import v8
from v8.data.market.series import Series
from v8.data.market.sources import open_source


@functools.cache
def _calls(run: Path, series: Series) -> tuple[tuple[Any, Mapping[str, Any]], ...]:
    """List functions with arguments that they take; none that trains, and none that asks anybody."""
    frame = open_source("demo").candles(series, 800).to_frame()
    forecaster = v8.load(run, str(series))
    finished = v8.Run(run)
    no_covariates = {"covariates": None}
    candles: dict[str, Any] = {"candles": frame, **no_covariates}
    late: dict[str, Any] = {"start": "2030-01-01"}
    none = {**candles, "profile": "none.yaml"}
    windows = np.ones((1, forecaster.lookback_bars, len(forecaster.features)))
    return (
        (v8.load, {"source": run, "series": str(series), "revision": None}),
        (v8.features, {**candles, "profile": "frontier", "series": str(series)}),
        (v8.train, {**none, "series": str(series), "runs": "r", "bars": 9, "device": "cpu"}),
        (v8.train, {**none, "epochs": 1, "smoke": True, "fleet_size": 1, "fresh": False}),
        (v8.Run, {"path": run}),
        (v8.Forecaster.load, {"folder": run / str(series), "revision": None}),
        (forecaster.predict, {**candles, "now_s": None, "max_age_bars": None}),
        (forecaster.forecast_history, {**candles, "stride": 500, "start": None, "end": None, "now_s": None}),
        (forecaster.forecast, {"windows_NTF": windows}),
        (forecaster.joined, {**candles, "now_s": None, "reaches": True}),
        (forecaster.evaluate, {**candles, **late}),
        (forecaster.evaluate, {**candles, **late}),
        (finished.__getitem__, {"series": str(series)}),
    )


def call_at_random(
    random: Random, run: Path, series: Series, odd: Sequence[Any], frame: pd.DataFrame
) -> None:
    """Call one of them with one to three of its arguments replaced, left out or renamed.

    Args:
        random: What decides.
        run: A finished run folder.
        series: A series that is finished in it.
        odd: Values of any kind.
        frame: Candles with something odd about them.
    """
    function, good = random.choice(_calls(run, series))
    others = [*odd, frame, frame.to_numpy(), frame.index, dict(frame.items()), frame.to_numpy().tolist()]
    others += [
        object(),
        b"x",
        1j,
        np.int64(3),
        np.float32("nan"),
        np.bool_(True),
        np.ones((2, 2)),
        np.array("x"),
    ]
    others += [pd.NaT, pd.Timestamp.max, Path("x"), Path(), {1: 2}, range(3), {"BTCUSDT": frame}]
    arguments = dict(good)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        name = random.choice([*good])
        change = random.randrange(8)
        if change == 0:
            arguments.pop(name, None)
        elif change == 1:
            arguments[random.choice((f"{name}s", name[:-1], "learning_rate", "x" * 5_000, "--"))] = None
        else:
            arguments[name] = random.choice(others)
    positional = [random.choice(others)] * random.choice((0, 0, 0, 0, 0, 1, 9))
    function(*positional, **arguments)
