"""Trains series in this process.

`LocalEngine` (`v8.runs.engines`) hands its jobs to the engine below where one process is enough. The
processes of `v8.runs.workers` and those of other engines use it, too, each for its own jobs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from v8.base.hardware import has_gpu
from v8.base.interruption import deferred_interrupts
from v8.base.resources import resource_scope
from v8.data.features.store import FeatureStore
from v8.model.training.probe import measured_fleet_size
from v8.profile.profile import Profile
from v8.runs.events import SeriesOutcome
from v8.runs.jobs import Engine, Job
from v8.runs.observers import RunObserver
from v8.runs.pipeline import SeriesPipeline, TrainerFactory


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
        fleet_size: Most series of one program; None starts with all; they are halved when memory runs out.
            What the command line's `auto` stands for was decided before, see `suited_fleet_size`.
        trainer_factory: Makes the trainer of a profile, see `v8.runs.pipeline`; None for its own.
        store: Where features are kept; None for the user's own store.
        check_interrupt: Called between two batches; raises KeyboardInterrupt to stop there. None obeys
            Ctrl-C.
    """

    def __init__(
        self,
        fleet_size: int | None = 1,
        *,
        trainer_factory: TrainerFactory | None = None,
        store: FeatureStore | None = None,
        check_interrupt: Callable[[], None] | None = None,
    ) -> None:
        self._fleet_size = fleet_size
        self._trainer_factory = trainer_factory
        self._store = store
        self._check_interrupt = check_interrupt

    def train(self, jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        """Make the artefact of every job, all of one profile; yield how each series ended as it ends."""
        profile = jobs[0].profile
        device_settings = jobs[0].device_settings

        def open_pipeline() -> SeriesPipeline:
            return SeriesPipeline(
                profile, device_settings, trainer_factory=self._trainer_factory, store=self._store
            )

        key = (self._trainer_factory, self._store, profile.digest, device_settings)
        # A back-test opens a `resource_scope` around all of its runs. The pipeline is then kept until that
        # scope ends, and the next run of the profile compiles nothing again; else it closes with this call.
        with self._interrupts() as check_interrupt, resource_scope() as resources:
            pipeline: SeriesPipeline = resources.get(key, open_pipeline)
            yield from pipeline.make_artifacts(jobs, self._fleet_size or len(jobs), observer, check_interrupt)

    def _interrupts(self) -> AbstractContextManager[Callable[[], None]]:
        return nullcontext(self._check_interrupt) if self._check_interrupt else deferred_interrupts()
