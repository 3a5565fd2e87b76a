"""What an epoch starts from: the state of the fleet, its checkpoints, and the indices of the epoch's windows.

A checkpoint is one .npz file for each model, written again after every epoch; it only saves time. The file is
followed by 32 bytes, its sha256, so that a damaged file is never parsed.

The tables are on the device. On TensorFlow the indices come from `tf.data`: one data set of epochs, counted
from the next one. Each element is the indices of a complete epoch, some kilobytes, and is ready before the
previous epoch ends. One iterator serves all epochs. The data set holds no windows: cutting them in the
pipeline doubled the processor time of a training; cutting them in the compiled step costs less than with
NumPy (docs/research/training.md).

The order is NumPy's, `epoch_order`, not a shuffle of TensorFlow: a seed has to give the same order on both
backends, and another order gives other weights. So the data set calls Python with `tf.numpy_function`, once
an epoch, in a thread that no signal of Python reaches. `v8.base.process` says what happened when
Ctrl-C interrupted `from_generator`, which also makes the C library return freed memory immediately; this does
not.

Shape legend: S batches, B batch, M model, P parameters of one model.
"""

import atexit
import hashlib
import io
import json
import math
import zipfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeAlias
from weakref import WeakMethod, WeakSet

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.base.errors import ArtifactError
from v8.base.hardware import backend, backend_name
from v8.base.records import adapter, parse_json, read_given
from v8.base.storage import write_with
from v8.data.windows import EpochOrders, FleetWindows, Indices, Tables
from v8.model.training.progress import Progress

Tensor: TypeAlias = Any

FIRST_LOSS_SCALE = 2.0**15
"""Loss scaling of mixed float16: the default of keras.optimizers.LossScaleOptimizer."""
CHECKPOINT_FORMAT = 4
MAX_BYTES: Final = 1 << 30  # no checkpoint is larger: the network would have 60 million parameters
_DIGEST_BYTES: Final = 32


class FleetState(NamedTuple):
    """Everything a step changes; a tuple, because both backends compile functions of tuples.

    The weights of a model are one row of an array, in the order of `flattened`, and so are Adam's moments:
    each array more costs time in every call, and Adam computes the same for all numbers.

    Args:
        weights: Trainable numbers, shape (M, P).
        constants: Dropout seeds and draws.
        means: First moments of the gradient, shape (M, P).
        squares: Second moments of the gradient, shape (M, P).
        num_steps: Steps taken, shape (M,), float32.
        loss_scale: Factor of each model's loss under float16, shape (M,).
        num_good_steps: Steps without overflow since the scale last changed, shape (M,), int32.
        loss_sum: Weighted sum of the losses of the epoch's windows, scaled units, shape (M,).
        weight_sum: Sum of the weights of the epoch's windows, shape (M,).
    """

    weights: Tensor
    constants: list[Tensor]
    means: Tensor
    squares: Tensor
    num_steps: Tensor
    loss_scale: Tensor
    num_good_steps: Tensor
    loss_sum: Tensor
    weight_sum: Tensor

    @property
    def num_models(self) -> int:
        """Models of the program, M."""
        return len(self.weight_sum)

    def on_host(self) -> "FleetState":
        """Return the state as NumPy arrays, copied from the device in one transfer."""
        return keras.tree.map_structure(np.asarray, self)

    def take(self, slots: int | Sequence[int]) -> "FleetState":
        """Copy the state of one model, without the model axis, or of several as a smaller fleet; NumPy."""
        return keras.tree.map_structure(lambda array: np.asarray(array)[slots].copy(), self)

    def put(self, slot: int, part: "FleetState") -> "FleetState":
        """Return the state with that of one model replaced; NumPy."""

        def replaced(array: Tensor, own: Tensor) -> NDArray[Any]:
            return np.concatenate([array[:slot], own[None], array[slot + 1 :]])

        return keras.tree.map_structure(replaced, self, part)

    def with_empty_sums(self) -> "FleetState":
        """Return the state at the start of an epoch."""
        zeros_M = np.zeros(self.num_models, np.float32)
        return self._replace(loss_sum=zeros_M, weight_sum=zeros_M)


def initial_state(fleet: keras.Model, precision: str) -> FleetState:
    """Return the state of an untrained fleet, as NumPy arrays; under `mixed_float16` losses are scaled."""
    weights_MP = ops.convert_to_numpy(flattened(fleet.trainable_variables))
    zeros_MP = np.zeros_like(weights_MP)
    zeros_M = np.zeros(len(weights_MP), np.float32)
    return FleetState(
        weights=weights_MP,
        constants=[ops.convert_to_numpy(constant) for constant in fleet.non_trainable_variables],
        means=zeros_MP,
        squares=zeros_MP,
        num_steps=zeros_M,
        loss_scale=np.full_like(zeros_M, FIRST_LOSS_SCALE if precision == "mixed_float16" else 1),
        num_good_steps=np.zeros_like(zeros_M, np.int32),
        loss_sum=zeros_M,
        weight_sum=zeros_M,
    )


def flattened(arrays: Sequence[Tensor]) -> Tensor:
    """Concatenate arrays with the model axis first, (M, ...), to (M, P)."""
    return ops.concatenate([ops.reshape(array, (array.shape[0], -1)) for array in arrays], axis=1)


def unflattened(fleet: keras.Model, weights_MP: Tensor) -> list[Tensor]:
    """Split weights (M, P), as `flattened` returns them, into the shapes and order of the fleet's own."""
    arrays = []
    first = 0
    for weight in fleet.trainable_variables:
        shape = tuple(weight.shape[1:])
        last = first + math.prod(shape)
        arrays.append(ops.reshape(weights_MP[:, first:last], (-1, *shape)))
        first = last
    return arrays


