"""The entries of the ledger: issuers, the forecasts that they issued, their scores, and coverage by day.

Numbers of a forecast are float32, as a model returns them; what is written is what is scored. The arrays of
all tasks are concatenated in the order of `Issuer.tasks`, each flattened from (steps, columns). A row holds
them packed (`pack`) and with a checksum.

`v8.annexes.live.issuing` makes forecasts and scores. Coverage is how many actual values lay in each
interval.

Legend: N forecasts, K forecasters, V values of one forecaster (steps times columns of all tasks), T tasks, H
steps, C columns of a task.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from v8.base.records import Count, OpenTime, Positive, Sha256, Word
from v8.data.market.series import Series, SeriesName, iso
from v8.model.baselines.baselines import NAIVE
from v8.model.baselines.paths import PriceRange, range_json
from v8.model.evaluation.evaluation import MODEL
from v8.model.evaluation.metrics import MIN_WIDTH
from v8.profile.columns import MEDIAN, interval_names, intervals, quantile_column
from v8.profile.formulas import DAY_S
from v8.profile.profile import ProfileName

Number = TypeVar("Number", np.float32, np.float64)
Numbers = TypeVar("Numbers", bound=NDArray[Any])

_COMPRESSION_LEVEL: Final = 9

MAX_VALUES: Final = 100_000  # values of one forecaster; a thousand steps of the shipped tasks have 7,000
QUANTILE_PREFIX: Final = f"{MODEL}_q"

Place = Annotated[str, Field(strict=True, min_length=1, max_length=1_000)]
"""Where the models are: `./` and the path of a run from the ledger's folder, an absolute path, or
`user/name`."""


def quantile_forecaster(level: float) -> str:
    """Name a quantile of a model among the forecasters, by its level in per cent.

    >>> quantile_forecaster(0.05)
    'model_q5'
    """
    return quantile_column(MODEL, level).replace(".", "-")  # a `Word` has no dot


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
    """One model of one series of a place, and the baselines that it is compared with."""

    place: Place  # where the model is, see `place_name`
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
        has_baselines = self.forecasters[:1] == (MODEL,) and NAIVE in self.forecasters
        is_unique = len(set(self.forecasters)) == len(self.forecasters)
        is_bounded = self.num_values <= MAX_VALUES and all(0 < level < 1 for level in self.levels)
        if not (is_timed and has_columns and has_baselines and is_unique and is_bounded):
            raise ValueError("forecasts bars of its series, tasks with columns, by a model, naive and others")

    @property
    def num_values(self) -> int:
        """Values of one forecaster."""
        return self.horizon_bars * sum(map(len, self.tasks.values()))

    @property
    def levels(self) -> dict[float, int]:
        """Positions of the model's quantiles among the forecasters, by level; empty if it has none."""
        positions = {level_of(name): position for position, name in enumerate(self.forecasters)}
        return {level: position for level, position in positions.items() if level is not None}

    @property
    def generation(self) -> str:
        """Name its generation among the place's models: until when it was trained, and its digest."""
        return f"{iso(self.trained_until_s)} {self.model_sha256[:12]}"

    def to_json(self) -> dict[str, Any]:
        """Return what identifies the model as plain JSON values."""
        return {
            "model_sha256": self.model_sha256,
            "revision": self.revision,
            "trained_until": iso(self.trained_until_s),
            "profile": self.profile,
        }

    def split(self, values: NDArray[Number]) -> dict[str, NDArray[Number]]:
        """Split values of shape (..., V) by task, each into (..., H, C)."""
        by_task = {}
        start = 0
        for task, columns in self.tasks.items():
            stop = start + self.horizon_bars * len(columns)
            shape = (*values.shape[:-1], self.horizon_bars, len(columns))
            by_task[task] = values[..., start:stop].reshape(shape)
            start = stop
        return by_task

    def concatenate(self, by_task: Mapping[str, NDArray[np.floating[Any]]]) -> NDArray[np.float32]:
        """Concatenate arrays (..., H, C) of all tasks to (..., V), the inverse of `split`."""
        flat = []
        for name in self.tasks:
            values = by_task[name]
            flat.append(values.reshape((*values.shape[:-2], -1)))
        return np.concatenate(flat, axis=-1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Entry:
    """A forecast that was issued; times are seconds since the epoch, UTC."""

    issuer: Issuer  # the model that forecast
    issued_for_s: OpenTime  # when the newest candle closed, which is when the first forecast bar opens
    written_s: OpenTime  # when it was written, by the exchange's clock
    candles_digest: Sha256  # of the candles that it was made from
    values: NDArray[np.float32]  # of every forecaster, shape (K, V), quote currency or unitless
    price_range: PriceRange | None = None
    """Where the price stays 9 times of 10: in messages, not in the ledger. None if it is not forecast."""

    @property
    def is_late(self) -> bool:
        """Whether the first forecast bar had closed when it was written, so that actual values were known."""
        return self.written_s >= self.issued_for_s + self.issuer.bar_s

    @property
    def due_s(self) -> int:
        """When the last forecast bar closes."""
        return self.issued_for_s + self.issuer.horizon_bars * self.issuer.bar_s

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values, with the forecasts by column and forecaster."""
        issuer = self.issuer
        by_task = issuer.split(self.values)
        forecasts: dict[str, dict[str, list[float]]] = {}
        for task, columns in issuer.tasks.items():
            for position, column in enumerate(columns):
                values = by_task[task][..., position].tolist()
                forecasts[column] = dict(zip(issuer.forecasters, values, strict=True))
        open_times_s = range(self.issued_for_s, self.due_s, issuer.bar_s)
        return {
            "issued_for": iso(self.issued_for_s),
            "written_at": iso(self.written_s),
            "series": issuer.series,
            "model": issuer.to_json(),
            "candles_digest": self.candles_digest,
            "open_time": [iso(open_time_s) for open_time_s in open_times_s],
            "forecasts": forecasts,
            **range_json(self.price_range),
        }


@dataclass(frozen=True, eq=False)
class Score:
    """The losses of a forecast; None if a candle never came, so that it cannot be scored.

    A loss is the mean absolute error in returns over all steps and columns; that of a quantile is twice its
    pinball loss.
    """

    scored_s: OpenTime  # when it was scored, by the exchange's clock
    actual_digest: Sha256 | None  # of the candles that it was scored with
    actual: NDArray[np.float32] | None  # shape (V,)
    losses: NDArray[np.float64] | None  # shape (K, T), unitless


@dataclass(frozen=True, eq=False)
class ScoredForecasts:
    """All scored forecasts of one issuer, in the order of time."""

    issuer: Issuer  # the model that forecast
    issued_for_s: NDArray[np.int64]  # shape (N,), int64
    written_s: NDArray[np.int64]  # shape (N,), int64
    losses: NDArray[np.float64]  # shape (N, K, T), float64, unitless

    def losses_of(self, task: str, forecaster: str) -> NDArray[np.float64]:
        """Return the losses of one forecaster on one task, shape (N,)."""
        tasks = list(self.issuer.tasks)
        return self.losses[:, self.issuer.forecasters.index(forecaster), tasks.index(task)]

    def in_time(self, since_s: int = 0) -> "ScoredForecasts":
        """Leave out forecasts that were written late, or issued for an earlier close than `since_s`."""
        is_in_time = self.written_s < self.issued_for_s + self.issuer.bar_s
        is_included = is_in_time & (self.issued_for_s >= since_s)
        return ScoredForecasts(
            issuer=self.issuer,
            issued_for_s=self.issued_for_s[is_included],
            written_s=self.written_s[is_included],
            losses=self.losses[is_included],
        )


@dataclass(frozen=True)
class ForecastCounts:
    """How many forecasts of a series were issued, late, scored and void."""

    num_issued: Count = 0  # all of them
    num_late: Count = 0  # those whose first bar had closed when they were written
    num_scored: Count = 0  # those that were scored, late ones among them
    num_scored_late: Count = 0  # late ones among those that were scored; they are in no error
    num_void: Count = 0  # those of which a candle never came

    @property
    def num_pending(self) -> int:
        """Those whose actual values have not come yet."""
        return self.num_issued - self.num_scored - self.num_void

    def to_json(self) -> dict[str, int]:
        """Return it as plain JSON values."""
        return {**asdict(self), "num_pending": self.num_pending}

    def __add__(self, other: "ForecastCounts") -> "ForecastCounts":
        """Add up both."""
        return ForecastCounts(
            num_issued=self.num_issued + other.num_issued,
            num_late=self.num_late + other.num_late,
            num_scored=self.num_scored + other.num_scored,
            num_scored_late=self.num_scored_late + other.num_scored_late,
            num_void=self.num_void + other.num_void,
        )


def pack(values: NDArray[np.float32]) -> bytes:
    """Write float32 numbers of any shape, compressed.

    >>> unpack(pack(np.array([[1.5, 2.0]], np.float32)), (1, 2))
    array([[1.5, 2. ]], dtype=float32)
    """
    by_significance = np.frombuffer(values.astype("<f4").tobytes(), np.uint8).reshape(-1, 4).T
    return zlib.compress(by_significance.tobytes(), _COMPRESSION_LEVEL)


def unpack(content: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Read what `pack` wrote. Raises `ValueError` if the bytes are not those of so many finite numbers."""
    num_values = int(np.prod(shape))
    by_significance, is_whole = _decompressed(content, num_values)
    if len(by_significance) != 4 * num_values or not is_whole:
        raise ValueError(f"not {num_values:,} numbers")
    plain = np.frombuffer(by_significance, np.uint8).reshape(4, -1).T.tobytes()
    return _finite(np.frombuffer(plain, "<f4").astype(np.float32).reshape(shape))


def require_packed(content: bytes) -> None:
    """Raise a `ValueError` if bytes are not those that `pack` wrote, which hold a checksum of zlib."""
    _, is_whole = _decompressed(content, MAX_VALUES)
    if not is_whole:
        raise ValueError(f"more than {MAX_VALUES:,} numbers, or not all of them")


def _decompressed(content: bytes, most_values: int) -> tuple[bytes, bool]:
    """Decompress what `pack` wrote, and say whether that was all of it, with the right checksum."""
    stream = zlib.decompressobj()
    try:
        # The limit protects against a few bytes that would unpack to gigabytes.
        return stream.decompress(content, 4 * most_values + 1), stream.eof
    except zlib.error as error:
        raise ValueError(f"no packed numbers ({error})") from error


def unpack_plain(content: bytes, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Read float64 numbers that were written without compression; raises as `unpack` does.

    >>> unpack_plain(np.array([0.1]).astype("<f8").tobytes(), (1,))
    array([0.1])
    """
    if len(content) != 8 * int(np.prod(shape)):
        raise ValueError(f"not {int(np.prod(shape)):,} numbers")
    return _finite(np.frombuffer(content, "<f8").astype(np.float64).reshape(shape))


def _finite(values: Numbers) -> Numbers:
    if not np.isfinite(values).all():
        raise ValueError("numbers that are infinite or none")
    return values


def checksum_of(*values: int | str | bytes | None) -> int:
    """Return the CRC-32 of the values of a row, from which every change of up to three bits is seen.

    >>> checksum_of(1, "a", b"x") == checksum_of(1, "a", b"y")
    False
    """
    checksum = 0
    for value in values:
        content = value if isinstance(value, bytes) else str(value).encode()
        checksum = zlib.crc32(b"\0" + content, checksum)
    return checksum


def require_checksum(checksum: object, *values: Any) -> None:
    """Raise a `ValueError` if the values of a row are not those that its checksum was made of."""
    if checksum != checksum_of(*values):
        raise ValueError("other content than its checksum is of")


def place_name(place: Path | str, ledger: Path) -> str:
    """Name a place of models as the ledger does.

    Args:
        place: The folder of a run as a `Path`; as text `user/name` on the Hub, or a name returned before.
        ledger: Path of the ledger.

    >>> place_name("you/name", Path("runs/ledger.sqlite"))
    'you/name'
    >>> place_name(Path("runs/aligned"), Path("runs/ledger.sqlite"))
    './aligned'
    """
    if isinstance(place, str):
        return place
    folder = place.resolve()
    ledger_folder = ledger.resolve().parent
    if folder.is_relative_to(ledger_folder):
        return f"./{folder.relative_to(ledger_folder).as_posix()}"
    return folder.as_posix()


def place_of(name: str, ledger: Path) -> Path | str:
    """Return the place that a ledger names, the inverse of `place_name`: a path, or `user/name` on the Hub.

    >>> place_of("you/name", Path("runs/ledger.sqlite"))
    'you/name'
    >>> place_of("./aligned", Path("runs/ledger.sqlite")) == Path("runs/aligned")
    True
    """
    if name.startswith("./"):
        return ledger.parent / name
    return Path(name) if Path(name).is_absolute() else name


@dataclass(frozen=True, eq=False)
class ActualValues:
    """Forecasts of one issuer and their actual values; N forecasts, K forecasters, V values of one."""

    issuer: Issuer
    issued_for_s: NDArray[np.int64]  # closes, seconds since the epoch, UTC, shape (N,)
    values: NDArray[np.float32]  # forecasts of every forecaster, shape (N, K, V)
    actual: NDArray[np.float32]  # shape (N, V)


@dataclass(frozen=True)
class Coverage:
    """How many actual values of one task lay in each interval."""

    num_inside: Mapping[str, int]  # by name of the interval, "90 %", the widest first
    num_actual_values: int  # steps and columns of all forecasts whose intervals have a width

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the actual values by interval, 0 to 1."""
        return {name: num_inside / self.num_actual_values for name, num_inside in self.num_inside.items()}


DailyCoverage = Mapping[int, Coverage]
"""Coverage by the day, UTC, on which the forecasts were issued, seconds since the epoch, ascending."""


IssuerCoverages = Sequence[tuple[Issuer, Mapping[str, DailyCoverage]]]
"""Issuers with intervals, each with its coverage per task."""


def merge_coverages(coverages: Iterable[Coverage | None]) -> Coverage | None:
    """Add up coverages, for the intervals that all of them have; None if there is none."""
    present = [coverage for coverage in coverages if coverage]
    if not present:
        return None
    num_inside = {}
    for name in present[0].num_inside:
        if all(name in coverage.num_inside for coverage in present):
            num_inside[name] = sum(coverage.num_inside[name] for coverage in present)
    return Coverage(num_inside, sum(coverage.num_actual_values for coverage in present))


def merge_daily(coverages: Iterable[DailyCoverage]) -> dict[int, Coverage]:
    """Add up the coverages of each day."""
    by_day: dict[int, list[Coverage]] = {}
    for daily in coverages:
        for day_s, coverage in daily.items():
            by_day.setdefault(day_s, []).append(coverage)
    merged = {}
    for day_s in sorted(by_day):
        coverage_of_day = merge_coverages(by_day[day_s])
        if coverage_of_day:
            merged[day_s] = coverage_of_day
    return merged


def measure_daily(actual_values: ActualValues) -> dict[str, dict[int, Coverage]]:
    """Count per task and day how many actual values lay in each interval of an issuer."""
    day_s_N = actual_values.issued_for_s // DAY_S * DAY_S
    by_task: dict[str, dict[int, Coverage]] = {}
    for day_s in np.unique(day_s_N).tolist():
        is_of_day_N = day_s_N == day_s
        values_NKV = actual_values.values[is_of_day_N]
        actual_NV = actual_values.actual[is_of_day_N]
        for task, coverage in _measure_coverage(actual_values.issuer, values_NKV, actual_NV).items():
            by_task.setdefault(task, {})[day_s] = coverage
    return by_task


def _measure_coverage(
    issuer: Issuer, values_NKV: NDArray[np.float32], actual_NV: NDArray[np.float32]
) -> dict[str, Coverage]:
    """Count per task how many actual values lay in each interval of an issuer.

    Values whose widest interval has no width are left out, as `QuantileErrors.mean_coverage` does.
    """
    positions = issuer.levels
    levels = sorted([*positions, MEDIAN])
    lowest_NV = values_NKV[:, positions[levels[0]]]
    highest_NV = values_NKV[:, positions[levels[-1]]]
    has_width_NV = highest_NV - lowest_NV >= MIN_WIDTH * np.abs(highest_NV)
    num_inside = dict[str, dict[str, int]]()
    for name, (low_level, high_level) in zip(interval_names(levels), intervals(levels), strict=True):
        low_NV = values_NKV[:, positions[low_level]]
        high_NV = values_NKV[:, positions[high_level]]
        is_inside_NV = (low_NV <= actual_NV) & (actual_NV <= high_NV) & has_width_NV
        for task, is_inside in issuer.split(is_inside_NV.astype(np.float32)).items():
            num_inside.setdefault(task, {})[name] = int(is_inside.sum())
    num_with_width = {
        task: int(has_width.sum())
        for task, has_width in issuer.split(has_width_NV.astype(np.float32)).items()
    }
    return {
        task: Coverage(counts, num_with_width[task])
        for task, counts in num_inside.items()
        if num_with_width[task]
    }
