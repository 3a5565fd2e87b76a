"""What a network family is: its settings, its layers and what a forward pass through them costs.

A family of one's own is one file that calls `FAMILIES.register`; a profile then names it in `network.family`.
Profiles are checked without Keras, so a family imports it where it makes layers.

Shape legend: B batch, T lookback, F features, H horizon, D channels, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from v8.settings import Settings
from v8.tasks.task import Task

if TYPE_CHECKING:
    from v8.families.layers import Layers

Units = Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(min_length=1)]
Dropout = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class NetworkShape:
    """What goes into a network, a window of `lookback_bars` rows, and what comes out, as a profile says."""

    lookback_bars: int
    num_features: int
    horizon_bars: int
    tasks: tuple[Task, ...]


class NetworkSettings(Settings):
    """Sizes of a network; each family adds its own."""

    family: str
    """Name of the family, one of `v8.families.FAMILIES`."""

    @property
    def first_units(self) -> int:
        """Width of the first layer: the first number of the first sizes; matmul rates are measured at it."""
        return int(next(sizes[0] for sizes in vars(self).values() if isinstance(sizes, tuple)))


@dataclass(frozen=True)
class Family:
    """One kind of network.

    Args:
        name: Its key in profiles.
        sentence: What it is, for people.
        source: Who described it.
        settings: What a profile says of it.
        outputs: Maps settings, a Keras tensor (B, T, F), scaled, and the maker of common layers to what each
            task's head returns, (B, H, C), scaled. Every layer needs a stacked twin.
        forward_flop: Maps settings and shape to the floating-point operations of a forward pass.
    """

    name: str
    sentence: str
    source: str
    settings: type[NetworkSettings]
    outputs: Callable[[Any, Any, Layers], dict[str, Any]]
    forward_flop: Callable[[Any, NetworkShape], float]


def recurrent_flop(num_steps: int, width: int, units: Sequence[int], *, num_directions: int = 1) -> float:
    """Count a forward pass through layers of LSTM cells that read `num_steps` of `width` channels.

    A cell of `u` units over `i` inputs multiplies a (i + u) x 4u matrix per step, two operations per entry.
    Element-wise work is left out, as are heads and dense layers after cells: they are below two per cent.
    """
    inputs = (width, *(num_directions * each for each in units[:-1]))
    cells = sum(8.0 * each * (read + each) for read, each in zip(inputs, units, strict=True))
    return num_directions * num_steps * cells


def dense_flop(*widths: int) -> float:
    """Count a forward pass through dense layers, from the width of the input to that of the last layer."""
    return sum(2.0 * read * each for read, each in pairwise(widths))
