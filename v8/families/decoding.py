"""Decoders that forecast bar after bar, each from their own forecast of the bar before.

Validation and every published file decode so, in one graph: the loop over the horizon is written out, and
plain Keras runs it. In training, and nowhere else, a decoder is taught ("teacher forcing", shifted by one):
it reads the horizon at once, the truth of the bar before in the place of the forecast of it. Windows that are
not taught read forecasts of a first pass over the newest candle, repeated: one step of Jacobi's iteration
towards what the loop would give (Song et al. 2021, arXiv:2002.03629). So a training step costs two passes and
no loop, which would take four times as long to compile. A first pass over the truth (Mihaylova and Martins
2019, arXiv:1906.07651) was tried, see scripts/RESULTS.md.

Shape legend: B batch, T lookback, F features, H horizon, D channels, C columns of a candle.
"""

from __future__ import annotations

from typing import Any, Protocol

from v8.columns import OHLC, TASK_OHLC
from v8.families.family import Layers, TaughtSettings

TEACHER = "teacher"
"""Name of the layer that draws whose candle is read."""


HEAD_EQUATION = "bhd,dc->bhc"


class Decoder(Protocol):
    """Turns the scaled candle before a bar into channels of that bar."""

    def following(self, candle_B1C: Any) -> Any:
        """Return the next bar, (B, 1, D); called once a bar, in order, it keeps what earlier bars left."""

    def whole(self, candles_BHC: Any) -> Any:
        """Return all bars, (B, H, D), none of which depends on a later candle than the one before it."""


def decoded(network: TaughtSettings, window_BTF: Any, layers: Layers, decoder: Decoder) -> dict[str, Any]:
    """Decode the horizon, from the newest candle on, and apply every task's head.

    Args:
        network: Says how often the truth is read in training.
        window_BTF: Scaled window.
        layers: Makes the heads; with `truth_BHC` the decoder is taught.
        decoder: What is between candles and heads.
    """
    heads = {task.name: layers.head(task, HEAD_EQUATION) for task in layers.shape.tasks}
    newest_B1C = layers.columns(layers.newest(window_BTF), OHLC)
    if layers.truth_BHC is None:
        x_BHD = _free(newest_B1C, layers, decoder, heads[TASK_OHLC])
    else:
        x_BHD = _taught(network.teacher_forcing, newest_B1C, layers, decoder, heads[TASK_OHLC])
    medians = {name: head(x_BHD) for name, head in heads.items()}
    return medians | layers.quantile_heads(x_BHD, HEAD_EQUATION)


def _free(newest_B1C: Any, layers: Layers, decoder: Decoder, head: Any) -> Any:
    ops, num_bars = layers.keras.ops, layers.shape.horizon_bars
    bars = [decoder.following(newest_B1C)]
    for bar in range(num_bars - 1):
        # The head has a bias of its own for each bar, so it is shown the whole horizon.
        repeated_BHD = ops.concatenate([bars[-1]] * num_bars, axis=-2)
        bars.append(decoder.following(ops.take(head(repeated_BHD), [bar], axis=-2)))
    return ops.concatenate(bars, axis=-2)


def _taught(share: float, newest_B1C: Any, layers: Layers, decoder: Decoder, head: Any) -> Any:
    ops, earlier = layers.keras.ops, list(range(layers.shape.horizon_bars - 1))
    first_BHC = head(decoder.whole(ops.concatenate([newest_B1C] * layers.shape.horizon_bars, axis=-2)))
    own = ops.stop_gradient(ops.take(first_BHC, earlier, axis=-2))
    truth = ops.take(layers.truth_BHC, earlier, axis=-2)
    drop = layers.keras.layers.Dropout(share, seed=next(layers.seeds), dtype="float32", name=TEACHER)
    is_own = drop(ops.ones_like(ops.take(newest_B1C, [0], axis=-1))) > 0
    return decoder.whole(ops.concatenate([newest_B1C, ops.where(is_own, own, truth)], axis=-2))
