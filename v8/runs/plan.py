"""What a run will do, before it does it: series, seeds, windows, time.

Seeds belong to series, not to their place in a selection: series number k of the default universe
trains with the profile's seed + k, alone or among forty.
"""

import hashlib
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from v8.base.records import Count, Number
from v8.data.market.series import Series, load_universe
from v8.data.windows.dataset import rows_needed, table_columns, windows_without_holes
from v8.forecaster.metadata import METADATA_FILE, MODEL_FILE
from v8.model.baselines.baselines import BASELINES
from v8.profile.indicators import warmup_bars
from v8.profile.profile import Profile
from v8.runs.jobs import ArtifactSettings
from v8.runs.machine.choices import read_measurement, write_measurement
from v8.runs.run_folder import RUN_FILE, SeriesState, Status, read_run

SMOKE_SPARE_BARS = 130  # candles of a smoke run beyond the fewest that work, so that a few holes do no harm
SEED_SPACE = 2**31  # seeds are non-negative 31-bit numbers


@dataclass(frozen=True)
class Plan:
    """A run before it starts."""

    profile: Profile  # what to train
    path: Path  # the run folder; it need not exist
    series: Mapping[Series, Status]
    """Every selected series, and how far an earlier call brought it."""
    redone: tuple[Series, ...] = ()  # those whose old files are set aside first
    dropped: tuple[Series, ...] = ()  # those that are taken out of the run first
    artifact_settings: ArtifactSettings = field(default_factory=ArtifactSettings)
    """What is made of each series beside a model."""
    initial_models: Mapping[Series, Path] = field(default_factory=dict)
    """By series the folder of the model from whose weights training starts; without one they are random.

    What trains models again may set it; a plain run has none.
    """
    tables: Path | None = None  # folder of the user's tables; that of `V8_TABLES` when None

    @property
    def todo(self) -> list[Series]:
        """Series that are not finished."""
        return [series for series, status in self.series.items() if status != "done"]

    def as_of(self, states: Mapping[str, SeriesState]) -> "Plan":
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


def make_plan(profile: Profile, series: Sequence[Series], path: Path, redone: Sequence[Series] = ()) -> Plan:
    """Plan a run of selected series, without repetition, in a folder, new or begun.

    Raises:
        ArtifactError: If the folder's `run.json` is damaged.
    """
    plan = Plan(profile=profile, path=path, series=dict.fromkeys(series, "pending"), redone=tuple(redone))
    states: dict[str, SeriesState] = {}
    if (path / RUN_FILE).exists():
        states = dict(read_run(path).series)
    for name in redone:
        states.pop(str(name), None)
    return plan.as_of(states)


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


def count_windows(profile: Profile) -> dict[str, int]:
    """Count the complete windows per span in an unbroken history of the profile's newest bars.

    Raises:
        DataError: If they are too few for a window in every span.
    """
    return windows_without_holes(profile.newest_bars, profile)


def smoke_bars(profile: Profile) -> int:
    """Return the candles per series of a smoke run.

    >>> from v8.profile.profile import load_profile
    >>> smoke_bars(load_profile("aligned"))
    931
    """
    return warmup_bars(table_columns(profile)) + rows_needed(profile) + SMOKE_SPARE_BARS


def _status(state: SeriesState | None, folder: Path) -> Status:
    if state is None:
        return "pending"
    has_files = (folder / MODEL_FILE).exists() and (folder / METADATA_FILE).exists()
    if state.status == "done" and not has_files:
        return "pending"  # its files were moved away; making them again gives the same ones
    return state.status


@dataclass(frozen=True)
class RunCost:
    """What a call took from the first series' start to the end of the last."""

    num_series: Annotated[Count, Field(gt=0)]  # series it trained, evaluated and saved
    seconds: Number  # wall time
    series_s: Number  # wall time of one series
    num_side_by_side: Annotated[Count, Field(gt=0)]  # series at work at the same time
    own_s: Number | None = None
    """Seconds of the stages of one series without compiling, or of its whole fleet if it trained in one; None
    if they were not measured."""
    fleet_size: Annotated[Count, Field(gt=0)] = 1  # most series that trained in one program

    @property
    def was_one_round(self) -> bool:
        """Whether all series were at work at the same time: none started after another had ended."""
        return self.num_series == self.num_side_by_side

    def estimated_s(self, num_series: int) -> float | None:
        """Return about how long so many series take, seconds; None where that cannot be estimated.

        Every further round of series takes as long as a series took; where all were at work together, as
        long as the own stages of one. A fleet of fewer series takes as much less of its own stages.

        >>> RunCost(4, 50.0, 20.0, 2).estimated_s(40)  # four: two rounds, and 10 s before; forty: twenty
        410.0
        >>> RunCost(2, 30.0, 30.0, 2, own_s=8.0).estimated_s(40)  # one round, 22 s of it once; nineteen more
        182.0
        >>> RunCost(2, 30.0, 30.0, 2).estimated_s(40)  # what is done once is not known apart
        >>> RunCost(40, 360.0, 360.0, 40, 320.0, 20).estimated_s(2)  # two fleets; 40 s once, a 20th of 320 s
        56.0
        """
        least_rounds = 1 / self.fleet_size if self.was_one_round and self.own_s else 1.0
        rounds = max(least_rounds, num_series / self.num_side_by_side)
        known_rounds = max(1.0, self.num_series / self.num_side_by_side)
        if rounds == known_rounds:
            return self.seconds
        round_s = self.own_s if self.was_one_round else self.series_s
        if round_s is None:
            return None
        return max(0.0, self.seconds + round_s * (rounds - known_rounds))


def known_cost(profile: Profile) -> RunCost | None:
    """Return what a run of a profile took here, with its bars, epochs and baselines; None if unknown."""
    return read_measurement(RunCost, "run", _cost_key(profile))


def save_cost(profile: Profile, cost: RunCost) -> None:
    """Save what a run took, unless the cost of a run of more series is known."""
    earlier = known_cost(profile)
    if earlier is None or earlier.num_series <= cost.num_series:
        write_measurement(RunCost, "run", _cost_key(profile), cost)


def _cost_key(profile: Profile) -> dict[str, Any]:
    return {
        "profile": profile.model_dump(mode="json", exclude={"name", "description", "seed"}),
        "baselines": [name for name, baseline in BASELINES.items() if baseline.is_installed()],
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
