"""Trains series in this process: from candles to the artefact of each series, fleet after fleet.

    features -> windows -> train (a fleet of series, one program) -> evaluate -> save      (`v8.runs.stages`)

A fleet is the series whose networks are stacked and trained as one compiled program. It is prepared series by
series, and each member is evaluated and saved as soon as it ends: here, or beside a GPU by other processes
(`v8.runs.workers`), while this one goes on training.

An error of the program does not say which member caused it. So the unfinished members go on in two halves,
each from its checkpoint, until the series that causes it is alone and fails. When memory ran out, later
fleets stay that small.

`run_isolated` (`v8.runs.events`) calls a function that does some work of one series, and returns its value
and an outcome. An error, unless it is Ctrl-C, is caught: the value is None then, and the outcome has the
reason.
"""

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Final

from v8.base.child import resource_scope
from v8.base.errors import ArtifactError, listed
from v8.base.hardware import has_gpu
from v8.base.process import deferred_interrupts
from v8.data.feature_store import FeatureStore
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import MODEL_FILE
from v8.forecaster.model_file import require_stock_layers
from v8.forecaster.shared_models import SharedModels
from v8.model.training.formula import FormulaTrainer
from v8.model.training.probe import measured_fleet_size
from v8.model.training.trainer import InitialWeights, Trainer, TrainingResult
from v8.profile.profile import Profile
from v8.runs.events import Note, RunObserver, SeriesOutcome, SeriesStarted, run_isolated
from v8.runs.plan import Engine, Job, Recipe
from v8.runs.stages import AnyTrainer, SeriesInProgress
from v8.runs.workers import FinisherPool

_FULL_MEMORY: Final = re.compile(r"resource_?exhausted|out of memory|oom when|memoryerror", re.IGNORECASE)
"""What TensorFlow, XLA, JAX and Python say when memory is full."""
TrainerFactory = Callable[..., AnyTrainer]
"""Makes another trainer in place of `Trainer` and `FormulaTrainer`, with the same parameters."""


