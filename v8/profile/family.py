"""What a network family is, with its layers and cost; and those that forecast the whole horizon in one step.

A plugin adds a family with `FAMILIES.register`; a profile then names it in `network.family`.

Shape legend: B batch, T lookback or time, F features, H horizon, D channels, R one number (the forecast
range), C columns of a task.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

from v8.base.records import Settings
from v8.base.registry import Named, read_descriptions
from v8.profile.columns import CLOSE, RANGE_BARS
from v8.profile.tasks import Task

HEAD_PREFIX = "head_"
Size = Annotated[int, Field(ge=1, le=4096)]
Units = Annotated[tuple[Size, ...], Field(min_length=1, max_length=64)]
"""Units of each layer of a kind, first to last."""
Dropout = Annotated[float, Field(ge=0, lt=1)]
"""Share of channels dropped after a layer, one draw a sequence; 0 switches it off."""


@dataclass(frozen=True)
class NetworkShape:
    """The inputs of a network, a window of `lookback_bars` rows, and its outputs, as a profile has them."""

    lookback_bars: int
    features: tuple[str, ...]
    horizon_bars: int
    tasks: tuple[Task, ...]

    @property
    def num_features(self) -> int:
        """Width of a row of the window."""
        return len(self.features)


class NetworkSettings(Settings):
    """Settings of a network; each family adds its sizes."""

    family: str
    """Name of the family, one of `v8.profile.families.FAMILIES`."""

    @property
    def first_units(self) -> int:
        """Units of the first layer, the first number of the first sizes; matmul rates are measured at it."""
        return int(next(sizes[0] for sizes in vars(self).values() if isinstance(sizes, tuple)))


class TeacherForcingSettings(NetworkSettings):
    """Settings of a network that reads its own forecasts and is trained with teacher forcing.

    Its family is trained with a second input, `actual`, the actual candles; see
    `v8.profile.families`.
    """

    teacher_forcing: Dropout
    """Probability, in training alone, that the decoder reads the actual candles of earlier bars of a window
    instead of its own forecasts of them; 0 switches teacher forcing off."""


@dataclass(frozen=True)
class Family(Named):
    """One kind of network, with a sentence that describes it and its source.

    Args:
        settings: Class of its settings in a profile.
        outputs: Maps settings, a Keras tensor (B, T, F), scaled, and `Layers` to the outputs of the heads,
            per task (B, H, C), scaled. A network with a layer that has no stacked twin is trained by itself,
            never in a fleet of several. None for a formula, which is fitted (`v8.model.training.formula`)
            and not trained.
        forward_flop: Maps settings and shape to the floating-point operations of a forward pass.
        min_lookback_bars: Smallest number of rows of the window.
        reads_newest_row_only: Whether the network crops its window to the newest row: then a published model
            scales no other row.
    """

    settings: type[NetworkSettings]
    outputs: "NetworkOutputs | None"
    forward_flop: Callable[[Any, NetworkShape], float]
    min_lookback_bars: int = 1
    reads_newest_row_only: bool = False

    @property
    def is_formula(self) -> bool:
        """Whether it is fitted instead of trained."""
        return self.outputs is None


NetworkOutputs: TypeAlias = "Callable[[Any, Any, Layers], dict[str, Any]]"
"""Type of `Family.outputs`."""
Flop: TypeAlias = Callable[[Any, NetworkShape], float]
_DESCRIPTIONS: Final = read_descriptions("v8.profile", "families.yaml")


def shipped_family(
    name: str,
    settings: type[NetworkSettings],
    outputs: "NetworkOutputs | None",
    flop: Flop,
    bars: int = 1,
    *,
    reads_newest_row_only: bool = False,
) -> Family:
    """Return a shipped family, described in `families.yaml`; its windows have at least `bars` rows."""
    description = _DESCRIPTIONS[name]
    return Family(
        **description,
        settings=settings,
        outputs=outputs,
        forward_flop=flop,
        min_lookback_bars=bars,
        reads_newest_row_only=reads_newest_row_only,
    )


@dataclass(frozen=True)
class Layers:
    """Makes the layers that families have in common, for one network.

    Args:
        keras: The module `keras`: profiles are read without it, so this module does not import it.
        shape: Inputs and outputs of the network.
        precision: Keras dtype policy of all layers but the heads.
        seeds: Seeds; each initializer and each dropout takes the next one.
        actual_BHC: With teacher forcing, the Keras tensor of the actual candles of the horizon, scaled; None
            without, and for every published model.
    """

    keras: Any
    shape: NetworkShape
    precision: str
    seeds: Iterator[int]
    actual_BHC: Any = None

    @property
    def bars_per_call(self) -> int:
        """Bars that a decoder computes in one call: all with teacher forcing, otherwise one."""
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
        """Apply LSTM layers, each followed by layer normalisation and dropout.

        Args:
            x_BTD: The input.
            name: Prefix of the layers' names.
            units: Units per direction of each layer, first to last.
            dropout: Share of channels dropped after each layer.
            is_bidirectional: Whether each layer reads in both directions.
            is_sequence: Whether the last layer returns every step, (B, T, D), or the last one, (B, D).
        """
        for number, num_units in enumerate(units, 1):
            layer_name = f"{name}_{number}"
            has_steps = is_sequence or number < len(units)
            make = self._bidirectional if is_bidirectional else self.loop
            x_BTD = make("LSTM", num_units, layer_name, return_sequences=has_steps)(x_BTD)
            norm = self.keras.layers.LayerNormalization(dtype=self.precision, name=f"{layer_name}_norm")
            x_BTD = norm(x_BTD)
            x_BTD = self.dropout(layer_name, dropout, is_sequence=has_steps)(x_BTD)
        return x_BTD

    def loop(self, kind: str, units: int, name: str, **options: bool) -> Any:
        """Make a recurrent layer or cell, such as "LSTM" or "GRUCell"; its kernels take two seeds."""
        kernel = self.keras.initializers.GlorotUniform(seed=next(self.seeds))
        recurrent = self.keras.initializers.Orthogonal(seed=next(self.seeds))
        return getattr(self.keras.layers, kind)(
            units,
            kernel_initializer=kernel,
            recurrent_initializer=recurrent,
            dtype=self.precision,
            name=name,
            **options,
        )

    def _bidirectional(self, kind: str, units: int, name: str, **options: bool) -> Any:
        forward = self.loop(kind, units, f"{name}_forward", **options)
        backward = self.loop(kind, units, f"{name}_backward", **options, go_backwards=True)
        return self.keras.layers.Bidirectional(
            forward, backward_layer=backward, dtype=self.precision, name=name
        )

    def dropout(self, name: str, dropout: float, *, is_sequence: bool = False) -> Callable[[Any], Any]:
        """Make a dropout layer, or the identity where `dropout` is 0; every application draws again.

        With `is_sequence` a channel is dropped for all steps of a sequence: variational dropout, which is
        also a third cheaper than a draw for each step.
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
        """Make a dense layer whose initial weights are drawn by the next seed."""
        initializer = getattr(self.keras.initializers, kernel)(seed=next(self.seeds))
        return self.keras.layers.Dense(
            units,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=initializer,
            dtype=self.precision,
            name=name,
        )

    def columns(self, rows: Any, names: Sequence[str]) -> Any:
        """Select columns of the window by name."""
        places = [self.shape.features.index(name) for name in names]
        return self.keras.ops.take(rows, places, axis=-1)

    def newest(self, window_BTF: Any) -> Any:
        """Cut the newest row out of the window, (B, 1, F)."""
        crop = self.keras.layers.Cropping1D
        return crop((self.shape.lookback_bars - 1, 0), dtype=self.precision, name="newest")(window_BTF)

    def head(self, task: Task, equation: str) -> Any:
        """Make a task's last layer by an equation of keras.layers.EinsumDense that ends in `bhc`.

        Its kernel is zero, and `build_network` sets its bias to the constant forecast.
        """
        return self.keras.layers.EinsumDense(
            equation,
            output_shape=(self.shape.horizon_bars, len(task.columns)),
            bias_axes="hc",
            kernel_initializer="zeros",
            dtype="float32",  # 16 bits cannot distinguish neighbouring prices
            name=HEAD_PREFIX + task.name,
        )

    def heads(self, x: Any, equation: str) -> dict[str, Any]:
        """Apply the head of every task, all with the same equation."""
        return {task.name: self.head(task, equation)(x) for task in self.shape.tasks}


