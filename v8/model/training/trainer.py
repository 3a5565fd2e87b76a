"""Trains series of one profile as a fleet: one compiled program, whose arrays have an axis of models.

A fleet of one is the usual case on a CPU; on a GPU as many models as suit it share the program. Each member
has its own seed, order of windows, learning rate, patience, best weights, checkpoint and end, and members do
not affect each other: one that diverges stops with a reason while the others go on. The program takes weights
and batches as arguments, so the next fleet of the same size needs no compilation.

When half of the members have finished, the others move into a smaller program if that saves more time than
its compilation takes.

The arrays that a step changes are a `FleetState`: weights, optimiser and sums of losses of all models
(`v8.model.training.state`). What an epoch's losses mean for a member, its learning rate, best epoch and end,
is its `Progress` (`v8.model.training.progress`).

A member keeps its index, the place in the fleet as it was passed in. Its slot is the place on the axis of
models, and changes when members move.

Shape legend: M models (slots) of the program, S batches, B windows of a batch, P numbers of one model's
weights.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
from numpy.typing import NDArray

from v8.base.errors import ArtifactError, DivergedError, StorageError, shown
from v8.base.hardware import (
    backend_name,
    device_of,
    has_gpu,
    peak_bytes_of,
    processor_flags,
)
from v8.base.process import collected_later
from v8.base.programs import keep_new_programs
from v8.data.windows import FleetWindows, Indices, SeriesData, Tables, num_batches
from v8.model.networks import networks
from v8.model.networks.products import products_of
from v8.model.networks.serving import ServingGraph, ServingModel
from v8.model.training.progress import EpochRecord, LossPatience, Progress, rate_at
from v8.model.training.state import (
    Checkpoint,
    FleetState,
    epoch_iterator,
    initial_state,
    on_device,
    unflattened,
)
from v8.model.training.step import compiled_loss, compiled_table_step
from v8.profile.profile import Profile

VALIDATION_BATCH = 64
"""Windows in a validation batch; the mean over windows does not depend on it."""
_IGNORED = "It is ignored, and the series trains from its first epoch"
CHECKPOINT_SHARE = 0.05
"""Largest share of the time for writing checkpoints; a resumed run repeats the epochs since the last one."""


@dataclass(frozen=True)
class TrainingResult:
    """A finished training; a formula has no epochs and no losses.

    Args:
        stopped_by: "epochs", "early stopping", or "fit" for a formula.
        weights: Trainable arrays of the best epoch, in the network's order.
        seconds: Seconds of this process per stage (build, compile, train, validate), divided by the number of
            members.
        device: Where the weights were after the first step, such as "GPU:0".
        peak_memory_bytes: Peak of this process on the device.
        history: A record for each epoch, those before a resume included.
        untrained_loss: Validation loss before the first epoch: of the untrained network, which forecasts the
            median target (see `Trainer.first_state`), or of the model whose weights training starts from.
        best_epoch: Epoch whose weights are kept; 0 means that no epoch was better than the start.
        best_validation_loss: Its validation loss, scaled units.
        resumed_from_epoch: Epochs that an earlier process had finished; 0 for none.
    """

    stopped_by: str
    weights: list[NDArray[np.float32]]
    seconds: dict[str, float]
    device: str
    peak_memory_bytes: int
    history: tuple[EpochRecord, ...] = ()
    untrained_loss: float | None = None
    best_epoch: int = 0
    best_validation_loss: float | None = None
    resumed_from_epoch: int = 0

    @property
    def windows_per_s(self) -> float:
        """This member's train windows per second of training, median of its epochs; 0 without epochs."""
        if not self.history:
            return 0.0
        return float(np.median([record.windows_per_s for record in self.history]))


FleetResults: TypeAlias = Iterator[tuple[int, TrainingResult | DivergedError]]
"""For each series that ends: its index among the members, and its result or why it diverged."""


