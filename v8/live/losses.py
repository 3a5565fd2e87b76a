"""Losses of a model and what stands beside it, on forecasts that were issued after it was made.

They come from the ledger, where it has enough forecasts that were written before their truth: nobody can have
tuned those. Else the model forecasts the candles since once more, a back-test.

Legend: N forecasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from v8.artifacts.forecaster import Forecaster
from v8.features.table import FeatureTable, compute_table
from v8.formulas.baselines import BASELINES, NAIVE
from v8.live.database import Ledger
from v8.live.entries import Scored
from v8.losses.judgement import MODEL
from v8.losses.metrics import measure_errors
from v8.market.candles import Candles
from v8.market.series import Series
from v8.profile import recorded_profile
from v8.records import AS_WRITTEN, checked
from v8.windows.dataset import table_columns
from v8.windows.scaling import Scaling
from v8.windows.span import Floats, Span
from v8.windows.splits import window_anchors

_SCALING: Final = TypeAdapter(Scaling)


@dataclass(frozen=True)
class Losses:
    """Mean absolute errors in returns of each forecast, unitless.

    Args:
        by_task: Per task and forecaster (`MODEL`, `NAIVE`, other keys of `BASELINES`), shape (N,).
        bar_numbers: Bar of each forecast's newest candle, counted from the epoch, ascending, shape (N,).
        horizon_bars: Steps ahead.
        origin: Where they come from, in words.
    """

    by_task: Mapping[str, Mapping[str, Floats]]
    bar_numbers: NDArray[np.int64]
    horizon_bars: int
    origin: str

    def __len__(self) -> int:
        return len(self.bar_numbers)


def recorded_losses(
    ledger: Ledger, run: Path, series: Series, model_sha256: str, start_s: int
) -> Losses | None:
    """Return those of the live record that one model issued in time; None where it issued none.

    Args:
        ledger: An open ledger.
        run: The run that the model belongs to.
        series: Which series.
        model_sha256: Digest of the model file.
        start_s: Forecasts for closes from then on count, seconds since the epoch, UTC.

    Raises:
        ArtifactError: If what the ledger holds cannot be trusted.
    """
    found = [one for one in ledger.scored(run, str(series)) if one.issuer.model_sha256 == model_sha256]
    return _recorded(max(found, key=lambda one: len(one.issued_for_s)), start_s) if found else None


def _recorded(scored: Scored, start_s: int) -> Losses:
    issuer = scored.issuer
    is_in_time = scored.written_s < scored.issued_for_s + issuer.bar_s
    is_meant = is_in_time & (scored.issued_for_s >= start_s)
    losses = scored.losses[is_meant]
    by_task = {
        task: {name: losses[:, place, number] for place, name in enumerate(issuer.forecasters)}
        for number, task in enumerate(issuer.tasks)
    }
    # The newest candle closed when the forecast was issued for.
    bars = scored.issued_for_s[is_meant] // issuer.bar_s - 1
    return Losses(by_task, bars, issuer.horizon_bars, "of the live record")


def back_tested_losses(folder: Path, opponents: Mapping[str, str], candles: Candles, start_s: int) -> Losses:
    """Let a model forecast the candles since, beside naive and one baseline a task.

    Args:
        folder: Its artefact.
        opponents: Per task a key of `BASELINES`; it is fitted to what lies before `start_s`.
        candles: Those since, and enough before to fit baselines to.
        start_s: Forecasts that are issued from then on count, seconds since the epoch, UTC.

    Returns:
        Losses, none of them where nothing lies before `start_s` that baselines could be fitted to.

    Raises:
        ArtifactError: If the model cannot be trusted.
    """
    forecaster = Forecaster.load(folder)
    before, since = _spans(forecaster, candles, start_s)
    if not len(before) or not len(since):
        return Losses({}, np.zeros(0, np.int64), since.horizon_bars, "")
    scaling = _scaling(forecaster)
    by_task = {}
    for task, values in forecaster.forecast(since.raw_windows()).items():
        made = {MODEL: values.astype(np.float64), NAIVE: since.rolled[task]}
        if (name := opponents[task]) not in made and BASELINES[name].is_installed():
            made[name] = BASELINES[name].fit(before, scaling)(since)[task]
        by_task[task] = {who: measure_errors(since, task, what)[1] for who, what in made.items()}
    return Losses(by_task, since.bar_numbers, since.horizon_bars, "of a back-test")


def _spans(forecaster: Forecaster, candles: Candles, start_s: int) -> tuple[Span, Span]:
    """Return the windows that ended before a moment, and those that are issued from then on."""
    profile = recorded_profile(forecaster.metadata.get("profile"), where=f"metadata of {forecaster.series}")
    table = compute_table(candles, table_columns(profile))
    anchors = window_anchors(table.segment, (0, len(table)), profile.lookback_bars, profile.horizon_bars)
    is_before = _closed_s(table, anchors + profile.horizon_bars) <= start_s
    is_since = _closed_s(table, anchors) >= start_s
    return Span(table, profile, anchors[is_before]), Span(table, profile, anchors[is_since])


def _closed_s(table: FeatureTable, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(table.open_time_s[rows] + table.series.bar_s)


def _scaling(forecaster: Forecaster) -> Scaling:
    where = f"metadata of {forecaster.series}, key scaling"
    fix = "Restore the file or train the series again"
    return checked(_SCALING, forecaster.metadata.get("scaling"), where=where, fix=fix, rule=AS_WRITTEN)
