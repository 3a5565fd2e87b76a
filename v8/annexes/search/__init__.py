"""Search: tries settings of a profile by back-tests, and evaluates the winner on folds that no trial saw.

Here are its options, for the command line and Python, and the values that it tries: ranges and choices of a
profile's keys, as the user wrote them.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from v8.base.errors import ProfileError
from v8.base.records import Flag, Options, Settings, checked, read_yaml, under_key
from v8.profile.profile import Profile, config_path, key_places, shipped_place
from v8.runs import options as run_options
from v8.runs.options import FoldBars, HistoryBars, NumFolds

NumTrials = Annotated[int, Field(ge=1, le=100_000)]
Hours = Annotated[float, Field(ge=0)]


class SearchOptions(Options):
    """Every option of a search. None stands for the default of the profile or of the machine."""

    profile: Annotated[
        str,
        Flag(
            "PROFILE to start from: a shipped name or a file. Default: frontier.", "NAME|FILE", word="PROFILE"
        ),
    ] = "frontier"
    trials: Annotated[NumTrials, Flag("Trials in all, those of earlier calls included.", "N")] = 20
    hours: Annotated[Hours | None, Flag("Hours after which no trial is started.", "H")] = None
    ranges: Annotated[Path | None, Flag("Default: search/FILE next to the profile's FILE.", "FILE")] = None
    folds: Annotated[NumFolds, Flag("Folds that trials are evaluated on.", "K")] = 3
    later: Annotated[NumFolds, Flag("Later folds that evaluate only the winner.", "K")] = 2
    series: run_options.SeriesNames = ()
    source: run_options.SourceName = "vision"
    data_dir: run_options.DataFolder = None
    tables: run_options.TablesFolder = None
    history: HistoryBars = None
    bars: FoldBars = None
    device: run_options.Device = "auto"
    workers: run_options.Workers = "auto"
    engine: run_options.EngineName = "local"
    address: run_options.ClusterAddress = None
    out: Annotated[Path | None, Flag("Its folder. Default: searches/PROFILE.", "DIR")] = None
    redo: Annotated[bool, Flag("Set study.sqlite aside, and start the trials again.", is_once=True)] = False


FIXED: Final = "name description newest_bars features covariates lookback_bars horizon_bars split tasks seed"
"""Keys that are not searched: other values would change what is evaluated, or let chance choose (seed)."""

MAX_STEPS: Final = 1_000_000
"""Of one range, unitless. Optuna divides by a step with 28 digits; no search makes nearly as many trials."""


class Range(Settings):
    """The values that are tried for a key of a profile: numbers from `low` to `high`, or one of `choices`."""

    low: int | float | None = None
    """Smallest number."""
    high: int | float | None = None
    """Largest number."""
    log: bool = False
    """Whether equal factors count as equal steps."""
    step: int | float | None = Field(default=None, gt=0)
    """From one number to the next; without it whole numbers follow each other, and others lie anywhere."""
    choices: list[Any] = Field(default=[])
    """Values without an order, instead of all these keys."""

    def faults(self) -> Iterator[str]:
        """Yield which keys contradict each other."""
        if self.choices and self.model_fields_set != {"choices"}:
            yield "choices stand without low, high, log and step"
        elif not self.choices and (self.low is None or self.high is None or self.low >= self.high):
            yield "needs a low below a high, or choices"
        elif self.log and ((self.low or 0) <= 0 or self.step):
            yield "log needs a low above 0, and no step"
        elif self.step is not None and not self._has_whole_steps():
            yield f"step must lead from low to high in 1 to {MAX_STEPS:,} whole steps"

    def _has_whole_steps(self) -> bool:
        """Divide the numbers as decimals, as they are written: as floats .1 and .5 are not .4 apart."""
        low, high, step = (Fraction(str(number)) for number in (self.low, self.high, self.step))
        num_steps = (high - low) / step
        return num_steps.denominator == 1 and num_steps <= MAX_STEPS

    def examples(self) -> list[Any]:
        """List values that may be drawn: a profile that accepts these accepts all."""
        if self.choices:
            return self.choices
        if self.step:
            return [self.low, (self.low or 0) + self.step, self.high]
        return [self.low, self.high]


Ranges = Mapping[str, Range]  # by the key of a profile


def read_ranges(file: Path, profile: Profile) -> Ranges:
    """Read the values that a search tries for the keys of a profile.

    Raises:
        ProfileError: If a key is not one of a profile, must not be searched, or cannot have such values.
    """
    kind = Annotated[dict[str, Range], Field(min_length=1)]
    example = shipped_place("search/frontier.yaml")
    if file.exists():
        fix = f"Write it like {example}, or name another file with param:ranges"
    elif file.parent.parent == config_path("frontier").parent:  # next to a shipped profile
        fix = f"Copy {example}, change it, and name it with param:ranges"
    else:
        fix = f"Copy {example} there, and change it, or name another file with param:ranges"
    ranges: Ranges = checked(kind, read_yaml(file, fix), where=str(file), fix=fix, refusal=ProfileError)
    for key, value_range in ranges.items():
        location = under_key(str(file), key)
        top_key, _, _ = key_places().get(key, key).partition(".")
        if top_key in FIXED.split():
            raise ProfileError(
                where=location,
                rule=f"no search changes {', '.join(FIXED.split())}: all trials are evaluated on the "
                "same windows",
                got=key,
                fix="Take it out",
            )
        for value in value_range.examples():
            try:
                profile.but(**{key: value})
            except ProfileError as error:
                raise ProfileError(where=location, rule=error.rule, got=error.got, fix=error.fix) from error
    return ranges