def recurrent_flop(
    num_steps: int, width: int, units: Sequence[int], *, num_directions: int = 1, num_gates: int = 4
) -> float:
    """Count the operations of a forward pass through LSTM layers that read `num_steps` of `width` channels.

    A cell of `u` units over `i` inputs multiplies a (i + u) x 4u matrix per step, two operations per entry; a
    GRU has three gates. Element-wise work is left out, and so are heads and dense layers after the cells:
    they are below two per cent.
    """
    step_flop = 0.0
    num_inputs = width
    for num_units in units:
        step_flop += 2.0 * num_gates * num_units * (num_inputs + num_units)
        num_inputs = num_directions * num_units
    return num_directions * num_steps * step_flop


def dense_flop(*widths: int) -> float:
    """Count the operations of a forward pass through dense layers of these widths, the input's first."""
    return sum(2.0 * num_inputs * num_units for num_inputs, num_units in pairwise(widths))


class Seq2SeqNetwork(NetworkSettings):
    """Sizes of encoder and decoder."""

    encoder_units: Units
    """Units of each encoder layer per direction, first to last."""
    decoder_units: Units
    """Units of each decoder layer, first to last."""
    dropout: Dropout
    """Share of channels dropped after each layer, one draw a sequence; 0 switches it off."""


def _seq2seq(network: Seq2SeqNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    units = network.encoder_units
    dropout = network.dropout
    summary_BD = layers.recurrent(window_BTF, "encoder", units, dropout, is_bidirectional=True)
    repeat = layers.keras.layers.RepeatVector(
        layers.shape.horizon_bars, dtype=layers.precision, name="repeat"
    )
    x_BHD = layers.recurrent(repeat(summary_BD), "decoder", network.decoder_units, dropout, is_sequence=True)
    return layers.heads(x_BHD, "bhd,dc->bhc")


def _seq2seq_flop(network: Seq2SeqNetwork, shape: NetworkShape) -> float:
    encoder = recurrent_flop(shape.lookback_bars, shape.num_features, network.encoder_units, num_directions=2)
    return encoder + recurrent_flop(shape.horizon_bars, 2 * network.encoder_units[-1], network.decoder_units)


BILSTM_SEQ2SEQ: Final = shipped_family("bilstm_seq2seq", Seq2SeqNetwork, _seq2seq, _seq2seq_flop)


class DenseNetwork(NetworkSettings):
    """Sizes of LSTM and dense layers."""

    encoder_units: Units
    """Units of each LSTM layer, first to last."""
    dense_units: Units
    """Units of each dense layer (ReLU), first to last."""
    dropout: Dropout
    """Share of channels dropped after each LSTM layer, one draw a sequence; 0 switches it off."""


class CloseNetwork(NetworkSettings):
    """Sizes of the LSTM layers."""

    encoder_units: Units
    """Units of each LSTM layer, first to last."""
    dropout: Dropout
    """Share of channels dropped after each layer, one draw a sequence; 0 switches it off."""


def _lstm(network: DenseNetwork | CloseNetwork, x_BTF: Any, layers: Layers) -> dict[str, Any]:
    x_BD = layers.recurrent(x_BTF, "encoder", network.encoder_units, network.dropout)
    for number, units in enumerate(getattr(network, "dense_units", ()), 1):
        x_BD = layers.dense(units, f"dense_{number}", "relu")(x_BD)
    return layers.heads(x_BD, "bd,dhc->bhc")


LSTM_DENSE: Final = shipped_family(
    "lstm_dense",
    DenseNetwork,
    _lstm,
    lambda network, shape: recurrent_flop(shape.lookback_bars, shape.num_features, network.encoder_units),
)


LSTM_CLOSE: Final = shipped_family(
    "lstm_close",
    CloseNetwork,
    lambda network, window_BTF, layers: _lstm(network, layers.columns(window_BTF, [CLOSE]), layers),
    lambda network, shape: recurrent_flop(shape.lookback_bars, 1, network.encoder_units),
)


class NewestRowNetwork(NetworkSettings):
    """Sizes of the dense layers."""

    dense_units: Units
    """Units of each dense layer (GELU), first to last."""
    dropout: Dropout
    """Share of channels dropped after each layer; 0 switches it off."""


def _dense_newest(network: NewestRowNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    keras = layers.keras
    shape = layers.shape
    row = keras.layers.Reshape((shape.num_features,), dtype=layers.precision, name="row")
    x_BD = row(layers.newest(window_BTF))
    for number, units in enumerate(network.dense_units, 1):
        dense = layers.dense(units, f"dense_{number}", "gelu", kernel="HeNormal")
        x_BD = layers.dropout(f"dense_{number}", network.dropout)(dense(x_BD))
    outputs = {}
    for task in shape.tasks:
        # One number for each bar, by which all columns of a task move away from the constant forecast.
        range_layer = keras.layers.EinsumDense(
            "bd,dhr->bhr",
            (shape.horizon_bars, 1),
            kernel_initializer="zeros",
            dtype="float32",
            name=f"range_{task.name}",
        )
        head = layers.head(task, "bhr,rc->bhc")
        outputs[task.name] = head(range_layer(x_BD))
        head.kernel.assign([task.sides])  # the direction in which each column moves
    return outputs


def _newest_flop(network: NewestRowNetwork, shape: NetworkShape) -> float:
    return dense_flop(shape.num_features, *network.dense_units, shape.horizon_bars * len(shape.tasks))


DENSE_NEWEST: Final = shipped_family(
    "dense_newest", NewestRowNetwork, _dense_newest, _newest_flop, reads_newest_row_only=True
)


class RangePathsFormula(NetworkSettings):
    """It has no settings: all of its numbers are fitted."""


RANGE_PATHS: Final = shipped_family(
    "range_paths", RangePathsFormula, None, lambda network, shape: 0.0, bars=max(RANGE_BARS)
)
