"""What the turns of all contenders share: training data, demo candles of a profile, and how work is timed.

A turn is timed by the clock and in processor time: how many windows a contender trained on in some seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from v8.data.features import compute_table
from v8.data.market.series import load_universe
from v8.data.market.sources.demo import DemoSource
from v8.data.windows import SeriesData, prepare_series, table_columns
from v8.profile.profile import Profile, load_profile

Turn: TypeAlias = Callable[[float], dict[str, Any]]
"""Works for about so many seconds and returns what it did, at least `rate`."""


class RefusedError(Exception):
    """This machine cannot do what a contender is; the text says what is missing. The others go on."""


@dataclass(frozen=True)
class Stretch:
    """Work without a pause: an epoch, or some steps.

    Args:
        num_windows: Training windows.
        seconds: By the clock.
        cpu_s: Of all threads of this process; seldom more because others work at the same time.
    """

    num_windows: float
    seconds: float
    cpu_s: float

    @staticmethod
    def summary(stretches: Sequence[Stretch]) -> dict[str, float]:
        """Return windows/s of the median stretch; windows and processor time of all."""
        return {
            "rate": statistics.median(stretch.num_windows / stretch.seconds for stretch in stretches),
            "num_windows": sum(stretch.num_windows for stretch in stretches),
            "cpu_s": sum(stretch.cpu_s for stretch in stretches),
        }


class Stopwatch:
    """Runs from its making."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._cpu = time.process_time()

    def after(self, num_windows: float) -> Stretch:
        """Return the stretch from the start until now."""
        return Stretch(num_windows, time.perf_counter() - self._started, time.process_time() - self._cpu)


def clocked(work: Callable[[], float]) -> Stretch:
    """Do work that returns its number of windows."""
    watch = Stopwatch()
    return watch.after(work())


def load_sized_profile(spec: dict[str, Any]) -> Profile:
    """Load the profile that `spec` names, with its `batch_size` if that is not None."""
    profile = load_profile(spec["profile"])
    return profile if spec["batch_size"] is None else with_batch(profile, spec["batch_size"])


def with_batch(profile: Profile, batch_size: int) -> Profile:
    """Return the profile with another number of windows a step, on every device."""
    changed = {"batch_size": batch_size, "cpu_batch_size": None}
    content = profile.model_dump()
    content["training"] |= changed
    return Profile.model_validate(content)


def demo_series(profile: Profile, num_bars: int, num_series: int) -> list[SeriesData]:
    """Return the prepared data of some series of the demo market."""
    source = DemoSource()
    universe = load_universe()
    chosen = [universe[number % len(universe)] for number in range(num_series)]
    candles = [source.candles(series, num_bars) for series in chosen]
    return [prepare_series(compute_table(own, table_columns(profile)), profile) for own in candles]


def arrays_of(data: SeriesData) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
    """Copy all train windows out of the tables, which is what `fit` on arrays needs.

    Returns:
        Inputs (N, T, F) and targets, task to (N, H, C), scaled, float32.
    """
    rows = data.anchors["train"]
    x_NTF = data.inputs_NF[rows[:, None] + np.arange(1 - data.profile.lookback_bars, 1)]
    close = data.profile.features.index("close")
    x_NTF = x_NTF - x_NTF[:, -1:, close : close + 1] * data.scaling.anchored_mask()
    return x_NTF, {task: target[rows] for task, target in data.targets_NHC.items()}
