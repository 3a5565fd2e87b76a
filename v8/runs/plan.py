"""What a run will do, before it does it: its series and seeds, its jobs, and the engine that does them.

Seeds belong to series, not to their place in a selection: series number k of the default universe
trains with the profile's seed + k, alone or among forty.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from v8.data.market.candles import Candles
from v8.data.market.series import Series, load_universe
from v8.forecaster.metadata import METADATA_FILE, MODEL_FILE
from v8.model.networks.programs import Loops
from v8.profile.profile import Profile
from v8.runs.events import RunObserver, SeriesOutcome
from v8.runs.run_folder import RUN_FILE, SeriesState, Status, read_run

SEED_SPACE = 2**31  # seeds are non-negative 31-bit numbers


@dataclass(frozen=True)
class ArtifactSettings:
    """What an artefact gets beside its model, for all series of a run."""

    is_evaluated: bool = True  # whether to evaluate the model on the test span
    has_importance: bool = False  # whether to measure the importance of each kind of inputs
    has_onnx: bool = False  # whether to write `model.onnx`, too


@dataclass(frozen=True)
class Plan:
    """A run before it starts."""

    profile: Profile  # what to train
    path: Path  # the run folder; it need not exist
    series: Mapping[Series, Status]
    """Every selected series, and how far an earlier call brought it; its seed is `series_seed`."""
    redone: tuple[Series, ...] = ()  # those whose old files are set aside first
    dropped: tuple[Series, ...] = ()  # those that are taken out of the run first
    artifact_settings: ArtifactSettings = field(default_factory=ArtifactSettings)
    """What is made of each series beside a model."""
    initial_models: Mapping[Series, Path] = field(default_factory=dict)
    """By series the folder of the model from whose weights training starts; without one they are random.

    The annex that trains stale models again sets it; a plain run has none.
    """
    tables: Path | None = None  # folder of the user's tables; that of `V8_TABLES` when None

    @property
    def todo(self) -> list[Series]:
        """Series that are not finished."""
        return [series for series, status in self.series.items() if status != "done"]

    def with_statuses(self, states: Mapping[str, SeriesState]) -> "Plan":
        """Return the plan with the status of each series as the run folder records it.

        A series that is recorded as done but whose files are gone is pending.
        """
        statuses: dict[Series, Status] = {}
        for series in self.series:
            statuses[series] = _status(states.get(str(series)), self.path / str(series))
        return replace(self, series=statuses)

    def without(self, series: Container[Series]) -> "Plan":
        """Return the plan without some series."""
        others = {name: status for name, status in self.series.items() if name not in series}
        return replace(self, series=others)


def make_plan(
    profile: Profile,
    series: Sequence[Series],
    path: Path,
    *,
    redone: Sequence[Series] = (),
    dropped: Sequence[Series] = (),
    tables: Path | None = None,
    artifact_settings: ArtifactSettings | None = None,
    initial_models: Mapping[Series, Path] | None = None,
) -> Plan:
    """Plan a run of selected series, without repetition, in a folder, new or begun; arguments as in `Plan`.

    Raises:
        ArtifactError: If the folder's `run.json` is damaged.
    """
    plan = Plan(
        profile=profile,
        path=path,
        series=dict.fromkeys(series, "pending"),
        redone=tuple(redone),
        dropped=tuple(dropped),
        tables=tables,
        artifact_settings=artifact_settings or ArtifactSettings(),
        initial_models=initial_models or {},
    )
    states: dict[str, SeriesState] = {}
    if (path / RUN_FILE).exists():
        states = dict(read_run(path).series)
    for name in redone:
        states.pop(str(name), None)
    return plan.with_statuses(states)


def series_seed(profile: Profile, series: Series) -> int:
    """Return the seed of a series: by its place in the default universe, or by its name.

    >>> from v8.profile.profile import load_profile
    >>> series_seed(load_profile("aligned"), Series("BTCUSDT", "1h"))
    43
    """
    places = _default_places()
    place = places.get(series)
    if place is None:  # the name decides, behind the places of the universe
        place = len(places) + int(hashlib.sha256(str(series).encode()).hexdigest()[:7], 16)
    return (profile.seed + place) % SEED_SPACE


@cache
def _default_places() -> dict[Series, int]:
    """Return the place of each series of the default universe; its file is read once."""
    return {series: place for place, series in enumerate(load_universe())}


def _status(state: SeriesState | None, folder: Path) -> Status:
    if state is None:
        return "pending"
    has_files = (folder / MODEL_FILE).exists() and (folder / METADATA_FILE).exists()
    if state.status == "done" and not has_files:
        return "pending"  # its files were moved away; making them again gives the same ones
    return state.status


@dataclass(frozen=True)
class DeviceSettings:
    """Settings of the training that depend on the machine, not on the profile.

    A run chooses them once for all its series. Whoever continues it elsewhere gets the same ones, and so the
    same weights.
    """

    precision: str = "float32"
    """Keras dtype policy to train in: 16 bits for matrix products where this machine then trains faster."""
    loops: Loops = "stepwise"
    """How XLA compiles the loop over the bars of a window. It gets there by environment variables, which XLA
    reads at the first compilation of a process (`v8.runs.machine.loops_in_environment`)."""
    num_micro_batches: int | None = None
    """Micro-batches whose gradients are summed for one optimiser step; None: as many as the profile says."""


@dataclass(frozen=True)
class Job:
    """Everything a worker needs to make one artefact; it can travel between processes."""

    candles: Candles
    profile: Profile  # what to train
    seed: int  # of weights, order and dropout
    folder: Path  # where the artefact goes
    is_publishable: bool  # false for the demo market
    candle_seconds: float  # time that reading the candles took
    device_settings: DeviceSettings = DeviceSettings()
    artifact_settings: ArtifactSettings = ArtifactSettings()
    dataset: str | None = None  # dataset of the Hub that the candles came from, `user/name`
    initial_model: Path | None = None
    """Folder of the model from whose weights training starts; None draws them at random."""

    @property
    def series(self) -> Series:
        """Which series."""
        return self.candles.series


class Engine(ABC):
    """Makes the artefacts of a run.

    On this machine that is `LocalEngine` (`v8.runs.engines`). It hands the jobs to `WorkerEngine`
    (`v8.runs.workers`), which starts processes, or to `InProcessEngine` (`v8.runs.local`). Other engines
    train on other machines.
    """

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables of this process, and of those that it starts, while it carries out a run."""
        return {}

    @abstractmethod
    def train(self, jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        """Make the artefact of every job, at least one; yield how each series ended, in any order.

        The observer gets what happens on the way, in the process and thread that called.
        """