class InitialWeights(NamedTuple):
    """The weights of a finished model, from which another training starts."""

    model_sha256: str  # digest of the model file, 64 hex digits
    weights: Sequence[NDArray[np.float32]]  # trainable arrays, in the order of its network


@dataclass(frozen=True)
class FleetMember:
    """One series of a fleet.

    Args:
        data: Its windows and targets.
        seed: Of its initial weights, of the order of its windows and of its dropout.
        checkpoint: File to continue from and to write; None for no checkpoints.
        on_epoch: Called with the record of each epoch whose losses are finite, so not where it diverges.
        warn: Called with one sentence if the checkpoint cannot be read or written; training goes on without.
        initial_weights: Weights to start from; None draws them by the seed.
    """

    data: SeriesData
    seed: int
    checkpoint: Path | None = None
    on_epoch: Callable[[EpochRecord], None] = lambda record: None
    warn: Callable[[str], None] = lambda sentence: None
    initial_weights: InitialWeights | None = None


class Program(NamedTuple):
    """The compiled functions for a number of models; `Trainer` calls them."""

    fleet: keras.Model  # the networks of all models, stacked along the model axis
    step: Callable[..., FleetState]  # see `compiled_table_step`
    loss: Callable[..., Any]  # see `compiled_loss`


class Trainer:
    """The compiled programs of a profile, one per fleet size.

    A network comes in four forms, which hold the same weights, if in another order (`networks.counterparts`):
    as it forecasts (`network`), as it is trained (with teacher forcing if the profile has it), those of a
    fleet stacked into one (`Program.fleet`), and as it is published (`serving_model`).

    Args:
        profile: The profile.
        precision: "float32", "mixed_bfloat16" or "mixed_float16", see `choose_precision` and `products_of`.
        check_interrupt: Called before every batch; may raise to stop there.
        num_micro_batches: Micro-batches of one optimiser step; None: as many as the profile says for a GPU.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        precision: str = "float32",
        check_interrupt: Callable[[], None] = lambda: None,
        num_micro_batches: int | None = None,
    ) -> None:
        self.profile = profile
        self.precision = precision
        self.check_interrupt = check_interrupt
        # Matrix products in 16 bits with sums in float32: how depends on the precision and the processor.
        self.products = products_of(precision, is_on_gpu=has_gpu(), processor_flags=processor_flags())
        self.num_micro_batches = num_micro_batches or profile.training.num_micro_batches(is_on_gpu=True)
        # Two structures, whose weights nobody uses (hence `seed=0`): the network as it forecasts, and as it
        # is trained: the same one, unless teacher forcing gives it a second input, `actual`.
        self.network = networks.build_network(profile, seed=0, precision=precision)
        self._taught_network = self.network
        if networks.has_teacher_forcing(profile):
            self._taught_network = networks.build_network(
                profile, seed=0, precision=precision, uses_teacher_forcing=True
            )
        self._programs: dict[int, Program] = {}
        self._serving: dict[Hashable, ServingGraph] = {}
        self.devices: dict[tuple[int, int], str] = {}
        """The device of each compiled program, by the number of models and the rows of the tables."""
        self.compile_s: dict[tuple[int, int], float] = {}
        """What it took to compile each of them, in seconds."""

    @property
    def num_parameters(self) -> int:
        """Number of trainable numbers of one network."""
        return int(self.network.count_params())

    @cached_property
    def unstackable_layers(self) -> list[str]:
        """Names of the layers because of which the network cannot be trained in a fleet of several."""
        return networks.unstackable_layers(self._taught_network)

    def fit_fleet(self, members: Sequence[FleetMember]) -> FleetResults:
        """Train several series as one program; yield index in `members` and result, as each one ends."""
        return _FleetFit(self, members).run()

    def serving_model(self, data: SeriesData, weights: list[NDArray[np.float32]]) -> ServingModel:
        """Return the published model of a series: raw window in, price units out, always float32.

        All series of a structure share one graph, which has the numbers of the model that was used last.
        """
        structure = data.scaling.structure
        if structure not in self._serving:
            network = networks.build_network(self.profile, seed=0)
            self._serving[structure] = ServingGraph(self.profile, data.scaling, network)
        return ServingModel(self._serving[structure], data.scaling, weights)

    def first_state(self, members: Sequence[FleetMember]) -> FleetState:
        """Return the initial state of a fleet.

        Weights are a member's `initial_weights`, or are drawn by its seed. Drawn ones have the biases of the
        last layers set so that the untrained network forecasts the median target of the train span, at each
        step the same for every window (with squared loss the mean).
        """
        member_networks = []
        for member in members:
            start: dict[str, Any] = {task.task: task.start for task in member.data.scaling.tasks}
            network = networks.build_network(
                self.profile,
                seed=member.seed,
                start=start,
                precision=self.precision,
                uses_teacher_forcing=True,  # the network for training; without effect if the profile has none
            )
            if member.initial_weights:
                # The network for training may hold the same arrays in another order.
                positions = networks.counterparts(self.network, self._taught_network)
                for position, weight in zip(positions, member.initial_weights.weights, strict=True):
                    network.trainable_variables[position].assign(weight)
            member_networks.append(network)
        stacked = self.program(len(members)).fleet
        networks.load(stacked, member_networks)
        return initial_state(stacked, self.precision)

    def train_batch(
        self, state: FleetState, learning_rates: Any, is_active: Any, tables: Tables, indices_BM: Indices
    ) -> FleetState:
        """Take one optimiser step of the active models.

        Args:
            state: State of the fleet.
            learning_rates: Shape (M,), float32.
            is_active: Which models take the step, shape (M,), bool.
            tables: Tables of the fleet, on the device.
            indices_BM: Indices of the batch's windows in the tables.
        """
        self.check_interrupt()
        step = self.program(len(learning_rates)).step
        return step(state, learning_rates, is_active, tables, indices_BM)

    def validation_losses(
        self, state: FleetState, tables: Tables, indices_SBM: Indices
    ) -> NDArray[np.float64]:
        """Return each model's mean loss over its validation windows, dropout off, shape (M,)."""
        loss = self.program(state.num_models).loss
        # All batches are started before the first result is awaited: a device computes meanwhile.
        sums = [loss(state.weights, tables, indices_BM) for indices_BM in indices_SBM]
        pairs = [
            [np.asarray(loss_sum_M, np.float64), np.asarray(num_windows_M, np.float64)]
            for loss_sum_M, num_windows_M in sums
        ]
        loss_sum_M, num_windows_M = np.sum(pairs, axis=0)
        return np.asarray(loss_sum_M / num_windows_M)

    def network_weights(self, weights_P: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return one model's trainable arrays of a fleet's state in the network's order."""
        stacked = self.program(1).fleet
        arrays = [keras.ops.convert_to_numpy(array)[0] for array in unflattened(stacked, weights_P[None])]
        return [arrays[position] for position in networks.counterparts(self.network, stacked)]

    def program(self, num_models: int) -> Program:
        """Return the program of a fleet size, built on first use and compiled on first call."""
        if num_models not in self._programs:
            stacked = networks.stack_for_device(self._taught_network, num_models, products=self.products)
            step = compiled_table_step(stacked, self.profile, self.precision, self.num_micro_batches)
            # Validation is without teacher forcing, like the published model.
            validated = stacked
            if self._taught_network is not self.network:
                validated = networks.stack_for_device(self.network, num_models, products=self.products)
            loss = compiled_loss(validated, self.profile, stacked, networks.counterparts(validated, stacked))
            self._programs[num_models] = Program(stacked, step, loss)
        return self._programs[num_models]


@dataclass
class _MemberTraining:
    """How far the training of one member is."""

    member_index: int  # its place in the fleet as it was passed in
    member: FleetMember
    progress: Progress
    best_weights: NDArray[np.float32]  # of its best epoch, shape (P,)
    resumed_from: int = 0  # last epoch of the checkpoint it continues; 0 for none
    is_active: bool = True  # whether it still trains


class _FleetFit:
    """The training of a fleet, from its first or next epoch until its last member ends.

    `_state` is what a step changes; `_trainings` is by slot, and `_active_slots` are those that still train;
    `_tables` is on the device; `_epochs` yields the window indices of one epoch after another, (S, B, M).
    """

    def __init__(self, trainer: Trainer, members: Sequence[FleetMember]) -> None:
        self._trainer = trainer
        self._members = members
        self._settings = trainer.profile.training
        self._seconds = dict.fromkeys(("build", "compile", "train", "validate"), 0.0)
        self._saving_s = 0.0
        self._started = time.perf_counter()
        # What `_start` and `_copy_tables` make, and what changes while the fleet trains.
        self._trainings: list[_MemberTraining] = []  # by slot
        self._state: FleetState
        self._windows: FleetWindows
        self._tables: Tables  # the same on the device
        self._validation_SBM: Indices  # windows of each batch of the validation spans
        self._epochs: Iterator[Indices]  # of one epoch after another, shape (S, B, M)
        self._size: tuple[
            int, int
        ]  # of the program that is compiled first: number of models, rows of the tables
        self._device: str  # such as "GPU:0"

    def run(self) -> FleetResults:
        """Train epoch by epoch; yield (index, `TrainingResult` or `DivergedError`) for each member that ends.

        A member ends after its last epoch, earlier when its loss has not improved for long, or when its loss
        is no number: then it has diverged.
        """
        self._start()
        yield from self._finished_members()  # those that an earlier process had trained, but not saved
        while self._active_slots:
            epoch_s = self._run_epoch()
            yield from self._finished_members()
            self._repack(epoch_s)

    @property
    def _active_slots(self) -> list[int]:
        return [slot for slot, training in enumerate(self._trainings) if training.is_active]

    def _start(self) -> None:
        """Build and compile, measure the loss before training, and read checkpoints."""
        # Tracing creates many objects and little garbage: collecting meanwhile would take a quarter longer.
        with collected_later():
            with self._clock("build"):
                self._state = self._trainer.first_state(self._members)
                self._copy_tables([member.data for member in self._members])
            self._size = len(self._members), self._windows.num_rows
            if self._size not in self._trainer.devices:  # compiled once per size; the value is where it runs
                self._trainer.devices[self._size] = self._compile()
                self._trainer.compile_s[self._size] = self._seconds["compile"]
            self._device = self._trainer.devices[self._size]
            with self._clock("validate"):
                losses = self._validation_losses()
        keep_new_programs()  # on disk, so that the next process need not compile them
        for index, member in enumerate(self._members):  # at first the slot of a member is its index
            loss = float(losses[index])
            patience = LossPatience(self._settings.learning_rate, best_loss=loss)
            weights = self._state.take(index).weights
            self._trainings.append(
                _MemberTraining(index, member, Progress(loss, patience), best_weights=weights)
            )
        for training in self._trainings:
            if training.member.checkpoint and training.member.checkpoint.exists():
                self._restore(training, training.member.checkpoint)
        self._prepare_epochs()

    def _copy_tables(self, series_data: Sequence[SeriesData]) -> None:
        """Copy the tables from which windows are cut to the device, for as long as the fleet trains."""
        self._windows = FleetWindows(series_data)
        self._tables = on_device(self._windows)
        self._validation_SBM = self._windows.span_indices("validation", VALIDATION_BATCH)

    def _prepare_epochs(self) -> None:
        """Create the iterator over the window indices of each epoch, from each member's next epoch on."""
        seeds = [training.member.seed for training in self._trainings]
        first_epochs = [training.progress.epoch + 1 for training in self._trainings]
        self._epochs = epoch_iterator(self._windows.epochs(seeds, first_epochs))

    def _validation_losses(self) -> NDArray[np.float64]:
        return self._trainer.validation_losses(self._state, self._tables, self._validation_SBM)

    def _compile(self) -> str:
        """Run a new program once, so that later times include no compilation; return the device.

        The state after that step is dropped.
        """
        num = len(self._members)
        with self._clock("compile"):
            indices_BM = self._windows.span_indices("train", self._settings.windows_per_step)[0]
            rates = np.zeros(num, np.float32)
            is_active = np.ones(num, bool)
            state = self._trainer.train_batch(self._state, rates, is_active, self._tables, indices_BM)
            np.asarray(state.weight_sum)  # waits until the device has finished
            return device_of(state.weights)

    def _run_epoch(self) -> float:
        """Train and validate for one epoch; return the seconds that took."""
        started = time.perf_counter()
        with self._clock("train"):
            train_losses, rates = self._train_epoch()
        train_s = time.perf_counter() - started
        with self._clock("validate"):
            validation_losses = self._validation_losses()
        epoch_s = time.perf_counter() - started
        state = self._state.on_host()  # one transfer for all members
        for slot in self._active_slots:
            training = self._trainings[slot]
            member_state = state.take(slot)
            measured = EpochRecord(
                epoch=training.progress.epoch + 1,
                train_loss=float(train_losses[slot]),
                validation_loss=float(validation_losses[slot]),
                learning_rate=float(rates[slot]),
                seconds=epoch_s,  # time of the whole fleet, as `train_s`: the speed is a member's share
                windows_per_s=training.member.data.num_windows("train") / train_s,
                is_best=False,  # `Progress.after` decides
            )
            training.progress = training.progress.after(measured, self._settings)
            record = training.progress.history[-1]
            if record.is_best:
                training.best_weights = member_state.weights
            if record.is_finite:  # else the member has diverged, see `_finished_members`
                self._save_checkpoint(training, member_state)
                training.member.on_epoch(record)
        return epoch_s

    def _train_epoch(self) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Train for one epoch; return losses and last learning rates, each of shape (M,).

        A loss is the weighted mean over windows: `loss_sum` divided by the sum of weights, `weight_sum`.
        """
        is_active = np.array([training.is_active for training in self._trainings])
        self._state = self._state.with_empty_sums()
        num_own_batches = [
            num_batches(training.member.data.num_windows("train"), self._settings.windows_per_step)
            for training in self._trainings
        ]
        # As many batches as the longest series has; in the last ones a shorter one has only padding.
        for number, indices_BM in enumerate(next(self._epochs)):
            rates = np.zeros(len(is_active), np.float32)
            for slot, training in enumerate(self._trainings):
                rates[slot] = self._learning_rate(training.progress, number, num_own_batches[slot])
            self._state = self._trainer.train_batch(self._state, rates, is_active, self._tables, indices_BM)
        sums = np.asarray(self._state.loss_sum, np.float64)
        losses = np.divide(sums, np.asarray(self._state.weight_sum), out=np.zeros_like(sums), where=is_active)
        return losses, rates

    def _learning_rate(self, progress: Progress, step: int, num_steps: int) -> float:
        """Return a member's learning rate in a step of the epoch, from 0, of its own number of steps.

        A shorter series than the fleet's longest has no windows in the last steps; its rate stays that of its
        own last step.
        """
        own_step = min(step, num_steps - 1)
        epochs_before = progress.epoch + own_step / num_steps
        epochs_after = progress.epoch + (own_step + 1) / num_steps
        return rate_at(self._settings, progress.patience.learning_rate, epochs_before, epochs_after)

    def _finished_members(self) -> FleetResults:
        """Yield the members that have finished or diverged, and mark them as inactive."""
        for training in [self._trainings[slot] for slot in self._active_slots]:
            error = _divergence(training)
            if error or training.progress.is_over(self._settings):
                training.is_active = False
                # The fleet is done: its models are evaluated next, and the windows may take gigabytes.
                if not self._active_slots:
                    del self._windows, self._tables, self._epochs
                yield training.member_index, error or self._result(training)

    def _result(self, training: _MemberTraining) -> TrainingResult:
        progress = training.progress
        patience = progress.patience
        num_members = len(self._members)
        return TrainingResult(
            history=progress.history,
            untrained_loss=progress.untrained_loss,
            best_epoch=patience.best_epoch,
            best_validation_loss=patience.best_loss,
            stopped_by="early stopping" if patience.is_out(self._settings) else "epochs",
            weights=self._trainer.network_weights(training.best_weights),
            resumed_from_epoch=training.resumed_from,
            seconds={stage: seconds / num_members for stage, seconds in self._seconds.items()},
            device=self._device,
            peak_memory_bytes=peak_bytes_of(self._device),
        )

    def _repack(self, epoch_s: float) -> None:
        """Move the active members into a smaller program, if that saves more time than compiling it takes.

        The last epoch took `epoch_s` seconds.
        """
        active = self._active_slots
        num_slots = len(self._trainings)
        if not active or len(active) > num_slots // 2:
            return
        epochs_left = max(self._settings.epochs - self._trainings[slot].progress.epoch for slot in active)
        saved_s = epochs_left * epoch_s * (1.0 - len(active) / num_slots)
        if saved_s > self._trainer.compile_s[self._size]:
            self._trainings = [self._trainings[slot] for slot in active]
            self._state = self._state.take(active)
            self._copy_tables([training.member.data for training in self._trainings])
            self._prepare_epochs()

    def _save_checkpoint(self, training: _MemberTraining, state: FleetState) -> None:
        """Write a member's checkpoint, unless checkpoints have taken more than their share of the time."""
        path = training.member.checkpoint
        elapsed = time.perf_counter() - self._started
        if path is None or self._saving_s > CHECKPOINT_SHARE * elapsed:
            return
        started = time.perf_counter()
        identity = self._identity(training.member)
        try:
            Checkpoint(identity, state, training.best_weights, training.progress).save(path)
        except StorageError as error:
            training.member.warn(f"Checkpoints cannot be written ({error.got}): a stop costs these epochs.")
        self._saving_s += time.perf_counter() - started

    def _restore(self, training: _MemberTraining, path: Path) -> None:
        """Continue a member from its checkpoint, or warn if it cannot be read or is not this member's."""
        try:
            checkpoint = Checkpoint.load(path, self._identity(training.member))
            # Checkpoints are read before any member moves, so its slot is still its index.
            checkpoint.require_fit(self._state.take(training.member_index))
        except ArtifactError as error:
            reason = f"{training.member.data.series}: {path.name} {error.rule}; got {error.got}"
            training.member.warn(f"{shown(reason, 300)}. {_IGNORED}.")
            return
        self._state = self._state.put(training.member_index, checkpoint.state)
        training.progress = checkpoint.progress
        training.best_weights = checkpoint.best_weights
        training.resumed_from = checkpoint.progress.epoch

    def _identity(self, member: FleetMember) -> dict[str, Any]:
        """Return what a checkpoint must have in common with a member for it to continue from it."""
        identity: dict[str, Any] = {
            "profile": member.data.profile.digest,
            "data": member.data.table.digest,
            "seed": member.seed,
            "precision": self._trainer.precision,
            "backend": backend_name(),
        }
        if member.initial_weights:
            identity["started_from"] = member.initial_weights.model_sha256
        return identity

    @contextmanager
    def _clock(self, stage: str) -> Iterator[None]:
        """Add the seconds of a block to a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - started


def _divergence(training: _MemberTraining) -> DivergedError | None:
    """Return the error of a member whose last losses are not finite; None otherwise."""
    if not training.progress.history:
        return None
    last = training.progress.history[-1]
    if last.is_finite:
        return None
    stage = "training"
    loss = last.train_loss
    if math.isfinite(last.train_loss):
        stage = "validation"
        loss = last.validation_loss
    return DivergedError(
        where=str(training.member.data.series),
        rule=f"the {stage} loss must be a finite number",
        got=f"{loss} in epoch {last.epoch}",
        fix="Lower learning_rate, set clip_norm, or train with param:precision float32",
    )
