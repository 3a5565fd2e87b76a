"""Gradients by either backend, and activation checkpointing.

A network is cut into segments of which only the inputs are stored. In the backward pass each segment is
computed once more from its inputs (Chen et al. 2016, arXiv:1604.06174): that costs one more forward pass, and
memory holds only the arrays between segments and those inside one of them. With about as many segments as
calls in each, both are few. Any functional network can be cut, so families and published models are not
affected: weights, draws and results are those of the network itself.

Keras' own `RematScope` wraps single layers, and on JAX it passes `training` as an array, on which layers
cannot branch. Here a segment is a function of arrays alone, the same for both backends.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import keras
from keras import ops

from v8.base.hardware import backend, backend_name

Tensor: TypeAlias = Any


def gradients_of(
    loss_of: Callable[[Sequence[Tensor]], tuple[Tensor, Any]], arrays: Sequence[Tensor]
) -> tuple[list[Tensor], Any]:
    """Differentiate a scalar loss by floating arrays.

    Args:
        loss_of: Maps the arrays to the loss and anything else.
        arrays: The arrays.

    Returns:
        One gradient for each array, zeros where the loss does not depend on it; and the second result of
        `loss_of`.
    """
    if backend_name() == "jax":
        return backend().grad(loss_of, has_aux=True)(list(arrays))
    tensorflow = backend()
    with tensorflow.GradientTape() as tape:
        tape.watch(arrays)
        loss, extra = loss_of(arrays)
    return tape.gradient(loss, arrays, unconnected_gradients=tensorflow.UnconnectedGradients.ZERO), extra


Node: TypeAlias = Any
"""One call of a layer or operation as Keras records it, with `input_tensors` and `output_tensors`."""
Call: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor], Any], tuple[Any, Sequence[Tensor]]]
"""Maps trainable arrays, other arrays and inputs to outputs and other arrays, as `stateless_call` does."""
WITHOUT_GRADIENT: Final = frozenset({"Greater", "OnesLike", "StopGradient", "ZerosLike"})
"""Operations of `keras.ops` that pass no gradient to their inputs."""


@dataclass(frozen=True)
class _Segment:
    """A part of a network as a function of arrays."""

    nodes: Sequence[Node]  # its calls, in order
    inputs: Sequence[Tensor]  # tensors of other segments that it reads
    outputs: Sequence[Tensor]  # its tensors that are read outside; those with a gradient come first
    num_differentiable: int  # how many of the outputs have a gradient
    weights: Sequence[keras.Variable]  # its trainable variables
    constants: Sequence[keras.Variable]  # its other variables

    def call(
        self, weights: Sequence[Tensor], constants: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Compute outputs and new constants in training, from arrays for the variables and input tensors."""
        variables = [*self.weights, *self.constants]
        values = zip(variables, [*weights, *constants], strict=True)
        with keras.StatelessScope(state_mapping=list(values)) as scope:
            arrays = _by_id(self.inputs, inputs)
            for node in self.nodes:
                args, kwargs = node.arguments.fill_in(arrays)
                if "training" in inspect.signature(node.operation.call).parameters:
                    kwargs["training"] = True
                results = node.operation(*args, **kwargs)
                arrays |= _by_id(node.output_tensors, keras.tree.flatten(results))
        new_constants = [scope.get_current_value(variable) for variable in self.constants]
        return [arrays[id(tensor)] for tensor in self.outputs], new_constants


def checkpointed(network: keras.Model) -> Call:
    """Return what equals `stateless_call` in training, but needs less memory for its gradient."""
    segments = [
        (segment, _recomputed(segment.call, segment.num_differentiable)) for segment in _segments(network)
    ]

    def call(weights: Sequence[Tensor], constants: Sequence[Tensor], inputs: Any) -> Any:
        arrays = _by_id(network.inputs, keras.tree.flatten(inputs))
        arrays |= _by_id(network.trainable_variables, weights)
        arrays |= _by_id(network.non_trainable_variables, constants)
        for segment, recomputed in segments:
            outputs, new_constants = recomputed(
                [arrays[id(variable)] for variable in segment.weights],
                [arrays[id(variable)] for variable in segment.constants],
                [arrays[id(tensor)] for tensor in segment.inputs],
            )
            arrays |= _by_id(segment.outputs, outputs)
            arrays |= _by_id(segment.constants, new_constants)
        results = [arrays[id(tensor)] for tensor in network.outputs]
        new_constants = [arrays[id(variable)] for variable in network.non_trainable_variables]
        return keras.tree.pack_sequence_as(network.output, results), new_constants

    return call


