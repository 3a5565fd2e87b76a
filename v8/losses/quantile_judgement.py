"""The judgement of quantiles on the test span of one series, beside the baselines that have some.

Pinball losses say how good a quantile is; twice their mean over the levels is near the continuous ranked
probability score (CRPS; Gneiting and Raftery 2007, doi:10.1198/016214506000001437), of which the mean
absolute error is the case of one forecast without spread. An interval is honest where it holds the share of
truths that it promises, and better the narrower it is.

Legend: N windows, H steps of the horizon, Q levels, I central intervals, C columns of a task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from v8.errors import ArtifactError, SeriesError, listed
from v8.formulas.baselines import BASELINES
from v8.losses.judgement import MODEL
from v8.losses.metrics import Cell, Floats, in_returns
from v8.losses.significance import Significance
from v8.losses.table import Losses
from v8.quantile_levels import interval_names, intervals, pinball
from v8.records import Count, Number, Word, check_format, checked
from v8.tasks import TASKS
from v8.windows.dataset import SeriesData
from v8.windows.scaling import Scaling
from v8.windows.span import Span

QUANTILES_FORMAT: Final = 1
"""Version of the keys `to_json` writes."""

_RULE: Final = f"must be a judgement of quantiles of format {QUANTILES_FORMAT}"
_FIX: Final = "Train this series again, or read it with the version of v8 that wrote it"

Share = Annotated[Number, Field(ge=0, le=1)]
Cells = tuple[tuple[tuple[Cell, ...], ...], ...]
Shares = tuple[tuple[tuple[Share, ...], ...], ...]


@dataclass(frozen=True)
class QuantileErrors:
    """How one forecaster's quantiles of one task did."""

    pinball: Cells  # mean pinball losses in returns, Q x H x C, unitless
    coverage: Shares  # shares of truths within each central interval, I x H x C, 0 to 1
    width: Cells  # mean widths of the intervals in returns, I x H x C, unitless

    @property
    def crps(self) -> float:
        """Twice the mean pinball loss over all levels, steps and columns, in returns."""
        return 2.0 * _mean(self.pinball)

    def coverage_by_step(self, interval: int) -> tuple[float, ...]:
        """Return the share within an interval of each step over all columns."""
        return tuple(math.fsum(row) / len(row) for row in self.coverage[interval])

    def mean_coverage(self, interval: int) -> float:
        """Return the share within an interval over all steps and columns."""
        return _mean(self.coverage[interval : interval + 1])

    def mean_width(self, interval: int) -> float:
        """Return the mean width of an interval over all steps and columns, in returns."""
        return _mean(self.width[interval : interval + 1])


@dataclass(frozen=True)
class JudgedQuantiles:
    """How the quantiles of one task did."""

    errors: Mapping[Word, QuantileErrors]  # per forecaster, `MODEL` or a baseline with quantiles
    significance: Mapping[Word, Significance]  # per baseline: of the CRPS

    def multiple(self, baseline: str) -> float | None:
        """Return the model's CRPS as a multiple of a baseline's; None if that made no error."""
        ours, theirs = (self.errors[name].crps for name in (MODEL, baseline))
        return ours / theirs if theirs > 0 else None


