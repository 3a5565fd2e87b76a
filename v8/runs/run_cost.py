"""What runs of a profile took on this machine, kept so that the next plan need not guess.

Arithmetic alone says little: where a network is small, compiling, fitting the baselines, judging and saving
take longer than training it. So the wall time of a call that trained is kept, whole. Of several calls the one
with the most series counts: starting up and compiling are paid once, and few series say little about many.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from v8.machine.measurements import keep, recall
from v8.formulas.baselines import BASELINES
from v8.profile import Profile
from v8.records import Count, Number


@dataclass(frozen=True)
class RunCost:
    """What a call took from the first series' start to the end of the last.

    Args:
        num_series: Series it trained, judged and saved.
        seconds: Wall time.
    """

    num_series: Annotated[Count, Field(gt=0)]
    seconds: Number

    @property
    def series_s(self) -> float:
        """Wall time a series, with as many side by side as there were, seconds."""
        return self.seconds / self.num_series


_COST: Final = TypeAdapter(RunCost)
_NAME: Final = "run"


def known_cost(profile: Profile) -> RunCost | None:
    """Return what a run of a profile took here, with its bars, epochs and baselines; None if unknown."""
    return recall(_COST, _NAME, _key(profile))


def keep_cost(profile: Profile, cost: RunCost) -> None:
    """Keep what a run took, unless one of more series is known."""
    known = known_cost(profile)
    if known is None or known.num_series <= cost.num_series:
        keep(_COST, _NAME, _key(profile), cost)


def _key(profile: Profile) -> dict[str, Any]:
    return {
        "profile": profile.model_dump(mode="json", exclude={"name", "description", "seed"}),
        "baselines": [name for name, baseline in BASELINES.items() if baseline.is_installed()],
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