@dataclass(frozen=True)
class Checkpoint:
    """Everything the next epoch of one model depends on.

    Args:
        identity: Profile, data and seed of the training; a checkpoint of another training is refused.
        state: The state of this model, without the model axis.
        best_weights: Trainable numbers of its best epoch, in the order of the state, shape (P,).
        progress: Its finished epochs.
    """

    identity: dict[str, Any]
    state: FleetState
    best_weights: NDArray[Any]
    progress: Progress

    def save(self, path: Path) -> None:
        """Write the checkpoint atomically."""
        note = {
            "format": CHECKPOINT_FORMAT,
            "identity": self.identity,
            "epoch": self.progress.epoch,
            "progress": asdict(self.progress),
        }
        flat: dict[str, Any] = {"note": np.frombuffer(json.dumps(note).encode("utf-8"), np.uint8)}
        for name, value in {**self.state._asdict(), "best_weights": self.best_weights}.items():
            if isinstance(value, list):
                flat.update({f"{name}/{number}": array for number, array in enumerate(value)})
            else:
                flat[name] = value
        stream = io.BytesIO()
        np.savez(stream, **flat)
        content = stream.getvalue()
        write_with(path, lambda aside: aside.write_bytes(content + hashlib.sha256(content).digest()))

    @classmethod
    def load(cls, path: Path, identity: dict[str, Any]) -> Self:
        """Read a checkpoint of this profile, data set and seed, or raise ArtifactError."""
        try:
            content = read_given(path, MAX_BYTES)
            file = content[:-_DIGEST_BYTES]
            if hashlib.sha256(file).digest() != content[-_DIGEST_BYTES:]:
                raise ValueError("damage: it does not match its sha256")
            with np.load(io.BytesIO(file), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            note = parse_json(bytes(arrays["note"]))
            progress = adapter(Progress).validate_python(note["progress"])
            fields: dict[str, Any] = {}
            for name in (*FleetState._fields, "best_weights"):
                # A list is stored as arrays NAME/0, NAME/1 ...
                fields[name] = arrays.get(name)
                if fields[name] is None:
                    fields[name] = [array for key, array in arrays.items() if key.startswith(f"{name}/")]
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            got = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise _refusal(path, "must be a checkpoint that can be read", got) from error
        if note["format"] != CHECKPOINT_FORMAT or note["identity"] != identity:
            raise _refusal(path, f"must belong to {identity}", str(note["identity"]))
        best_weights = fields.pop("best_weights")
        return cls(identity, FleetState(**fields), best_weights, progress)

    def require_fit(self, state: FleetState) -> None:
        """Raise ArtifactError if its arrays differ in shape or dtype from those of a model's state."""
        if _layout((self.state, self.best_weights)) != _layout((state, state.weights)):
            raise _refusal("a checkpoint", "must hold the arrays of this network", "others")


def _layout(arrays: Any) -> Any:
    return keras.tree.map_structure(lambda array: (np.shape(array), np.asarray(array).dtype.str), arrays)


def _refusal(place: Path | str, rule: str, got: str) -> ArtifactError:
    return ArtifactError(
        where=str(place), rule=rule, got=got, fix="Remove it to train this series from its first epoch"
    )


def on_device(windows: FleetWindows) -> Tables:
    """Copy the tables of a fleet to the device, as tensors of the backend."""
    return windows.tables(ops.convert_to_tensor)


_LIVE_ITERATORS: Final[WeakSet[Generator[Indices, None, None]]] = WeakSet()
"""Iterators that may still have a thread which calls Python."""


def epoch_iterator(orders: EpochOrders) -> Iterator[Indices]:
    """Iterate over the indices (S, B, M), int32, of one epoch after another, without end."""
    iterator = _epochs(orders)
    _LIVE_ITERATORS.add(iterator)
    return iterator


def _epochs(orders: EpochOrders) -> Generator[Indices, None, None]:
    if backend_name() == "jax":
        yield from orders
    else:
        for indices_SBM in epoch_dataset(orders):
            yield indices_SBM.numpy()


@atexit.register
def _close_iterators() -> None:
    """End the threads of iterators that are left when Python exits.

    One that asks for the next epoch while Python is being torn down never gets an answer, and the process
    would wait for it for ever.
    """
    for iterator in list(_LIVE_ITERATORS):
        with suppress(ValueError):  # it is running, in a thread that is left behind
            iterator.close()


def epoch_dataset(orders: EpochOrders) -> Any:
    """Return the `tf.data.Dataset` of epochs: elements are indices (S, B, M), int32, on the host.

    The caller must keep `orders` as long as it reads the data set, which does not.
    """
    tensorflow = backend()
    shape = orders.shape
    # TensorFlow keeps the function until the process ends, and the window indices of long series take
    # megabytes.
    indices_of = WeakMethod(orders.indices)

    def indices_of_epoch(epoch: NDArray[np.int64]) -> Indices:
        indices = indices_of()
        if indices is None:
            raise RuntimeError("the orders of a data set of epochs must live as long as it is read")
        return indices(int(epoch))

    def indices_tensor(epoch: Any) -> Any:
        indices_SBM = tensorflow.numpy_function(indices_of_epoch, [epoch], tensorflow.int32)
        return tensorflow.ensure_shape(indices_SBM, shape)

    options = tensorflow.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 1
    # There is nothing to tune, and the end of a pass would wait for the tuner's thread, up to two seconds.
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    # AutoGraph has nothing to convert here, and would leave compiled files in the temporary folder.
    plain = tensorflow.autograph.experimental.do_not_convert(indices_tensor)
    with tensorflow.device("CPU:0"):
        counted = tensorflow.data.Dataset.counter(np.int64(orders.start))
        return counted.map(plain).prefetch(1).with_options(options)
