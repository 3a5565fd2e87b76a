"""The sections of a profile: every key with its meaning, unit, range and special values."""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from v8.base.records import Settings
from v8.profile import columns as c

Schedule = Literal["constant", "plateau", "cosine", "step"]

MOST_TABLE_S: Final = 10 * 366 * 86_400  # ten years: longest delay and age of a row of a user's table
HUBER_TURN: Final = 1.0  # residual, in scaled units, at which `huber` turns from squared to absolute


class SplitSettings(Settings):
    """How the rows of a series are divided, in time order."""

    train: float = Field(gt=0, lt=1)
    """Share of the rows that fit weights and scaling, between 0 and 1."""
    validation: float = Field(gt=0, lt=1)
    """Share that decides when to stop and which epoch to keep, between 0 and 1."""
    test: float = Field(gt=0, lt=1)
    """Share that is forecast once, for the report, between 0 and 1."""

    def faults(self) -> Iterator[str]:
        """Yield a contradiction between the shares."""
        if abs(self.train + self.validation + self.test - 1) > 1e-9:
            yield "train, validation and test must add up to 1"


class TaskSettings(Settings):
    """One thing to forecast."""

    weight: float = Field(gt=0)
    """Factor of this task's loss in the sum, unitless."""
    loss: Literal["mae", "mse", "huber"]
    """`mae` forecasts the median, `mse` the mean, `huber` lies between (it turns at 1 deviation)."""


class TrainingSettings(Settings):
    """How the weights are fitted."""

    batch_size: int = Field(ge=1, le=65_536)
    """Windows per optimiser step."""
    epochs: int = Field(ge=0, le=100_000)
    """Most passes over the train span; early stopping may end sooner. 0 for a formula without a network."""
    learning_rate: float = Field(gt=0, le=1)
    """Step size at the start, unitless."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """`adam`, or `adamw` with `weight_decay`."""
    weight_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decoupled weight decay: share of every weight that a step subtracts, times the learning rate."""
    schedule: Schedule = "plateau"
    """Learning rate schedule: `constant`; `plateau` and `step` by the reduce_lr keys; `cosine` to zero."""
    warmup_epochs: float = Field(default=0.0, ge=0, le=100_000)
    """Epochs in which the learning rate rises from zero, step by step; 0 starts with the full rate."""
    clip_norm: float | None = Field(gt=0)
    """Gradient clipping: largest gradient of a model, unitless; null for none."""
    gradient_clip: Literal["global_norm", "value"] = "global_norm"
    """What `clip_norm` bounds: the norm of a model's complete gradient, or each `value` of it."""
    gradient_accumulation: int = Field(default=1, ge=1, le=1_024)
    """Micro-batches per optimiser step: the same step as with one larger batch, in less memory."""
    cpu_batch_size: int | None = Field(default=None, ge=1, le=65_536)
    """`batch_size` on a CPU, which accumulates the gradients of more micro-batches instead: a step has the
    same windows, and the model is the same. null: as on a GPU."""
    checkpoint_activations: bool = False
    """Activation checkpointing: compute activations again for the gradient; less memory, more time."""
    early_stopping_patience_epochs: int = Field(ge=1)
    """Epochs without a better validation loss before training ends; the best weights are kept."""
    reduce_lr_factor: float = Field(gt=0, lt=1)
    """The learning rate is multiplied by this on a plateau, or at every step of schedule `step`."""
    reduce_lr_patience_epochs: int = Field(ge=1)
    """Epochs without a better validation loss before a reduction; with schedule `step`, between steps."""
    precision: Literal["auto", "float32", "mixed_float16", "mixed_bfloat16"]
    """`auto` measures on the machine; `mixed_*`: 16 bits with float32 weights, heads and loss."""

    @property
    def windows_per_step(self) -> int:
        """Windows of one optimiser step."""
        return self.batch_size * self.gradient_accumulation

    def num_micro_batches(self, *, is_on_gpu: bool) -> int:
        """Return the number of micro-batches per optimiser step on this kind of device."""
        if is_on_gpu or self.cpu_batch_size is None:
            return self.gradient_accumulation
        return self.windows_per_step // self.cpu_batch_size

    def faults(self) -> Iterator[str]:
        """Yield contradictions between these keys."""
        if self.windows_per_step % (self.cpu_batch_size or 1):
            yield (
                f"cpu_batch_size must divide the {self.windows_per_step} windows of a step, "
                "which are batch_size x gradient_accumulation"
            )
        if self.weight_decay and self.optimizer != "adamw":
            yield "optimizer must be adamw with a weight_decay above 0"


class TableSettings(Settings):
    """A table of the user. Its columns are features, named `csv.` and the name of the column."""

    file: str = Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,99}\.csv|[a-z][a-z_]{0,30})$")
    """Name of a CSV file, without its folder, which `--tables` names: the profile may be used elsewhere. Or,
    without `.csv`, a table that the source of the candles has of each series, such as `funding`."""
    time: str = Field(min_length=1, max_length=100)
    """Column of the times: seconds to nanoseconds since the epoch, or ISO 8601 text with its zone."""
    columns: tuple[Annotated[str, Field(pattern=rf"^{c.COLUMN_PATTERN}$")], ...] = Field(min_length=1)
    """Columns of numbers that features are made of."""
    available_after_s: int = Field(ge=0, le=MOST_TABLE_S)
    """Seconds after its time until a row was public; 0 if its time is the time of publication."""
    max_age_s: int = Field(gt=0, le=MOST_TABLE_S)
    """Seconds after its time until a row is too old; bars that close later have no value, as in a gap."""

    @property
    def is_of_source(self) -> bool:
        """Whether the source of the candles has the table, of each series its own."""
        return not self.file.endswith(".csv")

    def faults(self) -> Iterator[str]:
        """Yield a contradiction between the two times."""
        if self.max_age_s < self.available_after_s:
            yield "max_age_s must be at least available_after_s, or no row would ever count"
