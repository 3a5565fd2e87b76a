"""Gradients of a function of arrays, by either backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from v8.hardware import backend, backend_name

Tensor: TypeAlias = Any


def gradients_of(
    loss_of: Callable[[Sequence[Tensor]], tuple[Tensor, Any]], arrays: Sequence[Tensor]
) -> tuple[list[Tensor], Any]:
    """Differentiate a loss with respect to arrays.

    Args:
        loss_of: Maps the arrays to a scalar and anything else that is to be handed on.
        arrays: Floating.

    Returns:
        One gradient an array, zeros where the loss does not depend on it, and what was handed on.
    """
    if backend_name() == "jax":
        return backend().grad(loss_of, has_aux=True)(list(arrays))
    tensorflow = backend()
    with tensorflow.GradientTape() as tape:
        tape.watch(arrays)
        loss, extra = loss_of(arrays)
    return tape.gradient(loss, arrays, unconnected_gradients=tensorflow.UnconnectedGradients.ZERO), extra