@dataclass(frozen=True)
class QuantileJudgement:
    """How a model's quantiles did on the test span of one series."""

    levels: tuple[Share, ...]  # all of them, ascending
    num_windows: Count  # windows of the test span
    tasks: Mapping[str, JudgedQuantiles]  # what was judged

    @property
    def intervals(self) -> tuple[tuple[float, float], ...]:
        """Return the central intervals, the widest first."""
        return intervals(self.levels)

    def named_intervals(self) -> list[str]:
        """Say by how many per cent each interval is called: "90 %"."""
        return interval_names(self.levels)

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return per task the CRPS, in returns and as multiples of baselines', and coverage by interval."""
        return {
            task: {
                "crps": judged.errors[MODEL].crps,
                "crps_multiples": {name: judged.multiple(name) for name in judged.significance},
                "coverage": {
                    name: judged.errors[MODEL].mean_coverage(place)
                    for place, name in enumerate(self.named_intervals())
                },
            }
            for task, judged in self.tasks.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        content: dict[str, Any] = _JUDGEMENT.dump_python(self, mode="json", by_alias=True)
        return {"format": QUANTILES_FORMAT, **content}

    @classmethod
    def from_json(cls, content: Any, *, where: str) -> QuantileJudgement:
        """Read what `to_json` wrote; `where` is named by errors."""
        check_format(content, (QUANTILES_FORMAT,), what="judgement of quantiles", where=where, fix=_FIX)
        judgement = checked(_JUDGEMENT, content, where=where, fix=_FIX, rule=_RULE)
        if faults := [*_faults(judgement)]:
            raise ArtifactError(where=where, rule=_RULE, got=listed(faults), fix=_FIX)
        return judgement


_JUDGEMENT: Final = TypeAdapter(QuantileJudgement)


def judge_quantiles(data: SeriesData, model: Mapping[str, Floats]) -> QuantileJudgement:
    """Measure a model's quantiles of the test span, and those of every baseline that has some, see below."""
    return judge_span_quantiles(data.spans["test"], model, train=data.spans["train"], scaling=data.scaling)


def judge_span_quantiles(
    span: Span, model: Mapping[str, Floats], *, train: Span, scaling: Scaling
) -> QuantileJudgement:
    """Measure quantiles on any windows, whose profile gives the levels, beside baselines fitted to `train`.

    The model's are per task, shape (N, H, Q, C), in the task's unit.
    """
    levels = span.profile.quantiles
    fitted = {name: one.fit_quantiles for name, one in BASELINES.items() if one.fit_quantiles}
    made = {name: fit(train, scaling, levels)(span) for name, fit in fitted.items()}
    tasks = {}
    for task in (task for task in TASKS if task in span.profile.tasks):
        measured = {
            name: measure_quantiles(span, task, forecasts[task], levels)
            for name, forecasts in {MODEL: model, **made}.items()
        }
        losses = Losses.of(span, {task: {name: values for name, (_, values) in measured.items()}})
        tests = {name: losses.test(task, MODEL, name) for name in made}
        tasks[task] = JudgedQuantiles({name: errors for name, (errors, _) in measured.items()}, tests)
    return QuantileJudgement(levels, len(span), tasks)


def measure_quantiles(
    span: Span, task: str, forecast: Floats, levels: Sequence[float]
) -> tuple[QuantileErrors, NDArray[np.float64]]:
    """Measure one forecaster's quantiles of one task.

    Args:
        forecast: Shape (N, H, Q, C), in the task's unit.
        levels: Ascending, shape (Q,).

    Returns:
        What is judged; and what each window adds to the CRPS, shape (N,), float64, unitless.

    Raises `SeriesError` if the shape is not that of truth and levels, or a number is not finite.
    """
    truth_NHC = span.truth[task]
    num_windows, horizon, num_columns = truth_NHC.shape
    shape = (num_windows, horizon, len(levels), num_columns)
    if forecast.shape != shape or not np.isfinite(forecast).all():
        raise SeriesError(
            where=f"{span.table.series}, quantiles of {task}",
            rule=f"are finite numbers of the shape {shape}",
            got=f"the shape {forecast.shape}" if forecast.shape != shape else "others",
            fix="Train again with a lower learning_rate or a clip_norm",
        )
    by_level = np.moveaxis(forecast.astype(np.float64), 2, 0)
    losses_QNHC = np.stack(
        [pinball(np, truth_NHC - one, level) for one, level in zip(by_level, levels, strict=True)]
    )
    losses_QNHC = np.stack([in_returns(task, one, span.last_close) for one in losses_QNHC])
    coverage, width = [], []
    for pair in intervals(levels):
        low, high = (by_level[list(levels).index(level)] for level in pair)
        coverage.append(((low <= truth_NHC) & (truth_NHC <= high)).mean(axis=0))
        width.append(in_returns(task, high - low, span.last_close).mean(axis=0))
    errors = QuantileErrors(*map(_cells, (losses_QNHC.mean(axis=1), coverage, width)))
    return errors, 2.0 * losses_QNHC.mean(axis=(0, 2, 3))


def _cells(values: Any) -> Cells:
    return tuple(tuple(map(tuple, one)) for one in np.asarray(values).tolist())


def _mean(cells: Cells) -> float:
    numbers = [cell for level in cells for row in level for cell in row]
    return math.fsum(numbers) / len(numbers)


def _faults(judgement: QuantileJudgement) -> Iterator[str]:
    """Say what of a judgement does not fit together, though every number is in its range."""
    num_intervals = len(judgement.intervals)
    for task, judged in judgement.tasks.items():
        if task not in TASKS or MODEL not in judged.errors:
            yield f"the task {task}"
            continue
        first = _shape_of(judged.errors[MODEL].pinball)
        shapes = [len(judgement.levels), num_intervals, num_intervals]
        for errors in judged.errors.values():
            found = [_shape_of(one) for one in (errors.pinball, errors.coverage, errors.width)]
            if not first or found != [(number, *first[1:]) if number else (0,) for number in shapes]:
                yield f"{task} with losses of another shape than its levels"


def _shape_of(cells: Cells) -> tuple[int, ...]:
    """Return the shape of cells; that of nothing where their rows differ in length."""
    try:
        return np.shape(cells)
    except ValueError:
        return ()
