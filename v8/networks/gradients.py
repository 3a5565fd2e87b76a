"""Gradients by either backend, and activation checkpointing: a network in segments that keep what is read.

Backward, each segment is worked out once more from what it read (Chen et al. 2016, arXiv:1604.06174): one
forward pass more, and in memory at any time the arrays between the segments and those inside one of them;
with as many segments as each holds calls these are few. Any functional network can be cut, so families know
nothing of it, and neither does what is published: weights, draws and results are those of the network itself.

Keras' own `RematScope` wraps single layers, and on JAX hands `training` over as an array that layers cannot
branch on. Here a segment is a function of arrays alone, the same for both backends.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import keras
from keras import ops

from v8.hardware import backend, backend_name

Tensor: TypeAlias = Any


def gradients_of(
    loss_of: Callable[[Sequence[Tensor]], tuple[Tensor, Any]], arrays: Sequence[Tensor]
) -> tuple[list[Tensor], Any]:
    """Differentiate a scalar loss, beside which anything may be handed on, by floating arrays.

    Returns one gradient an array, zeros where the loss does not depend on it, and what was handed on.
    """
    if backend_name() == "jax":
        return backend().grad(loss_of, has_aux=True)(list(arrays))
    tensorflow = backend()
    with tensorflow.GradientTape() as tape:
        tape.watch(arrays)
        loss, extra = loss_of(arrays)
    return tape.gradient(loss, arrays, unconnected_gradients=tensorflow.UnconnectedGradients.ZERO), extra


Node: TypeAlias = Any
"""One call of a layer or operation as Keras notes it, with `input_tensors` and `output_tensors`."""
Call: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor], Any], tuple[Any, Sequence[Tensor]]]
"""Maps trainable arrays, other arrays and inputs to outputs and other arrays, as `stateless_call` does."""
WITHOUT_GRADIENT: Final = frozenset({"Greater", "OnesLike", "StopGradient", "ZerosLike"})
"""Operations of `keras.ops` whose inputs learn nothing from them."""


@dataclass(frozen=True)
class _Segment:
    """A piece of a network: its calls, what it reads, and what it gives, of which the first ones learn."""

    nodes: Sequence[Node]
    reads: Sequence[Tensor]
    gives: Sequence[Tensor]
    num_learning: int
    weights: Sequence[keras.Variable]
    constants: Sequence[keras.Variable]

    def call(
        self, weights: Sequence[Tensor], constants: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Work it out in training, from the arrays that stand for variables and tensors."""
        values = zip((*self.weights, *self.constants), (*weights, *constants), strict=True)
        with keras.StatelessScope(state_mapping=list(values)) as scope:
            known = _by_id(self.reads, inputs)
            for node in self.nodes:
                args, kwargs = node.arguments.fill_in(known)
                if "training" in inspect.signature(node.operation.call).parameters:
                    kwargs["training"] = True
                known |= _by_id(node.output_tensors, keras.tree.flatten(node.operation(*args, **kwargs)))
        changed = [scope.get_current_value(variable) for variable in self.constants]
        return [known[id(tensor)] for tensor in self.gives], changed


def checkpointed(network: keras.Model) -> Call:
    """Return what `stateless_call` in training does, in less memory where it is differentiated."""
    segments = [(one, _recomputed(one.call, one.num_learning)) for one in _segments(network)]

    def call(weights: Sequence[Tensor], constants: Sequence[Tensor], inputs: Any) -> Any:
        known = _by_id(network.inputs, keras.tree.flatten(inputs))
        known |= _by_id(network.trainable_variables, weights)
        known |= _by_id(network.non_trainable_variables, constants)
        for segment, recomputed in segments:
            read = (segment.weights, segment.constants, segment.reads)
            given, changed = recomputed(*([known[id(one)] for one in each] for each in read))
            known |= _by_id(segment.gives, given) | _by_id(segment.constants, changed)
        outputs = [known[id(tensor)] for tensor in network.outputs]
        changed = [known[id(variable)] for variable in network.non_trainable_variables]
        return keras.tree.pack_sequence_as(network.output, outputs), changed

    return call


