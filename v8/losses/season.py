"""A season: how everybody erred on the test span of one series, window by window.

A judgement holds means; a test over several series or several spans needs the windows, because series that
are judged at the same close share what happened then. A back-test keeps a season beside each of its models.

Legend: N windows, H steps of the horizon, R rows.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.columns import CLOSE, HIGH, LOW, OHLC, TASK_OHLC
from v8.errors import ArtifactError
from v8.features.formulas import DAY_S
from v8.losses.table import Losses
from v8.records import read_plain
from v8.storage import write_bytes
from v8.windows.dataset import SeriesData
from v8.windows.span import Floats

SEASON_FILE: Final = "season.npz"

BREAK_FACTOR: Final = 1.5
"""A season is a break where its wildest day exceeds the wild days of training by more; see `shock_of`."""

WILD_DAYS: Final = 2.5
"""Later days that would be wilder than the train day they are compared with, had nothing changed."""

MAX_SHOCK: Final = 1e6
"""Shocks beyond this, of markets that stood still in training, count as this."""

_FIX: Final = "Move the folder of this series in its fold away, then repeat the command of the back-test"


@dataclass(frozen=True, eq=False)
class Season:
    """The test span of one series.

    Args:
        closes_s: When each window's last known candle closed, seconds since the epoch, shape (N,), ascending.
        losses: As in the table of losses (`v8.losses.table`), float32.
        held: Share of windows whose true close lay between the forecast low and high, by step, shape (H,).
    """

    closes_s: NDArray[np.int64]
    losses: Mapping[str, Mapping[str, NDArray[np.float32]]]
    held: Floats
    shock: float  # see `shock_of`

    @property
    def is_break(self) -> bool:
        """Whether volatility broke out of what training had seen."""
        return self.shock > BREAK_FACTOR

    def save(self, file: Path) -> None:
        """Write it."""
        arrays: dict[str, NDArray[Any]] = {
            f"{task} {name}": losses.astype(np.float32)
            for task, by_name in self.losses.items()
            for name, losses in by_name.items()
        }
        arrays |= {"closes_s": self.closes_s, "held": self.held, "shock": np.array(self.shock)}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # one is `allow_pickle`, in its eyes
        write_bytes(file, buffer.getvalue())

    @classmethod
    def load(cls, file: Path) -> Season:
        """Read what `save` wrote. Raises `ArtifactError` if the file is missing or damaged."""
        content = read_plain(file, fix=_FIX)
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            season = cls(arrays.pop("closes_s"), {}, arrays.pop("held"), float(arrays.pop("shock")))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise _damaged(file, f"{type(error).__name__}: {error}") from error
        losses: dict[str, dict[str, NDArray[np.float32]]] = {}
        for key, values in arrays.items():
            task, _, name = key.partition(" ")
            if values.shape != season.closes_s.shape or not np.isfinite(values).all():
                raise _damaged(file, f"{key} of shape {values.shape}")
            losses.setdefault(task, {})[name] = values
        return cls(season.closes_s, losses, season.held, season.shock)


def season_of(data: SeriesData, forecasts: Mapping[str, Any], losses: Losses) -> Season:
    """Describe the test span of a judged series.

    The model's forecasts are per task, shape (N, H, C); the losses those of `judgement.judge_windows`.
    """
    test = data.spans["test"]
    truth, made = test.truth[TASK_OHLC][..., OHLC.index(CLOSE)], forecasts[TASK_OHLC]
    is_held = (truth >= made[..., OHLC.index(LOW)]) & (truth <= made[..., OHLC.index(HIGH)])
    bar_s = data.series.bar_s
    return Season(
        closes_s=data.table.open_time_s[test.anchors].astype(np.int64) + bar_s,
        losses={
            task: {name: values.astype(np.float32) for name, values in by_name.items()}
            for task, by_name in losses.by_task.items()
        },
        held=is_held.mean(axis=0),
        shock=shock_of(*_ranges(data), bars_a_day=max(1, DAY_S // bar_s)),
    )


def shock_of(trained: Floats, later: Floats, bars_a_day: int) -> float:
    """Say how much wilder the wildest day after training was than the wild days of training.

    The wildness of a day is the root of the mean squared log range of its bars. What is compared is the
    wildest of n later days (validation and test) with the 1 - `WILD_DAYS` / n quantile of the train days, at
    least their median: the more days, the wilder the wildest of them is without any change. Above
    `BREAK_FACTOR` the season is a break in volatility: at the median over series this finds 2024-04-13 and
    2024-08-05 at 15m and 2023-08-17 at 1h on the exchange's archive, and calls May and June 2024 calm.

    Args:
        trained: Log ranges of the train bars, shape (R,).
        later: Those of the bars after them.
        bars_a_day: Bars of a day, at least 1; what is left of the last one counts for nothing unless it is
            all there is.

    Returns:
        A factor, unitless, at most `MAX_SHOCK`; 0 where nothing moves any more.

    >>> shock_of(np.full(96 * 5, 0.01), np.r_[np.full(96, 0.01), np.full(96, 0.02)], 96)
    2.0
    """
    days = _wildness(later, bars_a_day)
    usual = float(np.quantile(_wildness(trained, bars_a_day), max(0.5, 1.0 - WILD_DAYS / len(days))))
    return min(float(days.max()) / max(usual, float(np.finfo(np.float32).tiny)), MAX_SHOCK)


def _wildness(ranges: Floats, bars_a_day: int) -> Floats:
    """Return the root mean square of every whole day."""
    num_days = max(1, len(ranges) // bars_a_day)
    days = np.array_split(np.square(ranges[: num_days * bars_a_day]), num_days)
    return np.array([np.sqrt(day.mean()) for day in days])


def _ranges(data: SeriesData) -> tuple[Floats, Floats]:
    """Return the log ranges of the bars of the train span, and of all later ones."""
    high, low = (data.table.column(name).astype(np.float64) for name in (HIGH, LOW))
    ranges = np.log(high / low)
    end = data.split.train[1]
    return ranges[:end], ranges[end:]


def _damaged(file: Path, got: str) -> ArtifactError:
    return ArtifactError(where=str(file), rule="must be a season as v8 writes it", got=got[:200], fix=_FIX)
