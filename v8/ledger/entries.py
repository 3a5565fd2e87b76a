"""What stands in the ledger: who forecast, what was forecast, and how far it was from the actual values.

Numbers of a forecast are float32, as a model gives them; what is written is what is scored. Arrays of all
tasks lie one behind the other, in the order of `Issuer.tasks`, each as steps times columns.

The loss of a forecast is what the leaderboard averages: its mean absolute error in returns over all steps
and columns of a task; that of a quantile is twice its pinball loss. It is taken once, when the last forecast
bar has closed, from the columns that the evaluation takes its actual values from, computed from a fixed number of
candles: the same whenever it is done.

Legend: K forecasters, V values of one forecaster (steps times columns of all tasks), T tasks, H steps, C
columns of a task.
"""

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Annotated, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from v8.artifacts.run_folder import SeriesName
from v8.baselines.baselines import NAIVE
from v8.columns import CLOSE
from v8.evaluation.evaluation import MODEL
from v8.evaluation.metrics import in_returns
from v8.features.formulas import DAY_S
from v8.features.indicators import warmup_bars
from v8.features.table import compute_table
from v8.market.candles import Candles
from v8.market.series import Series, iso
from v8.profile import ProfileName
from v8.quantile_levels import MEDIAN, pinball, quantile_column
from v8.records import Count, OpenTime, Positive, Sha256, Word

Number = TypeVar("Number", np.float32, np.float64)

MAX_VALUES: Final = 100_000  # values of one forecaster; a thousand steps of the shipped tasks have 7,000
QUANTILE_PREFIX: Final = f"{MODEL}_q"

Place = Annotated[str, Field(strict=True, min_length=1, max_length=1_000)]
"""Where the models are: `./` and the path of a run beside the ledger, an absolute path, or `user/name`."""


def quantile_forecaster(level: float) -> str:
    """Name a quantile of a model among the forecasters, by its level in per cent.

    >>> quantile_forecaster(0.05)
    'model_q5'
    """
    return quantile_column(MODEL, level).replace(".", "-")  # it is a word


def level_of(forecaster: str) -> float | None:
    """Return the level of the quantile that a forecaster stands for; None for a point forecast.

    >>> level_of("model_q97-5"), level_of("model")
    (0.975, None)
    """
    if not forecaster.startswith(QUANTILE_PREFIX):
        return None
    return float(forecaster.removeprefix(QUANTILE_PREFIX).replace("-", ".")) / 100


