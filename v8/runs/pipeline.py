"""The series pipeline: from candles to the artefact of each series, fleet after fleet, in one process.

    features -> windows -> train (a fleet of series, one program) -> evaluate -> save      (`v8.runs.stages`)

The compiled program, the feature store and TensorFlow itself are set up once a pipeline, not once a series.

A fleet is prepared series by series, trained as one program, and each member is evaluated and saved as soon
as it ends. An error inside the common program names no member, so the fleet goes on in halves, from its
checkpoints, until the guilty series is alone; when memory ran out, later fleets stay that small.
"""

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.metadata import MODEL_FILE
from v8.artifacts.shared_models import SharedModels
from v8.errors import ArtifactError, listed
from v8.features.store import FeatureStore
from v8.profile import Profile
from v8.runs.events import Note, SeriesOutcome, SeriesStarted, isolated
from v8.runs.jobs import Job, TrainingSettings
from v8.runs.observers import RunObserver
from v8.runs.stages import AnyTrainer, SeriesInProgress
from v8.training.formula import FormulaTrainer
from v8.training.trainer import InitialWeights, Trainer

_FULL_MEMORY: Final = re.compile(r"resource_?exhausted|out of memory|oom when|memoryerror", re.IGNORECASE)
"""What TensorFlow, XLA, JAX and Python say when memory is full."""
MakeTrainer = Callable[..., AnyTrainer]
"""Makes a trainer in place of `make_trainer`, with the same parameters."""


class SeriesPipeline:
    """Makes the artefacts of one profile's series with one trainer, whose programs are compiled once.

    Args:
        profile: What all jobs train.
        settings: Precision and parts of a step, the same for all jobs.
        own_trainer: Makes the trainer, again when memory ran out; None for `make_trainer`.
        store: Where features are kept; None for the user's own store.
    """

    def __init__(
        self,
        profile: Profile,
        settings: TrainingSettings,
        *,
        own_trainer: MakeTrainer | None = None,
        store: FeatureStore | None = None,
    ) -> None:
        self._profile = profile
        self._settings = settings
        self._own_trainer = own_trainer
        self._store = store or FeatureStore()
        self._models = SharedModels()
        self._fleet_size = 1
        self._check: Callable[[], None] = lambda: None
        self._trainer = self._new_trainer()

    def close(self) -> None:
        """Release the compiled programs."""
        del self._trainer

    def make_artifacts(
        self, jobs: Sequence[Job], fleet_size: int, observer: RunObserver, check: Callable[[], None]
    ) -> Iterator[SeriesOutcome]:
        """Make artefacts in programs of at most so many series; yield how each series ended.

        `check` is called between two batches, and raises KeyboardInterrupt to stop there.
        """
        self._check = check
        self._fleet_size = fleet_size
        if self._trainer.without_twins:
            self._fleet_size = 1
            layers = listed(self._trainer.without_twins)
            text = f"Series are trained one by one, not as a fleet: {layers} has no stacked twin."
            observer.on_event(Note(text))
        waiting = list(jobs)
        while waiting:
            fleet = waiting[: self._fleet_size]
            waiting = waiting[self._fleet_size :]
            prepared: list[SeriesInProgress] = []
            for job in fleet:
                check()
                observer.on_event(SeriesStarted(job.series))
                series, outcome = self._prepare(job, observer)
                if series is None:
                    yield outcome
                else:
                    prepared.append(series)
            if prepared:
                yield from self._train_fleet(prepared, observer)

    def _prepare(self, job: Job, observer: RunObserver) -> tuple[SeriesInProgress | None, SeriesOutcome]:
        """Compute the features and windows of a job; None if that failed, and how it ended."""

        def prepare() -> SeriesInProgress:
            first_weights = self._first_weights(job)
            return SeriesInProgress(job, self._store, observer, first_weights)

        return isolated(job.series, prepare)

    def _first_weights(self, job: Job) -> InitialWeights | None:
        """Read the trained weights of the model that a job begins from; None draws them.

        Raises:
            ArtifactError: If the model is damaged, or of another profile, other inputs or other layers.
        """
        if job.champion is None or isinstance(self._trainer, FormulaTrainer):
            return None
        metadata = Forecaster.load(job.champion, models=self._models).about
        weights = self._models.load(job.champion / MODEL_FILE).trained()
        profile = metadata.trained_profile
        shapes = [weight.shape for weight in weights]
        needed_shapes = [variable.shape for variable in self._trainer.network.trainable_variables]
        different_keys = [
            key for key in Profile.model_fields if getattr(profile, key) != getattr(job.profile, key)
        ]
        if different_keys or shapes != needed_shapes:
            rule = "must be of the profile and the layers that are trained, to begin from its weights"
            got = f"another {listed(different_keys or ['network'])}"
            fix = "Train again, without param:from champion"
            raise ArtifactError(where=str(job.champion), rule=rule, got=got, fix=fix)
        return metadata.model_sha256, weights

    def _train_fleet(
        self, fleet: Sequence[SeriesInProgress], observer: RunObserver
    ) -> Iterator[SeriesOutcome]:
        """Train a fleet as one program; finish each member when it ends, after an error go on in halves."""
        unfinished = list(fleet)
        results = self._trainer.fit_fleet([series.member() for series in fleet])
        while unfinished:
            # The name is right only for a fleet of one; of a larger one only the reason of an error is used.
            next_result, outcome = isolated(unfinished[0].series, lambda: next(results))
            if next_result is None and len(fleet) == 1:
                yield outcome
                return
            if next_result is None:
                yield from self._train_in_halves(len(fleet), unfinished, str(outcome.reason), observer)
                return
            place, result = next_result
            unfinished.remove(fleet[place])
            yield fleet[place].finish(self._trainer, result, fleet_size=len(fleet))

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
        precision = self._settings.precision
        num_parts = self._settings.num_parts
        check = self._check_for_interrupt
        if self._own_trainer is not None:
            return self._own_trainer(self._profile, precision=precision, num_parts=num_parts, check=check)
        return make_trainer(self._profile, precision=precision, num_parts=num_parts, check=check)

    def _check_for_interrupt(self) -> None:
        """Call the check of the call of `make_artifacts` that is under way."""
        self._check()


def make_trainer(
    profile: Profile, *, precision: str, num_parts: int | None, check: Callable[[], None]
) -> AnyTrainer:
    """Return the trainer of a profile: of a network, or of a formula, which is only fitted."""
    if profile.family.is_formula:
        return FormulaTrainer(profile, precision=precision, num_parts=num_parts, check=check)
    return Trainer(profile, precision=precision, num_parts=num_parts, check=check)
