"""The table of paired losses of one judged series: what every comparison of forecasters starts from.

Judgements, quantile judgements, contests, decay and the live record ask it whether two forecasters differ by
more than chance; back-tests keep it in a file (`v8.losses.season`). A loss is a mean over steps and columns:
what a step adds stands in the judgement's grids, as means over windows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self

import numpy as np
from numpy.typing import NDArray

from v8.formulas.baselines import NAIVE
from v8.losses.significance import Significance, diebold_mariano
from v8.windows.span import Span

LossesByTask = Mapping[str, Mapping[str, NDArray[np.float64]]]
"""Per task and forecaster, the loss of each window, shape (N,)."""


@dataclass(frozen=True, eq=False)
class Losses:
    """How everybody erred in each of N windows of one series.

    Args:
        by_task: Per task and forecaster (`MODEL`, keys of `BASELINES`), shape (N,), unitless: the mean
            absolute error in returns over all steps and columns; of quantiles twice the mean pinball loss.
        bar_numbers: Bar of each window's newest candle, counted from the epoch, ascending, shape (N,).
    """

    by_task: LossesByTask
    bar_numbers: NDArray[np.int64]
    horizon_bars: int  # steps ahead
    origin: str = ""  # where they come from, in words

    @classmethod
    def of(cls, span: Span, by_task: LossesByTask, origin: str = "") -> Self:
        """Make the table of the windows of a span."""
        return cls(by_task, span.bar_numbers, span.horizon_bars, origin)

    def __len__(self) -> int:
        return len(self.bar_numbers)

    def mean(self, task: str, forecaster: str) -> float:
        """Return the mean loss of a forecaster."""
        return self.by_task[task][forecaster].mean()

    def test(self, task: str, ours: str, theirs: str, times: float = 1.0) -> Significance:
        """Test whether a forecaster differs from another, whose losses are multiplied first."""
        by_name = self.by_task[task]
        differences = by_name[ours] - times * by_name[theirs]
        return diebold_mariano(differences, horizon_bars=self.horizon_bars, bar_numbers=self.bar_numbers)


def best_of(errors: Sequence[Mapping[str, float]]) -> str:
    """Return the baseline whose error, as a multiple of naive's, has the smallest median: the one rule.

    Args:
        errors: Per series the error of each baseline, naive among them; one that not all have is left out.
    """

    def typical(name: str) -> float:
        multiples = [each[name] / each[NAIVE] for each in errors if each[NAIVE] > 0]
        return round(median(multiples or [math.inf]), 9)

    shared = [name for name in errors[0] if all(name in each for each in errors)]
    return min(shared, key=lambda name: (typical(name), name != NAIVE))
