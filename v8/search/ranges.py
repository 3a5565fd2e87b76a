"""The values that a search tries: ranges and choices of a profile's keys, as the user wrote them."""

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from v8.errors import ProfileError
from v8.profile import Profile, key_places, read_yaml
from v8.records import Settings, checked, under_key

FIXED: Final = "name description newest_bars features covariates lookback_bars horizon_bars split tasks seed"
"""Keys that are not searched: with others something else would be evaluated, or luck would choose."""

MOST_STEPS: Final = 1_000_000
"""Of one range, unitless. Optuna divides by a step with 28 digits; no search comes near as many trials."""


class Range(Settings):
    """What a key of a profile is tried with: numbers from `low` to `high`, or one of `choices`."""

    low: int | float | None = None
    """Smallest number."""
    high: int | float | None = None
    """Largest number."""
    log: bool = False
    """Whether equal factors count as equal steps."""
    step: int | float | None = Field(default=None, gt=0)
    """From one number to the next; without it whole numbers follow each other, and others lie anywhere."""
    choices: list[Any] = Field(default=[])
    """Values without an order, in the place of all these."""

    def faults(self) -> Iterator[str]:
        """Yield what some of these keys forbid others."""
        if self.choices and self.model_fields_set != {"choices"}:
            yield "choices stand without low, high, log and step"
        elif not self.choices and (self.low is None or self.high is None or self.low >= self.high):
            yield "needs a low below a high, or choices"
        elif self.log and ((self.low or 0) <= 0 or self.step):
            yield "log needs a low above 0, and no step"
        elif self.step is not None and not self._has_whole_steps():
            yield f"step must lead from low to high in 1 to {MOST_STEPS:,} whole steps"

    def _has_whole_steps(self) -> bool:
        """Divide the numbers as they are written: for floats .1 and .5 are not one step of .4 apart."""
        low, high, step = (Fraction(str(number)) for number in (self.low, self.high, self.step))
        num_steps = (high - low) / step
        return num_steps.denominator == 1 and num_steps <= MOST_STEPS

    def examples(self) -> list[Any]:
        """List values that are drawn from it: what a profile says of these it says of all."""
        if self.choices:
            return self.choices
        steps = [(self.low or 0) + self.step] if self.step else []
        return [self.low, *steps, self.high]


Ranges = Mapping[str, Range]  # by the key of a profile


def read_ranges(file: Path, profile: Profile) -> Ranges:
    """Read by which values a search changes the keys of a profile.

    Raises `ProfileError` if a key is none of the profile, must stay, or must not have such values.
    """
    kind = Annotated[dict[str, Range], Field(min_length=1)]
    fix = "Write it like configs/search/frontier.yaml, or name another file with param:ranges"
    ranges: Ranges = checked(kind, read_yaml(file, fix), where=str(file), fix=fix, refusal=ProfileError)
    for key, one in ranges.items():
        where = under_key(str(file), key)
        if key_places().get(key, key).partition(".")[0] in FIXED.split():
            rule = (
                f"no search changes {', '.join(FIXED.split())}: all trials are evaluated on the same windows"
            )
            raise ProfileError(where=where, rule=rule, got=key, fix="Take it out")
        for value in one.examples():
            try:
                profile.but(**{key: value})
            except ProfileError as error:
                raise ProfileError(where=where, rule=error.rule, got=error.got, fix=error.fix) from error
    return ranges


def changed(profile: Profile, ranges: Ranges, drawn: Mapping[str, Any]) -> Profile:
    """Return a profile with what was drawn; `ProfileError` if values do not fit together."""
    return profile.but(
        **{key: json.loads(drawn[key]) if one.choices else drawn[key] for key, one in ranges.items()}
    )
