"""What a run will do, before it does it: series, seeds, windows.

Seeds belong to series, not to their place in a selection: series number k of the default universe
trains with the profile's seed + k, alone or among forty.
"""

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from v8.data.market.series import Series, load_universe
from v8.data.windows.dataset import rows_needed, table_columns, windows_without_holes
from v8.forecaster.metadata import METADATA_FILE, MODEL_FILE
from v8.profile.indicators import warmup_bars
from v8.profile.profile import Profile
from v8.runs.jobs import ArtifactSettings
from v8.runs.run_folder import RUN_FILE, SeriesState, Status, read_run

SMOKE_SPARE_BARS = 130  # candles of a smoke run beyond the fewest that work, so that a few holes do no harm
SEED_SPACE = 2**31  # seeds are non-negative 31-bit numbers


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