@dataclass(frozen=True)
class Issuer:
    """One model of one series of a place, and what stands beside it."""

    place: Place  # where the model is, see `v8.ledger.database.place_name`
    series: SeriesName  # such as "BTCUSDT-15m"
    model_sha256: Sha256  # digest of the model file
    revision: Annotated[str, Field(strict=True, pattern="^[0-9a-f]{40}$")] | None  # commit of the Hub
    trained_until_s: (
        OpenTime  # when the last candle closed that training has seen, seconds since the epoch, UTC
    )
    profile: ProfileName  # name of the profile that it was trained with
    profile_digest: Sha256  # digest of that profile
    source: Word  # name of the source of candles
    bar_s: Positive  # seconds of a bar
    horizon_bars: Positive  # bars ahead
    tasks: Mapping[Word, tuple[Word, ...]]  # what is forecast: columns per task, in the order of the values
    forecasters: tuple[Word, ...]  # `MODEL`, keys of `BASELINES`, `quantile_forecaster` of each outer level

    def __post_init__(self) -> None:
        is_timed = Series.parse(self.series).bar_s == self.bar_s
        has_columns = bool(self.tasks) and all(self.tasks.values())
        is_beside = self.forecasters[:1] == (MODEL,) and NAIVE in self.forecasters
        is_single = len(set(self.forecasters)) == len(self.forecasters)
        is_bounded = self.num_values <= MAX_VALUES and all(0 < level < 1 for level in self.levels)
        if not (is_timed and has_columns and is_beside and is_single and is_bounded):
            raise ValueError("forecasts bars of its series, tasks with columns, by a model, naive and others")

    @property
    def num_values(self) -> int:
        """Values of one forecaster."""
        return self.horizon_bars * sum(map(len, self.tasks.values()))

    @property
    def levels(self) -> dict[float, int]:
        """Where among its forecasters quantiles of the model stand, by level; empty where it has none."""
        levels = {level_of(name): place for place, name in enumerate(self.forecasters)}
        return {level: place for level, place in levels.items() if level is not None}

    @property
    def generation(self) -> str:
        """Say which generation of the place's models it is of: until when it has seen, and its digest."""
        return f"{iso(self.trained_until_s)} {self.model_sha256[:12]}"

    def to_json(self) -> dict[str, Any]:
        """Return which model it is as plain JSON values."""
        return {
            "model_sha256": self.model_sha256,
            "revision": self.revision,
            "trained_until": iso(self.trained_until_s),
            "profile": self.profile,
        }

    def split(self, values: NDArray[Number]) -> dict[str, NDArray[Number]]:
        """Part values of shape (..., V) by task, each (..., H, C)."""
        parts = {}
        start = 0
        num_bars = self.horizon_bars
        for task, columns in self.tasks.items():
            stop = start + num_bars * len(columns)
            parts[task] = values[..., start:stop].reshape(*values.shape[:-1], num_bars, len(columns))
            start = stop
        return parts

    def joined(self, tasks: Mapping[str, NDArray[np.floating[Any]]]) -> NDArray[np.float32]:
        """Put arrays (..., H, C) of all tasks one behind the other, the inverse of `split`."""
        flat = [tasks[name].reshape(*tasks[name].shape[:-2], -1) for name in self.tasks]
        return np.concatenate(flat, axis=-1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Entry:
    """A forecast that was issued; times are seconds since the epoch, UTC."""

    issuer: Issuer  # who forecast
    issued_for_s: OpenTime  # when the newest candle closed, which is when the first forecast bar opens
    written_s: OpenTime  # when it was written, by the exchange's clock
    candles_digest: Sha256  # of the candles that it was made from
    values: NDArray[np.float32]  # what every forecaster said, shape (K, V), quote currency or unitless

    @property
    def is_late(self) -> bool:
        """Whether the first forecast bar had closed when it was written: then some of the actual values were there."""
        return self.written_s >= self.issued_for_s + self.issuer.bar_s

    @property
    def due_s(self) -> int:
        """When the last forecast bar closes."""
        return self.issued_for_s + self.issuer.horizon_bars * self.issuer.bar_s

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values, per column what every forecaster said of the bars ahead."""
        issuer, parts = self.issuer, self.issuer.split(self.values)
        said = {
            column: dict(zip(issuer.forecasters, parts[task][..., number].tolist(), strict=True))
            for task, columns in issuer.tasks.items()
            for number, column in enumerate(columns)
        }
        times = {"issued_for": iso(self.issued_for_s), "written_at": iso(self.written_s)}
        about = {"series": issuer.series, "model": issuer.to_json(), "candles_digest": self.candles_digest}
        opens = [iso(at_s) for at_s in range(self.issued_for_s, self.due_s, issuer.bar_s)]
        return {**times, **about, "open_time": opens, "forecasts": said}


@dataclass(frozen=True, eq=False)
class Score:
    """How far a forecast was from the actual values; None where a candle never came, so that nothing is to score.

    A loss is the mean absolute error in returns over all steps and columns, of a quantile twice its pinball.
    """

    scored_s: OpenTime  # when it was scored, by the exchange's clock
    actual_digest: Sha256 | None  # of the candles of the forecast bars, as they were then
    actual: NDArray[np.float32] | None  # what happened, shape (V,)
    losses: NDArray[np.float64] | None  # shape (K, T), unitless


@dataclass(frozen=True, eq=False)
class Scored:
    """All scored forecasts of one issuer, in the order of time."""

    issuer: Issuer  # who forecast
    issued_for_s: NDArray[np.int64]  # shape (N,), int64
    written_s: NDArray[np.int64]  # shape (N,), int64
    losses: NDArray[np.float64]  # shape (N, K, T), float64, unitless

    def of(self, task: str, forecaster: str) -> NDArray[np.float64]:
        """Return the losses of one forecaster on one task, shape (N,)."""
        return self.losses[:, self.issuer.forecasters.index(forecaster), [*self.issuer.tasks].index(task)]

    def in_time(self, since_s: int = 0) -> "Scored":
        """Leave out what was written late, or issued for an earlier close than `since_s`."""
        is_in_time = self.written_s < self.issued_for_s + self.issuer.bar_s
        kept = is_in_time & (self.issued_for_s >= since_s)
        return Scored(self.issuer, self.issued_for_s[kept], self.written_s[kept], self.losses[kept])


@dataclass(frozen=True)
class Tally:
    """How many forecasts of a series were issued."""

    num_issued: Count = 0  # all of them
    num_late: Count = 0  # those whose first bar had closed when they were written
    num_scored: Count = 0  # those that were scored, late ones among them
    num_void: Count = 0  # those of which a candle never came

    @property
    def num_pending(self) -> int:
        """Those whose actual values have not come yet."""
        return self.num_issued - self.num_scored - self.num_void

    def to_json(self) -> dict[str, int]:
        """Return it as plain JSON values."""
        return {**asdict(self), "num_pending": self.num_pending}

    def __add__(self, other: "Tally") -> "Tally":
        """Count those of both."""
        return Tally(*map(sum, zip(astuple(self), astuple(other), strict=True)))


GIVEN_UP_S: Final = 2 * DAY_S
"""A candle that has not come so long after the last forecast bar closed never will: there is no score."""


def actual_bars(entry: Entry) -> int:
    """Return how many candles up to the last forecast bar a score is computed from."""
    return warmup_bars(_columns(entry)) + 1 + entry.issuer.horizon_bars


def score(entry: Entry, candles: Candles, now_s: int) -> Score | None:
    """Compare a forecast, whose last bar has closed, with what came; `now_s` is the present, seconds, UTC.

    At least `actual_bars` candles up to its last bar are needed. Returns its score; one without losses where a
    candle never came; None where it may still come.
    """
    issuer = entry.issuer
    num_bars = actual_bars(entry)
    needed = np.arange(entry.due_s - num_bars * issuer.bar_s, entry.due_s, issuer.bar_s)
    is_needed = (candles.open_time_s >= needed[0]) & (candles.open_time_s <= needed[-1])
    if int(is_needed.sum()) < num_bars:
        return Score(now_s, None, None, None) if now_s >= entry.due_s + GIVEN_UP_S else None
    known = candles.newest(num_bars, int(needed[-1]))
    table = compute_table(known, _columns(entry))
    ahead = slice(-issuer.horizon_bars, None)
    actual = {task: table.select(columns)[ahead] for task, columns in issuer.tasks.items()}
    last_close = float(table.column(CLOSE)[-1 - issuer.horizon_bars])
    return Score(now_s, known.digest, issuer.joined(actual), _losses(entry, actual, last_close))


def _columns(entry: Entry) -> tuple[str, ...]:
    wanted = (name for columns in entry.issuer.tasks.values() for name in columns)
    return tuple(dict.fromkeys((*wanted, CLOSE)))


def _losses(
    entry: Entry, actual: Mapping[str, NDArray[np.float32]], last_close: float
) -> NDArray[np.float64]:
    """Return mean absolute errors in returns, of quantiles twice their pinball losses, shape (K, T)."""
    closes = np.full(len(entry.values), last_close)
    forecasts = entry.issuer.split(entry.values.astype(np.float64))
    # A point forecast is the median, of which twice the pinball loss is the absolute error itself.
    levels = np.array([level_of(name) or MEDIAN for name in entry.issuer.forecasters])[:, None, None]
    losses = []
    for task in entry.issuer.tasks:
        beyond = in_returns(task, actual[task] - forecasts[task], closes)
        losses.append(2.0 * pinball(np, beyond, levels).mean(axis=(1, 2)))
    return np.stack(losses, axis=1)