def _segments(network: keras.Model) -> list[_Segment]:
    """Cut the calls of a network into about as many segments as there are calls in each.

    No gradient passes through a bool tensor, so it does not become an output: the call that makes it is
    repeated in each segment that reads it.
    """
    by_depth = network._nodes_by_depth  # in the order in which Keras runs the calls
    nodes = [
        node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input
    ]
    bool_makers = {
        id(tensor): node for node in nodes for tensor in node.output_tensors if tensor.dtype == "bool"
    }
    read_later = {id(tensor) for tensor in network.outputs}
    differentiable = _differentiable(nodes, read_later)
    segments = []
    size = math.isqrt(len(nodes))
    for start in reversed(range(0, len(nodes), size)):
        calls = nodes[start : start + size]
        makers = [bool_makers.get(id(tensor)) for node in calls for tensor in node.input_tensors]
        repeated = dict.fromkeys(node for node in makers if node and node not in calls)
        calls = [*repeated, *calls]
        own_tensors = {id(tensor): tensor for node in calls for tensor in node.output_tensors}
        inputs = {
            id(tensor): tensor
            for node in calls
            for tensor in node.input_tensors
            if id(tensor) not in own_tensors
        }
        output_ids = [key for key in own_tensors if key in read_later]
        output_ids.sort(key=lambda key: key not in differentiable)
        own = {id(variable) for node in calls for variable in getattr(node.operation, "variables", ())}
        segments.append(
            _Segment(
                nodes=calls,
                inputs=list(inputs.values()),
                outputs=[own_tensors[key] for key in output_ids],
                num_differentiable=len(differentiable.intersection(output_ids)),
                weights=[variable for variable in network.trainable_variables if id(variable) in own],
                constants=[variable for variable in network.non_trainable_variables if id(variable) in own],
            )
        )
        read_later |= set(inputs)
    return segments[::-1]


def _differentiable(nodes: Sequence[Node], outputs: set[int]) -> set[int]:
    """Return the ids of the tensors through which the gradient of the outputs passes."""
    differentiable = set(outputs)
    for node in reversed(nodes):
        has_gradient = any(id(tensor) in differentiable for tensor in node.output_tensors)
        if has_gradient and type(node.operation).__name__ not in WITHOUT_GRADIENT:
            differentiable |= {id(tensor) for tensor in node.input_tensors}
    return differentiable


def _by_id(tensors: Sequence[Tensor], arrays: Sequence[Tensor]) -> dict[int, Tensor]:
    return {id(tensor): array for tensor, array in zip(tensors, arrays, strict=True)}


def _recomputed(call: Call, num_differentiable: int) -> Call:
    """Return a function that in the backward pass computes itself again from its inputs.

    If the second computation read the same arrays as the first, XLA would merge the two and keep all
    intermediate arrays. (On a CPU it ignores the barrier that `jax.checkpoint` puts against that.) So the
    second one reads inputs that are known only in the backward pass: the inputs plus zeros that are computed
    from the gradient of later segments.
    """
    if not num_differentiable:
        return call

    def outer(weights: Sequence[Tensor], constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> Any:
        num_weights = len(weights)
        num_constants = len(constants)

        def inner(*arrays: Tensor) -> Any:
            constants = arrays[:num_constants]
            floats = arrays[num_constants:]

            def gradient(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor | None, ...]:
                # JAX passes the gradients of the results as one structure, TensorFlow as arguments.
                upstream_gradients = keras.tree.flatten(args if upstream is None else upstream)
                upstream_gradients = upstream_gradients[:num_differentiable]

                def loss_of(floats: Sequence[Tensor]) -> tuple[Tensor, None]:
                    outputs, _ = call(floats[:num_weights], constants, floats[num_weights:])
                    # Its gradient is the vector-Jacobian product of the outputs with the upstream gradients.
                    products = [
                        output * upstream_gradient
                        for output, upstream_gradient in zip(outputs, upstream_gradients, strict=False)
                    ]
                    return sum(ops.sum(ops.cast(product, "float32")) for product in products), None

                # Zero whatever the gradient is, also where it is infinite or not a number.
                first = ops.reshape(upstream_gradients[0], (-1,))[0]
                zero = ops.where(ops.isfinite(first), first * 0, 0)
                inputs = [array + ops.cast(zero, array.dtype) for array in floats[num_weights:]]
                gradients, _ = gradients_of(loss_of, [*floats[:num_weights], *inputs])
                return (None,) * num_constants + tuple(gradients)

            return call(floats[:num_weights], constants, floats[num_weights:]), gradient

        differentiated = cast(Callable[..., Any], ops.custom_gradient(inner))
        return differentiated(*constants, *weights, *inputs)

    return outer
