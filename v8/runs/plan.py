"""What a run will do, before it does it: the classes of a plan, of its jobs, and of engines that do these.

A series has the same seed whichever others are selected: number k of the 40 default series trains with the
profile's seed + k, any other with one from its name.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from v8.data.market.candles import Candles
from v8.data.market.series import Series, load_universe
from v8.forecaster.metadata import METADATA_FILE, MODEL_FILE
from v8.profile.profile import Profile
from v8.runs.events import RunObserver, SeriesOutcome
from v8.runs.machine import Loops
from v8.runs.run_folder import FRESH, RUN_FILE, SeriesState, Status, read_run

SEED_SPACE = 2**31  # seeds are non-negative 31-bit numbers


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
class Recipe:
    """How the artefacts of a run are made, the same for all its series; it can be pickled."""

    profile: Profile  # what to train
    is_publishable: bool  # false for simulated candles (the demo market)
    dataset: str | None = None  # dataset of the Hugging Face Hub that the candles come from, `user/name`
    is_evaluated: bool = True  # whether to evaluate models on the test span
    has_importance: bool = False  # whether to measure the importance of each kind of inputs
    has_onnx: bool = False  # whether to write `model.onnx`, too
    device_settings: DeviceSettings = DeviceSettings()  # defaults, until the run starts and chooses


@dataclass(frozen=True)
class Plan:
    """A run before it starts."""

    recipe: Recipe  # how its artefacts are made
    path: Path  # the run folder; it need not exist
    series: Mapping[Series, Status]
    """Every selected series, and how far an earlier call brought it; its seed is `series_seed`."""
    command: str  # the command line that continues, for the run's record and for messages
    redone: tuple[Series, ...] = ()  # those whose old files are set aside first
    dropped: tuple[Series, ...] = ()  # those that are taken out of the run first
    initial_models: Mapping[Series, Path] = field(default_factory=dict)
    """By series the folder of the model from whose weights training starts; without one they are random.

    The annex that trains stale models again sets it; a plain run has none.
    """
    tables: Path | None = None  # folder of the user's tables; that of `V8_TABLES` when None
    starts_another: str = FRESH  # the parameter that starts another run; of a back-test it is `param:out`
    lists_all_series: bool = False
    """Whether the record names every series before the first is trained, as that of a later generation (the
    models of one renewal, see `v8.runs.serving`) does."""

    @property
    def profile(self) -> Profile:
        """What to train."""
        return self.recipe.profile

    @property
    def todo(self) -> list[Series]:
        """Series that are not finished."""
        return [series for series, status in self.series.items() if status != "done"]

    def as_recorded(self) -> "Plan":
        """Return the plan with how far earlier calls brought each series, in a folder that is there.

        Raises:
            ArtifactError: If the folder's `run.json` is damaged.
        """
        states: dict[str, SeriesState] = {}
        if (self.path / RUN_FILE).exists():
            states.update(read_run(self.path, self.starts_another).series)
        for series in self.redone:
            states.pop(str(series), None)
        return self.with_statuses(states)

    def with_statuses(self, states: Mapping[str, SeriesState]) -> "Plan":
        """Return the plan with the status of each series as the run folder records it.

        A series that is recorded as done but whose files are gone is pending.
        """
        statuses: dict[Series, Status] = {}
        for series in self.series:
            statuses[series] = _status(states.get(str(series)), self.path / str(series))
        return replace(self, series=statuses)


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
class Job:
    """Everything that is needed to make one artefact; it can be pickled."""

    recipe: Recipe  # the same for all jobs of a run
    candles: Candles
    seed: int  # of weights, order of windows and dropout
    folder: Path  # where the artefact goes
    candle_seconds: float = 0.0  # time that reading the candles took
    initial_model: Path | None = None  # folder of the model whose weights training begins from; None: random

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
