"""Windows and targets of a profile as a `tf.data.Dataset`, for the user's own Keras models."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from v8.api.arguments import in_python
from v8.api.forecaster import joined_candles
from v8.base.errors import ArgumentError
from v8.base.process import quiet_start
from v8.data.features import compute_table
from v8.data.market.candles import Candles
from v8.data.market.frames import RawCandles
from v8.data.windows.dataset import SPANS, FleetWindows, SeriesData, gathered, prepare_series, table_columns
from v8.profile.profile import Profile, load_profile

if TYPE_CHECKING:
    import tensorflow as tf

DEFAULT_SEED: Final = 0


@in_python
def windows(
    candles: Candles | RawCandles,
    profile: str | Path | Profile,
    *,
    span: str = "train",
    batch_size: Annotated[int, Field(ge=1)] | None = None,
    seed: Annotated[int, Field(ge=0)] | None = None,
    series: str | None = None,
    covariates: Mapping[str, Any] | None = None,
) -> "tf.data.Dataset":
    """Return the windows and targets of a span, scaled as in training, for `keras.Model.fit` of any model.

    The candles are divided into train, validation and test span by the shares of the profile, with its
    embargo between them; scaling is fitted to the train span alone. One pass holds every window of the span
    once: for "train" shuffled again in each pass, for the others in time order.

    Args:
        candles: A frame of raw candles, the list that an exchange library returns, or checked `Candles`.
        profile: A shipped name, a path to a YAML file, or a profile.
        span: "train", "validation" or "test".
        batch_size: Windows in a batch, the last one may hold fewer; None takes the profile's.
        seed: Seed of the shuffle of "train"; None takes 0.
        series: Such as "BTCUSDT-15m"; None finds the timeframe by the steps between candles.
        covariates: What the profile reads besides these candles, as in `v8.features`.

    Returns:
        A `tf.data.Dataset` of pairs, all float32 and unitless: windows (batch, lookback, features), and
        targets by task, each (batch, horizon, columns of the task). Features are in the order of the profile.
        Keras matches targets with outputs of a model by their names. Every window counts the same; with
        `scaling: ranged` our own training weighs them by their recent range.

    Raises:
        ArgumentError: If there is no such span.
        DataError: If the candles cannot be read, or a span of them does not hold one window.

    >>> import v8
    >>> train = v8.windows(candles, "frontier")
    >>> window, targets = train.element_spec
    >>> window.shape.as_list(), {task: each.shape[-1] for task, each in targets.items()}
    ([None, 20, 74], {'ohlc': 4, 'bands': 2, 'volatility': 1, 'range': 2})
    """
    if span not in SPANS:
        rule = f"is one of {', '.join(SPANS)}"
        fix = "help(v8.windows) says what each holds"
        raise ArgumentError(where="v8.windows, span=", rule=rule, got=repr(span)[:60], fix=fix)
    loaded = profile if isinstance(profile, Profile) else load_profile(str(profile))
    table = compute_table(joined_candles(candles, loaded, series, covariates), table_columns(loaded))
    return span_dataset(prepare_series(table, loaded), span, batch_size=batch_size, seed=seed)


def span_dataset(
    data: SeriesData, span: str, *, batch_size: int | None = None, seed: int | None = None
) -> "tf.data.Dataset":
    """Return the windows and targets of a span as `windows` does; it says what `batch_size` and `seed` do."""
    fleet = FleetWindows([data])
    indices = fleet.span_indices(span, 1)[:, 0, 0]
    with quiet_start():
        import tensorflow as tf  # noqa: PLC0415 - seconds of start-up, paid only by those who train

    with tf.device("CPU:0"):
        tables = fleet.tables(tf.constant)
        dataset = tf.data.Dataset.from_tensor_slices(indices)

    def cut(indices_B: Any) -> tuple[Any, dict[str, Any]]:
        """Cut windows and targets out of the tables of the only series."""
        batch = gathered(tf.experimental.numpy, tables, indices_B[:, None])
        return batch.x_BMTF[:, 0], {task: targets[:, 0] for task, targets in batch.y_BMHC.items()}

    if span == "train":
        first_seed = DEFAULT_SEED if seed is None else seed
        dataset = dataset.shuffle(len(indices), seed=first_seed, reshuffle_each_iteration=True)
    size = batch_size or data.profile.training.batch_size
    # AutoGraph has nothing to convert here, and would leave compiled files in the temporary folder.
    cut_unconverted = tf.autograph.experimental.do_not_convert(cut)
    return dataset.batch(size).map(cut_unconverted).prefetch(tf.data.AUTOTUNE)
