"""Trains series of one profile as a fleet: one compiled program with a leading model axis.

A fleet of one is the ordinary case on a CPU; on a GPU all models of a profile share the program. Each
member keeps its own seed, order, learning rate, patience, best weights, checkpoint and end, and none
can touch another: a member that diverges stops with a reason while the others go on. The program takes
weights and batches as arguments, so the next fleet of the same size needs no compilation.

When half of the members have finished, the rest move into a smaller program if that pays for its
compilation.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
from numpy.typing import NDArray

from v8.errors import ArtifactError, DivergedError, StorageError, shown
from v8.hardware import backend_name, device_of, has_gpu, peak_bytes_of, processor_flags
from v8.invocation import collected_later
from v8.networks import networks
from v8.networks.products import products_of
from v8.networks.serving import ServingGraph, ServingModel
from v8.profile import Profile
from v8.training.checkpoint import Checkpoint
from v8.training.pipeline import epoch_iterator, on_device
from v8.training.programs import keep_new_programs
from v8.training.progress import EpochRecord, LossPatience, Progress, rate_at
from v8.training.step import FleetState, compiled_loss, compiled_table_step, initial_state, unflattened
from v8.windows.batches import FleetWindows, Indices, Tables, num_batches
from v8.windows.dataset import SeriesData

VALIDATION_BATCH = 64
"""Windows a batch when no gradient is needed; the mean over windows does not depend on it."""
_DROPPED = "It is dropped, and the series trains from its first epoch"
CHECKPOINT_SHARE = 0.05
"""Most of the time that may go into writing checkpoints; a resumed run repeats what was not written."""


@dataclass(frozen=True)
class TrainingResult:
    """A finished training; a formula has no epochs and no losses.

    Args:
        stopped_by: "epochs", "early stopping", or "fit" for a formula.
        weights: Best trainable arrays in the network's order.
        seconds: Time of this process per stage, build, compile, train, validate, shared evenly by a fleet.
        device: Where the weights lay after the first step, such as "GPU:0"; its peak is that of this process.
        history: One record an epoch, those before a resume included.
        untrained_loss: Validation loss of the constant forecast, or the champion, that the network starts as.
        best_epoch: Epoch whose weights are kept; 0 means that training never beat what it started as.
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
        """This member's train windows over training time, median of its epochs; 0 without epochs."""
        return float(np.median([record.windows_per_s for record in self.history] or [0.0]))


Results: TypeAlias = Iterator[tuple[int, TrainingResult | DivergedError]]
"""The place of each series that ends, and what came of it."""

First: TypeAlias = tuple[str, Sequence[NDArray[np.float32]]]
"""Sha256 of a finished model, and the trained weights of its network, which another one begins from."""


@dataclass(frozen=True)
class Member:
    """One series of a fleet, with the seed of its weights, order and dropout.

    Args:
        checkpoint: File to continue from and to write; None keeps nothing.
        first: What its weights begin as; None draws them by the seed.
        tell: Told what is wrong with the checkpoint, one sentence; training goes on without.
    """

    data: SeriesData
    seed: int
    checkpoint: Path | None = None
    on_epoch: Callable[[EpochRecord], None] = lambda record: None
    tell: Callable[[str], None] = lambda sentence: None
    first: First | None = None


class Program(NamedTuple):
    """What is compiled once for a number of models."""

    fleet: keras.Model
    step: Callable[..., FleetState]
    loss: Callable[..., Any]


