"""Fits formulas: what `v8.training.trainer` is for networks, for profiles without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from v8.errors import DivergedError
from v8.formulas.range_paths import fit_range_paths
from v8.hardware import device_of, memory_of
from v8.networks.formula import FormulaModel, build_formula, formula_weights, num_fitted
from v8.networks.serving import LEAST_VOLATILITY_SHARE
from v8.profile import Profile
from v8.training.trainer import Member, TrainingResult
from v8.windows.dataset import SeriesData


class FormulaTrainer:
    """Fits the formula of a profile to series.

    Args:
        profile: Of a family that is a formula.
        precision: Number format of what it publishes; there is but "float32".
        check: Called before every fit; may raise to stop there.
        num_parts: Of no meaning here: there are no steps.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        precision: str = "float32",
        check: Callable[[], None] = lambda: None,
        num_parts: int | None = None,
    ) -> None:
        self.profile, self.precision, self.num_parts = profile, precision, num_parts or 1
        self._check, self._model = check, build_formula(profile)

    @property
    def num_parameters(self) -> int:
        """Fitted numbers of one series."""
        return num_fitted(self.profile)

    def fit_fleet(self, members: Sequence[Member]) -> Iterator[tuple[int, TrainingResult | DivergedError]]:
        """Fit the train span of each series.

        Yields:
            Place in `members` and result, as each one is fitted.
        """
        for place, member in enumerate(members):
            self._check()
            yield place, self._fitted(member.data)

    def serving_model(self, data: SeriesData, weights: list[NDArray[np.float32]]) -> FormulaModel:
        """Return the published model of a series: raw window in, price units out, always float32."""
        return FormulaModel(self._model, weights)

    def _fitted(self, data: SeriesData) -> TrainingResult:
        started, device = time.perf_counter(), device_of(self._model.weights[0].value)
        fitted = fit_range_paths(data.spans["train"])
        least_volatility = LEAST_VOLATILITY_SHARE * data.scaling.volatility_floor
        return TrainingResult(
            history=(),
            untrained_loss=None,
            best_epoch=0,
            best_validation_loss=None,
            stopped_by="fit",
            weights=formula_weights(fitted, least_volatility),
            resumed_from_epoch=0,
            seconds={"train": time.perf_counter() - started},
            device=device,
            peak_memory_bytes=memory_of(device).peak_bytes,
        )