class SeriesPipeline:
    """Makes the artefacts of one profile's series with one trainer, whose programs are compiled once.

    Args:
        recipe: That of all jobs.
        trainer_factory: Makes the trainer, again when memory ran out; None for the one of the profile.
        store: Where features are kept; None for the user's own store.
        num_finishers: Processes that evaluate and save what is trained here; 0 does that here, too.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        trainer_factory: TrainerFactory | None = None,
        store: FeatureStore | None = None,
        num_finishers: int = 0,
    ) -> None:
        self._recipe = recipe
        self._trainer_factory = trainer_factory
        self._store = store or FeatureStore()
        self._models = SharedModels()
        self._fleet_size = 1
        self._check_interrupt: Callable[[], None] = lambda: None
        self._finishers: FinisherPool | None = None
        self.use_finishers(num_finishers)  # first, so that they start while the network is built
        self._trainer = self._new_trainer()

    def close(self) -> None:
        """Release the compiled programs, and end the processes that finish series."""
        del self._trainer
        if self._finishers:
            self._finishers.close()

    def use_finishers(self, num: int) -> None:
        """Let at least so many processes evaluate and save from now on; those that are missing start."""
        if num and self._finishers is None:
            self._finishers = FinisherPool(self._recipe, self._store.folder)
        if self._finishers:
            self._finishers.start(num)

    def make_artifacts(
        self, jobs: Sequence[Job], fleet_size: int, observer: RunObserver, check_interrupt: Callable[[], None]
    ) -> Iterator[SeriesOutcome]:
        """Make artefacts in fleets of at most `fleet_size` series; yield how each series ended.

        `check_interrupt` is called between series and batches, and raises KeyboardInterrupt to stop there.
        """
        self._check_interrupt = check_interrupt
        self._fleet_size = fleet_size  # `_train_in_halves` lowers it when memory runs out
        if self._finishers:
            self._finishers.report_to(observer)
        if self._trainer.unstackable_layers:
            self._fleet_size = 1
            layers = listed(self._trainer.unstackable_layers)
            text = f"Series are trained one by one, not as a fleet: {layers} cannot be stacked."
            observer.on_event(Note(text))
        waiting = list(jobs)
        while waiting:
            next_jobs = waiting[: self._fleet_size]
            waiting = waiting[self._fleet_size :]
            prepared: list[SeriesInProgress] = []
            for job in next_jobs:
                check_interrupt()
                observer.on_event(SeriesStarted(job.series))
                in_progress, outcome = self._prepare(job, observer)
                if in_progress is None:
                    yield outcome
                else:
                    prepared.append(in_progress)
            if prepared:
                yield from self._train_fleet(prepared, observer)
        while self._finishers and self._finishers.is_busy:
            check_interrupt()
            yield from self._finishers.receive()

    def _prepare(self, job: Job, observer: RunObserver) -> tuple[SeriesInProgress | None, SeriesOutcome]:
        """Compute the features and windows of a job; None if that failed, and how it ended."""

        def prepare() -> SeriesInProgress:
            initial_weights = self._initial_weights(job)
            return SeriesInProgress(job, self._store, observer, initial_weights)

        return run_isolated(job.series, prepare)

    def _initial_weights(self, job: Job) -> InitialWeights | None:
        """Read the trained weights of the model that a job begins from; None draws them.

        Raises:
            ArtifactError: If the model is damaged, or of another profile, other inputs or other layers.
        """
        if job.initial_model is None or isinstance(self._trainer, FormulaTrainer):
            return None
        metadata = Forecaster.load(job.initial_model, models=self._models).about
        weights = self._models.load(job.initial_model / MODEL_FILE).trained()
        profile = metadata.trained_profile
        shapes = [weight.shape for weight in weights]
        needed_shapes = [variable.shape for variable in self._trainer.network.trainable_variables]
        different_keys = [
            key for key in Profile.model_fields if getattr(profile, key) != getattr(job.recipe.profile, key)
        ]
        if different_keys or shapes != needed_shapes:
            rule = "must be of the profile and the layers that are trained, to begin from its weights"
            got = f"another {listed(different_keys or ['network'])}"
            fix = "Begin anew, from random weights"
            raise ArtifactError(where=str(job.initial_model), rule=rule, got=got, fix=fix)
        return InitialWeights(metadata.model_sha256, weights)

    def _train_fleet(
        self, fleet: Sequence[SeriesInProgress], observer: RunObserver
    ) -> Iterator[SeriesOutcome]:
        """Train a fleet as one program; finish each member when it ends, after an error go on in halves."""
        unfinished = list(fleet)
        results = self._trainer.fit_fleet([member.fleet_member() for member in fleet])  # a generator
        while unfinished:
            # Trains until a member ends. After an error the generator cannot go on. `run_isolated` wants the
            # series at fault; in a fleet of several it is not known, and only the reason is used.
            next_result, outcome = run_isolated(unfinished[0].series, lambda: next(results))
            if next_result is None:
                if len(fleet) == 1:
                    yield outcome
                else:
                    yield from self._train_in_halves(len(fleet), unfinished, str(outcome.reason), observer)
                return
            index, result = next_result
            unfinished.remove(fleet[index])
            if self._finishers and isinstance(result, TrainingResult):
                self._finishers.add(fleet[index].hand_over(result, fleet_size=len(fleet)))
                yield from self._finishers.receive(timeout_s=0)  # those that have ended by now
            else:  # also one that has diverged: `result` is its error then
                yield fleet[index].finish(self._trainer, result, fleet_size=len(fleet))

    def _train_in_halves(
        self,
        num_series: int,
        unfinished: Sequence[SeriesInProgress],
        reason: str,
        observer: RunObserver,
    ) -> Iterator[SeriesOutcome]:
        """Go on with the unfinished members of a fleet of so many, whose program failed for a reason."""
        size = -(-num_series // 2)  # half, rounded up
        if _FULL_MEMORY.search(reason):
            self._fleet_size = min(self._fleet_size, size)
            self._trainer = self._new_trainer()  # the old one holds the programs that were too large
            gc.collect()
            cause = "ran out of memory"
        else:
            size = min(size, -(-len(unfinished) // 2))
            cause = f"met an error ({reason})"
        text = f"A fleet of {num_series} {cause}; it goes on in fleets of {size}."
        observer.on_event(Note(text))
        for start in range(0, len(unfinished), size):
            yield from self._train_fleet(unfinished[start : start + size], observer)

    def _new_trainer(self) -> AnyTrainer:
        return new_trainer(self._recipe, make=self._trainer_factory, check_interrupt=self._call_check)

    def _call_check(self) -> None:
        """Call the check of the `make_artifacts` under way: a trainer is kept, and each call has its own."""
        self._check_interrupt()


def new_trainer(
    recipe: Recipe,
    *,
    make: TrainerFactory | None = None,
    check_interrupt: Callable[[], None] = lambda: None,
) -> AnyTrainer:
    """Return the trainer of a recipe; one without a network is only fitted (`FormulaTrainer`).

    Raises:
        ProfileError: If the family of a plug-in fails, or its network could not be loaded from a file.
    """
    own_kind = FormulaTrainer if recipe.profile.family.is_formula else Trainer
    trainer = (make or own_kind)(
        recipe.profile,
        precision=recipe.device_settings.precision,
        num_micro_batches=recipe.device_settings.num_micro_batches,
        check_interrupt=check_interrupt,
    )
    if make is None and not isinstance(trainer, FormulaTrainer):
        require_stock_layers(trainer.network)
    return trainer


def suited_fleet_size(profile: Profile, num_series: int) -> int:
    """Measure how many of so many series suit one program of a GPU; without one, 1.

    Called by engines that make an `InProcessEngine`, where the size is to be measured. A machine with a GPU's
    driver may still have a backend that cannot use it.
    """
    uses_gpu = has_gpu() and not profile.family.is_formula
    return measured_fleet_size(profile, num_series) if uses_gpu else 1


class InProcessEngine(Engine):
    """Makes artefacts in this process, fleet after fleet.

    Args:
        fleet_size: Most series of one program, halved when memory runs out; None starts with all, as
            Python callers may.
            What the command line's `auto` stands for was decided before, see `suited_fleet_size`.
        trainer_factory: Makes the trainer of a profile, see `SeriesPipeline`; None for its own.
        store: Where features are kept; None for the user's own store.
        num_finishers: Processes that evaluate and save what is trained here, see `v8.runs.workers`; 0 does
            that here, too.
        check_interrupt: Called between two batches; raises KeyboardInterrupt to stop there. None obeys
            Ctrl-C.
    """

    def __init__(
        self,
        fleet_size: int | None = 1,
        *,
        trainer_factory: TrainerFactory | None = None,
        store: FeatureStore | None = None,
        num_finishers: int = 0,
        check_interrupt: Callable[[], None] | None = None,
    ) -> None:
        self._fleet_size = fleet_size
        self._trainer_factory = trainer_factory
        self._store = store
        self._num_finishers = num_finishers
        self._check_interrupt = check_interrupt

    def train(self, jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        """Make the artefact of every job, all of one recipe; yield how each series ended as it ends."""
        recipe = jobs[0].recipe

        def open_pipeline() -> SeriesPipeline:
            return SeriesPipeline(
                recipe,
                trainer_factory=self._trainer_factory,
                store=self._store,
                num_finishers=self._num_finishers,
            )

        key = (self._trainer_factory, self._store, recipe.profile.digest, recipe.device_settings)
        # A back-test opens a `resource_scope` around all of its runs. The pipeline is then kept until that
        # scope ends, and the next run of the profile compiles nothing again; else it closes with this call.
        interrupts = nullcontext(self._check_interrupt) if self._check_interrupt else deferred_interrupts()
        with interrupts as check_interrupt, resource_scope() as resources:
            pipeline: SeriesPipeline = resources.get(key, open_pipeline)
            pipeline.use_finishers(self._num_finishers)  # one of an earlier run may have fewer
            yield from pipeline.make_artifacts(jobs, self._fleet_size or len(jobs), observer, check_interrupt)
