"""What a network family is: its settings, its layers and what a forward pass through them costs.

A family of one's own calls `FAMILIES.register`; a profile then names it in `network.family`.

Shape legend: B batch, T lookback or time, F features, H horizon, D channels, C columns of a task.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

from v8.records import Settings
from v8.registry import Named, read_descriptions
from v8.tasks import Task

HEAD_PREFIX = "head_"
Size = Annotated[int, Field(ge=1, le=4096)]
Units = Annotated[tuple[Size, ...], Field(min_length=1, max_length=64)]
"""Units of each layer of a kind, first to last."""
Dropout = Annotated[float, Field(ge=0, lt=1)]
"""Share of channels dropped after a layer, one draw a sequence; 0 switches it off."""


@dataclass(frozen=True)
class NetworkShape:
    """What goes into a network, a window of `lookback_bars` rows, and what comes out, as a profile says."""

    lookback_bars: int
    features: tuple[str, ...]
    horizon_bars: int
    tasks: tuple[Task, ...]

    @property
    def num_features(self) -> int:
        """Width of a row of the window."""
        return len(self.features)


class NetworkSettings(Settings):
    """Sizes of a network; each family adds its own."""

    family: str
    """Name of the family, one of `v8.families.FAMILIES`."""

    @property
    def first_units(self) -> int:
        """Width of the first layer: the first number of the first sizes; matmul rates are measured at it."""
        return int(next(sizes[0] for sizes in vars(self).values() if isinstance(sizes, tuple)))


class TeacherForcingSettings(NetworkSettings):
    """Sizes of a network that reads its own forecasts, and in training sometimes the actual values in their place.

    Whatever derives from this is trained with a second input, `actual`; see `v8.families.autoregressive`.
    """

    teacher_forcing: Dropout
    """Chance, in training alone, that a window is decoded from the actual values of each bar before in place of the
    own forecast of it; 0 switches it off."""


@dataclass(frozen=True)
class Family(Named):
    """One kind of network, with a sentence for people and who described it.

    Args:
        outputs: Maps settings, a Keras tensor (B, T, F), scaled, and the maker of common layers to what each
            task's head returns, (B, H, C), scaled. A network with a layer without a stacked twin is
            trained alone, never in a fleet of several. None for a formula, which is fitted
            (`v8.training.formula`) and never trained.
        forward_flop: Maps settings and shape to the floating-point operations of a forward pass.
        min_lookback_bars: Rows of the window that it reads at least.
    """

    settings: type[NetworkSettings]
    outputs: "NetworkOutputs | None"
    forward_flop: Callable[[Any, NetworkShape], float]
    min_lookback_bars: int = 1

    @property
    def is_formula(self) -> bool:
        """Whether it is fitted, not trained."""
        return self.outputs is None


NetworkOutputs: TypeAlias = "Callable[[Any, Any, Layers], dict[str, Any]]"
"""What of a `Family` makes the layers of its networks."""
Flop: TypeAlias = Callable[[Any, NetworkShape], float]
_TOLD: Final = read_descriptions("v8.families", "families.yaml")


def ours(
    name: str, settings: type[NetworkSettings], outputs: "NetworkOutputs | None", flop: Flop, bars: int = 1
) -> Family:
    """Return a shipped family, which `families.yaml` tells of; its windows have at least so many bars."""
    told = _TOLD[name]
    return Family(**told, settings=settings, outputs=outputs, forward_flop=flop, min_lookback_bars=bars)


@dataclass(frozen=True)
class Layers:
    """Makes the layers that families have in common, for one network.

    Args:
        keras: The module: profiles are read without it, so it is handed to those who make layers.
        precision: Keras dtype policy of all layers but the heads.
        seeds: Every draw takes the next one.
        actual_BHC: Keras tensor of the candles to come, scaled, while a network is taught; None otherwise, and
            in every file that is published.
    """

    keras: Any
    shape: NetworkShape
    precision: str
    seeds: Iterator[int]
    actual_BHC: Any = None

    @property
    def bars_at_once(self) -> int:
        """Bars that a decoder makes in one call: all while it is taught, or else one."""
        return 1 if self.actual_BHC is None else self.shape.horizon_bars

    def recurrent(
        self,
        x_BTD: Any,
        name: str,
        units: Sequence[int],
        dropout: float,
        *,
        is_bidirectional: bool = False,
        is_sequence: bool = False,
    ) -> Any:
        """Apply layers of LSTMs, so many units per direction, each normalised and some channels dropped."""
        for number, each in enumerate(units, 1):
            layer = f"{name}_{number}"
            has_steps = is_sequence or number < len(units)
            make = self._both_ways if is_bidirectional else self.loop
            x_BTD = make("LSTM", each, layer, return_sequences=has_steps)(x_BTD)
            x_BTD = self.keras.layers.LayerNormalization(dtype=self.precision, name=f"{layer}_norm")(x_BTD)
            x_BTD = self.dropout(layer, dropout, is_sequence=has_steps)(x_BTD)
        return x_BTD

    def loop(self, kind: str, units: int, name: str, **options: bool) -> Any:
        """Make a recurrent layer or cell, such as "LSTM" or "GRUCell"; its weights take two seeds."""
        kernel = self.keras.initializers.GlorotUniform(seed=next(self.seeds))
        recurrent = self.keras.initializers.Orthogonal(seed=next(self.seeds))
        initializers = {"kernel_initializer": kernel, "recurrent_initializer": recurrent}
        return getattr(self.keras.layers, kind)(
            units, **initializers, **options, dtype=self.precision, name=name
        )

    def _both_ways(self, kind: str, units: int, name: str, **options: bool) -> Any:
        forward = self.loop(kind, units, f"{name}_forward", **options)
        backward = self.loop(kind, units, f"{name}_backward", **options, go_backwards=True)
        both = self.keras.layers.Bidirectional
        return both(forward, backward_layer=backward, dtype=self.precision, name=name)

    def dropout(self, name: str, dropout: float, *, is_sequence: bool = False) -> Callable[[Any], Any]:
        """Make what drops some channels, at each application by a draw of its own.

        One draw a sequence is a third cheaper than one a step, and what is meant.
        """
        if not dropout:
            return lambda x: x
        noise_shape = (None, 1, None) if is_sequence else None
        seed = next(self.seeds)
        drop: Callable[[Any], Any] = self.keras.layers.Dropout(
            dropout, noise_shape=noise_shape, seed=seed, dtype=self.precision, name=f"{name}_drop"
        )
        return drop

    def dense(
        self,
        units: int,
        name: str,
        activation: str | None = None,
        *,
        use_bias: bool = True,
        kernel: str = "GlorotUniform",
    ) -> Any:
        """Make a dense layer whose first weights come from the next seed."""
        start = getattr(self.keras.initializers, kernel)(seed=next(self.seeds))
        options = {"activation": activation, "use_bias": use_bias, "kernel_initializer": start}
        return self.keras.layers.Dense(units, **options, dtype=self.precision, name=name)

    def columns(self, rows: Any, names: Sequence[str]) -> Any:
        """Take columns of the window by name."""
        places = [self.shape.features.index(name) for name in names]
        return self.keras.ops.take(rows, places, axis=-1)

    def newest(self, window_BTF: Any) -> Any:
        """Cut the newest row out of the window, (B, 1, F)."""
        crop = self.keras.layers.Cropping1D
        return crop((self.shape.lookback_bars - 1, 0), dtype=self.precision, name="newest")(window_BTF)

    def head(self, task: Task, equation: str) -> Any:
        """Make a task's last layer by an equation of keras.layers.EinsumDense that ends in `bhc`.

        Its kernel is zero, and `build_network` sets its bias to the constant start.
        """
        return self.keras.layers.EinsumDense(
            equation,
            output_shape=(self.shape.horizon_bars, len(task.columns)),
            bias_axes="hc",
            kernel_initializer="zeros",
            dtype="float32",  # 16 bits cannot tell neighbouring prices apart
            name=HEAD_PREFIX + task.name,
        )

    def heads(self, x: Any, equation: str) -> dict[str, Any]:
        """Apply every task's head, all by one equation."""
        return {task.name: self.head(task, equation)(x) for task in self.shape.tasks}


def recurrent_flop(
    num_steps: int, width: int, units: Sequence[int], *, num_directions: int = 1, num_gates: int = 4
) -> float:
    """Count a forward pass through layers of LSTM cells that read `num_steps` of `width` channels.

    A cell of `u` units over `i` inputs multiplies a (i + u) x 4u matrix per step, two operations per entry; a
    GRU has three gates.
    Element-wise work is left out, as are heads and dense layers after cells: they are below two per cent.
    """
    inputs = (width, *(num_directions * each for each in units[:-1]))
    cells = sum(2.0 * num_gates * each * (read + each) for read, each in zip(inputs, units, strict=True))
    return num_directions * num_steps * cells


def dense_flop(*widths: int) -> float:
    """Count a forward pass through dense layers, from the width of the input to that of the last layer."""
    return sum(2.0 * read * each for read, each in pairwise(widths))