class Trainer:
    """The compiled programs of a profile, one per fleet size.

    Args:
        precision: "float32", "mixed_bfloat16" or "mixed_float16", see `choose_precision` and `products_of`.
        check: Called before every batch; may raise to stop there.
        num_parts: Batches that make one optimiser step; None as the profile says for a GPU.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        precision: str = "float32",
        check: Callable[[], None] = lambda: None,
        num_parts: int | None = None,
    ) -> None:
        self.profile = profile
        self.precision = precision
        self.check = check
        self.products = products_of(precision, is_on_gpu=has_gpu(), processor_flags=processor_flags())
        self.num_parts = num_parts or profile.training.num_parts(is_on_gpu=True)
        self.network = networks.build_network(profile, seed=0, precision=precision)
        self._trained = self.network
        if networks.has_teacher_forcing(profile):
            self._trained = networks.build_network(
                profile, seed=0, precision=precision, uses_teacher_forcing=True
            )
        self._programs: dict[int, Program] = {}
        self._serving: dict[Hashable, ServingGraph] = {}
        self.devices: dict[tuple[int, int], str] = {}
        """Where the state lay after its first step, by models and rows of the tables; they are compiled."""

    @property
    def num_parameters(self) -> int:
        """Trainable numbers of one network."""
        return int(self.network.count_params())

    @cached_property
    def without_twins(self) -> list[str]:
        """Layers of the network, by name, that keep it from being trained in a fleet of several."""
        return networks.without_twins(self._trained)

    def fit_fleet(self, members: Sequence[Member]) -> Results:
        """Train several series as one program; yield place in `members` and result, as each one ends."""
        return _FleetFit(self, members).run()

    def serving_model(self, data: SeriesData, weights: list[NDArray[np.float32]]) -> ServingModel:
        """Return the published model of a series: raw window in, price units out, always float32.

        All series of a structure share one graph: the model of the series before can no longer be used.
        """
        structure = data.scaling.structure
        if structure not in self._serving:
            network = networks.build_network(self.profile, seed=0)
            self._serving[structure] = ServingGraph(self.profile, data.scaling, network)
        return ServingModel(self._serving[structure], data.scaling, weights)

    def first_state(self, members: Sequence[Member]) -> FleetState:
        """Return the first state of a fleet: weights by each seed and heads at constants, or a champion's."""
        build = partial(
            networks.build_network, self.profile, precision=self.precision, uses_teacher_forcing=True
        )
        drawn = []
        for member in members:
            start: dict[str, Any] = {task.task: task.start for task in member.data.scaling.tasks}
            drawn.append(build(seed=member.seed, start=start))
            if member.first:
                places = networks.counterparts(self.network, self._trained)
                for place, weight in zip(places, member.first[1], strict=True):
                    drawn[-1].trainable_variables[place].assign(weight)
        fleet = self.program(len(members)).fleet
        networks.load(fleet, drawn)
        return initial_state(fleet, self.precision)

    def train_batch(
        self, state: FleetState, learning_rates: Any, is_active: Any, tables: Tables, indices_BM: Indices
    ) -> FleetState:
        """Take one optimiser step of the active models, (M,), bool, at learning rates (M,), float32.

        The indices of its windows point into tables that lie on the device.
        """
        self.check()
        step = self.program(len(learning_rates)).step
        return step(state, learning_rates, is_active, tables, indices_BM)

    def validation_losses(
        self, state: FleetState, tables: Tables, indices_SBM: Indices
    ) -> NDArray[np.float64]:
        """Return each model's mean loss over its validation windows, dropout off, shape (M,)."""
        loss = self.program(len(state.window_sum)).loss
        sums = [loss(state.weights, tables, indices_BM) for indices_BM in indices_SBM]
        totals = np.sum([[np.asarray(part, np.float64) for part in pair] for pair in sums], axis=0)
        return np.asarray(totals[0] / totals[1])

    def network_weights(self, weights_P: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Bring one model's trainable arrays from a fleet's state into the network's order."""
        fleet = self.program(1).fleet
        arrays = [keras.ops.convert_to_numpy(one)[0] for one in unflattened(fleet, weights_P[None])]
        return [arrays[place] for place in networks.counterparts(self.network, fleet)]

    def program(self, num_models: int) -> Program:
        """Return the program of a fleet size, built on first use and compiled on first call."""
        if num_models not in self._programs:
            stacked = partial(networks.stack_for_device, num_models=num_models, products=self.products)
            fleet = stacked(self._trained)
            step = compiled_table_step(fleet, self.profile, self.precision, self.num_parts)
            # What is published has no teacher, and is evaluated without.
            evaluated = fleet if self._trained is self.network else stacked(self.network)
            loss = compiled_loss(evaluated, self.profile, fleet, networks.counterparts(evaluated, fleet))
            self._programs[num_models] = Program(fleet, step, loss)
        return self._programs[num_models]


@dataclass
class _Running:
    """One member of a fleet under way."""

    place: int
    member: Member
    progress: Progress
    best_weights: NDArray[np.float32]
    resumed_from: int = 0
    is_active: bool = True


class _FleetFit:
    """A fleet from its first or next epoch until its last member has ended."""

    def __init__(self, trainer: Trainer, members: Sequence[Member]) -> None:
        self._trainer = trainer
        self._members = members
        self._settings = trainer.profile.training
        self._seconds = dict.fromkeys(("build", "compile", "train", "validate"), 0.0)
        self._saving_s = 0.0
        self._started = time.perf_counter()

    def run(self) -> Results:
        """Train epoch by epoch."""
        self._begin()
        yield from self._ended()
        while self._active:
            epoch_s = self._run_epoch()
            yield from self._ended()
            self._repack(epoch_s)

    @property
    def _active(self) -> list[int]:
        """Where in the state the members are that still train."""
        return [index for index, running in enumerate(self._running) if running.is_active]

    def _begin(self) -> None:
        with collected_later():
            with self._clock("build"):
                self._state = self._trainer.first_state(self._members)
                self._lay_tables([member.data for member in self._members])
            key = len(self._members), self._windows.num_rows
            if key not in self._trainer.devices:
                self._trainer.devices[key] = self._compile()
            self._device = self._trainer.devices[key]
            with self._clock("validate"):
                losses = self._validation_losses()
        keep_new_programs()
        self._running = [
            _Running(
                place,
                member,
                Progress(float(loss), LossPatience(self._settings.learning_rate, best_loss=float(loss))),
                best_weights=self._state.take(place).weights,
            )
            for place, (member, loss) in enumerate(zip(self._members, losses, strict=True))
        ]
        for running in self._running:
            if running.member.checkpoint and running.member.checkpoint.exists():
                self._restore(running, running.member.checkpoint)
        self._count_epochs()

    def _lay_tables(self, fleet: Sequence[SeriesData]) -> None:
        """Copy to the device what windows are cut from, for as long as the fleet trains."""
        self._windows = FleetWindows(fleet)
        self._tables = on_device(self._windows)
        self._validation_SBM = self._windows.span_indices("validation", VALIDATION_BATCH)

    def _count_epochs(self) -> None:
        """Begin with the next epoch of each member; the orders of all later ones follow."""
        seeds = [running.member.seed for running in self._running]
        first_epochs = [running.progress.epoch + 1 for running in self._running]
        self._epochs = epoch_iterator(self._windows.epochs(seeds, first_epochs))

    def _validation_losses(self) -> NDArray[np.float64]:
        return self._trainer.validation_losses(self._state, self._tables, self._validation_SBM)

    def _compile(self) -> str:
        """Run a new program once, so that later times hold no compilation; return where the result lay."""
        num = len(self._members)
        with self._clock("compile"):
            indices_BM = self._windows.span_indices("train", self._settings.windows_per_step)[0]
            rates = np.zeros(num, np.float32)
            active = np.ones(num, bool)
            state = self._trainer.train_batch(self._state, rates, active, self._tables, indices_BM)
            np.asarray(state.window_sum)  # lets the device finish
            return device_of(state.weights)

    def _run_epoch(self) -> float:
        started = time.perf_counter()
        with self._clock("train"):
            train_losses, rates = self._train()
        train_s = time.perf_counter() - started
        with self._clock("validate"):
            losses = self._validation_losses()
        epoch_s = time.perf_counter() - started
        state = self._state.on_host()  # one transfer for all members
        for index in self._active:
            running = self._running[index]
            part = state.take(index)
            record = EpochRecord(
                epoch=running.progress.epoch + 1,
                train_loss=float(train_losses[index]),
                validation_loss=float(losses[index]),
                learning_rate=float(rates[index]),
                seconds=epoch_s,
                windows_per_s=running.member.data.num_windows("train") / train_s,
                is_best=False,
            )
            running.progress = running.progress.after(record, self._settings)
            evaluated = running.progress.history[-1]
            if evaluated.is_best:
                running.best_weights = part.weights
            if evaluated.is_finite:
                self._save(running, part)
                running.member.on_epoch(evaluated)
        return epoch_s

    def _train(self) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Run an epoch; return the losses and the last learning rates, each of shape (M,)."""
        active = np.array([running.is_active for running in self._running])
        self._state = self._state.with_empty_sums()
        num_windows = [running.member.data.num_windows("train") for running in self._running]
        num_steps = [num_batches(each, self._settings.windows_per_step) for each in num_windows]
        for step, indices_BM in enumerate(next(self._epochs)):
            rates = np.zeros(len(active), np.float32)
            for index, (running, num) in enumerate(zip(self._running, num_steps, strict=True)):
                epoch = running.progress.epoch  # after its last one nothing moves
                last = min(step, num - 1)
                rate = running.progress.patience.learning_rate
                done = last / num
                then = (last + 1) / num
                rates[index] = rate_at(self._settings, rate, epoch + done, epoch + then)
            self._state = self._trainer.train_batch(self._state, rates, active, self._tables, indices_BM)
        sums = np.asarray(self._state.loss_sum, np.float64)
        losses = np.divide(sums, np.asarray(self._state.window_sum), out=np.zeros_like(sums), where=active)
        return losses, rates

    def _ended(self) -> Results:
        """Yield the members that are through, and leave them inactive."""
        for running in [self._running[index] for index in self._active]:
            error = _divergence(running)
            if error or running.progress.is_over(self._settings):
                running.is_active = False
                if not self._active:  # the fleet is evaluated next, and its windows may be gigabytes
                    del self._windows, self._tables, self._epochs
                yield running.place, error or self._result(running)

    def _result(self, running: _Running) -> TrainingResult:
        progress = running.progress
        return TrainingResult(
            history=progress.history,
            untrained_loss=progress.untrained_loss,
            best_epoch=progress.patience.best_epoch,
            best_validation_loss=progress.patience.best_loss,
            stopped_by="early stopping" if progress.patience.is_out(self._settings) else "epochs",
            weights=self._trainer.network_weights(running.best_weights),
            resumed_from_epoch=running.resumed_from,
            seconds={stage: seconds / len(self._members) for stage, seconds in self._seconds.items()},
            device=self._device,
            peak_memory_bytes=peak_bytes_of(self._device),
        )

    def _repack(self, epoch_s: float) -> None:
        """Go on with those that still train, if that saves more time than compiling their program takes."""
        kept = self._active
        num = len(self._running)
        if not kept or len(kept) > num // 2:
            return
        left = max(self._settings.epochs - self._running[index].progress.epoch for index in kept)
        if left * epoch_s * (1.0 - len(kept) / num) > self._seconds["compile"]:
            self._running = [self._running[index] for index in kept]
            self._state = self._state.take(kept)
            self._lay_tables([running.member.data for running in self._running])
            self._count_epochs()

    def _save(self, running: _Running, part: FleetState) -> None:
        path = running.member.checkpoint
        elapsed = time.perf_counter() - self._started
        if path is None or self._saving_s > CHECKPOINT_SHARE * elapsed:
            return
        started = time.perf_counter()
        identity = self._identity(running.member)
        try:
            Checkpoint(identity, part, running.best_weights, running.progress).save(path)
        except StorageError as error:
            running.member.tell(f"Checkpoints cannot be written ({error.got}): a stop costs these epochs.")
        self._saving_s += time.perf_counter() - started

    def _restore(self, running: _Running, path: Path) -> None:
        try:
            stored = Checkpoint.load(path, self._identity(running.member))
            stored.require_fit(self._state.take(running.place))
        except ArtifactError as error:
            why = f"{path.name} {error.rule}; got {error.got}"
            running.member.tell(f"{shown(f'{running.member.data.series}: {why}', 300)}. {_DROPPED}.")
            return
        self._state = self._state.put(running.place, stored.state)
        running.progress = stored.progress
        running.best_weights = stored.best_weights
        running.resumed_from = stored.progress.epoch

    def _identity(self, member: Member) -> dict[str, Any]:
        return {
            "profile": member.data.profile.digest,
            "data": member.data.table.digest,
            "seed": member.seed,
            "precision": self._trainer.precision,
            "backend": backend_name(),
            **({"started_from": member.first[0]} if member.first else {}),
        }

    @contextmanager
    def _clock(self, stage: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - started


def _divergence(running: _Running) -> DivergedError | None:
    last = running.progress.history[-1] if running.progress.history else None
    if last is None or last.is_finite:
        return None
    is_validation = math.isfinite(last.train_loss)
    stage, loss = ("validation", last.validation_loss) if is_validation else ("training", last.train_loss)
    where = str(running.member.data.series)
    rule = f"the {stage} loss must be a finite number"
    fix = "Lower learning_rate, set clip_norm, or train with param:precision float32"
    return DivergedError(where=where, rule=rule, got=f"{loss} in epoch {last.epoch}", fix=fix)