def _segments(network: keras.Model) -> list[_Segment]:
    """Cut the calls into about as many pieces as each of them holds, and find what each reads and gives.

    No gradient passes through actual values value: what makes one is called again in the piece that reads it.
    """
    by_depth = network._nodes_by_depth  # in the order in which Keras takes the calls
    nodes = [
        node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input
    ]
    makers = {id(one): node for node in nodes for one in node.output_tensors if one.dtype == "bool"}
    wanted = {id(tensor) for tensor in network.outputs}
    segments = []
    learning = _learning(nodes, wanted)
    size = math.isqrt(len(nodes))
    for start in reversed(range(0, len(nodes), size)):
        piece = nodes[start : start + size]
        needed = [makers.get(id(one)) for node in piece for one in node.input_tensors]
        piece = [*dict.fromkeys(one for one in needed if one and one not in piece), *piece]
        made = {id(one): one for node in piece for one in node.output_tensors}
        reads = {id(one): one for node in piece for one in node.input_tensors if id(one) not in made}
        gives = sorted((key for key in made if key in wanted), key=lambda key: key not in learning)
        own = {id(one) for node in piece for one in getattr(node.operation, "variables", ())}
        weights, constants = (
            [variable for variable in variables if id(variable) in own]
            for variables in (network.trainable_variables, network.non_trainable_variables)
        )
        num_learning = len(learning.intersection(gives))
        given = [made[key] for key in gives]
        segments.append(_Segment(piece, [*reads.values()], given, num_learning, weights, constants))
        wanted |= set(reads)
    return segments[::-1]


def _learning(nodes: Sequence[Node], outputs: set[int]) -> set[int]:
    """Return the tensors, by id, on whose gradient that of the outputs depends."""
    learning = {*outputs}
    for node in reversed(nodes):
        is_learning = any(id(tensor) in learning for tensor in node.output_tensors)
        if is_learning and type(node.operation).__name__ not in WITHOUT_GRADIENT:
            learning |= set(map(id, node.input_tensors))
    return learning


def _by_id(tensors: Sequence[Tensor], arrays: Sequence[Tensor]) -> dict[int, Tensor]:
    return {id(tensor): array for tensor, array in zip(tensors, arrays, strict=True)}


def _recomputed(call: Call, num_learning: int) -> Call:
    """Return the function with a gradient that works it out again from its inputs.

    XLA would take the second time for the first one and keep all of it, if both read the same arrays. (On a
    CPU it does not heed what `jax.checkpoint` does against that.) So the second reads what only the gradient
    of later segments lets it know: the inputs plus zeros made of that.
    """
    if not num_learning:
        return call

    def outer(weights: Sequence[Tensor], constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> Any:
        num_weights = len(weights)
        num_constants = len(constants)

        def inner(*arrays: Tensor) -> Any:
            constants = arrays[:num_constants]
            floats = arrays[num_constants:]

            def gradient(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor | None, ...]:
                # JAX hands over the gradients of the results as one structure, TensorFlow as arguments.
                later = keras.tree.flatten(args if upstream is None else upstream)[:num_learning]

                def loss_of(floats: Sequence[Tensor]) -> tuple[Tensor, None]:
                    again, _ = call(floats[:num_weights], constants, floats[num_weights:])
                    products = [one * each for one, each in zip(again, later, strict=False)]
                    return sum(ops.sum(ops.cast(product, "float32")) for product in products), None

                # Not known before the gradient is; whatever that is, infinite or no number.
                first = ops.reshape(later[0], (-1,))[0]
                zero = ops.where(ops.isfinite(first), first * 0, 0)
                inputs = [array + ops.cast(zero, array.dtype) for array in floats[num_weights:]]
                found, _ = gradients_of(loss_of, [*floats[:num_weights], *inputs])
                return (None,) * num_constants + tuple(found)

            return call(floats[:num_weights], constants, floats[num_weights:]), gradient

        differentiated = cast(Callable[..., Any], ops.custom_gradient(inner))
        return differentiated(*constants, *weights, *inputs)

    return outer
