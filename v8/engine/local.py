"""The local engine: series one after another in this process, with one compiled program for all.

Another engine (worker processes, a fleet on a GPU) offers the same `train_all`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from v8.artifacts.forecaster import forecast_windows
from v8.artifacts.series_artifact import Finished, save_description, save_model
from v8.data.dataset import SeriesData, prepare_series, table_columns
from v8.data.windows import Batch
from v8.engine.events import EpochEnded, Listener, Outcome, SeriesStarted, StageStarted
from v8.engine.interruption import deferred_interrupts
from v8.engine.isolation import isolated
from v8.engine.plan import Job
from v8.evaluation.forecasts import Forecasts
from v8.evaluation.judgement import Judgement, judge
from v8.features.store import FeatureStore
from v8.profile import Profile
from v8.training.precision import choose_precision
from v8.training.step import State
from v8.training.trainer import EpochRecord, Trainer, TrainingResult

CHECKPOINT = Path(".training", "checkpoint.npz")
"""Where a series keeps its epochs until it is finished, inside its folder."""


def train_all(jobs: Sequence[Job], listen: Listener) -> Iterator[Outcome]:
    """Make the artefact of every job, one after another.

    Args:
        jobs: Series of one profile.
        listen: Told about stages and epochs.

    Yields:
        Each series' outcome as soon as it is known.
    """
    profile = jobs[0].profile
    precision = choose_precision(profile.training.precision)
    store = FeatureStore()
    with deferred_interrupts() as check:
        trainer = _StoppableTrainer(profile, precision, check)
        for job in jobs:
            check()
            listen(SeriesStarted(job.series))
            yield isolated(job.series, _Apprentice(job, trainer, store, listen).work)


class _StoppableTrainer(Trainer):
    """A Trainer that may be interrupted between two batches, see `v8.engine.interruption`."""

    def __init__(self, profile: Profile, precision: str, check: Callable[[], None]) -> None:
        super().__init__(profile, precision=precision)
        self._check = check

    def train_batch(self, state: State, learning_rate: float, batch: Batch) -> State:
        self._check()
        return super().train_batch(state, learning_rate, batch)


class _Apprentice:
    """One series on its way from candles to artefact, with a clock per stage."""

    def __init__(self, job: Job, trainer: Trainer, store: FeatureStore, listen: Listener) -> None:
        self._job, self._trainer, self._store, self._listen = job, trainer, store, listen
        self._seconds = {"candles": job.candle_seconds}

    def work(self) -> None:
        """Make the artefact; the checkpoint goes once everything is saved."""
        job, profile = self._job, self._job.profile
        with self._stage("features"):
            table = self._store.table(job.candles, table_columns(profile))
        with self._stage("windows"):
            data = prepare_series(table, profile)
        checkpoint = job.folder / CHECKPOINT
        with self._stage("train"):
            result = self._trainer.fit(data, seed=job.seed, checkpoint=checkpoint, on_epoch=self._tell)
        self._divide_training_time(result)
        with self._stage("judge"):
            model = self._trainer.serving_model(data, result.weights)
            judgement = _judged(data, model)
        with self._stage("save"):
            save_model(job.folder, model.save)
        save_description(job.folder, self._finished(data, result, judgement))
        shutil.rmtree(checkpoint.parent, ignore_errors=True)

    def _finished(self, data: SeriesData, result: TrainingResult, judgement: Judgement) -> Finished:
        return Finished(
            data=data,
            candles=self._job.candles,
            is_publishable=self._job.is_publishable,
            seed=self._job.seed,
            precision=self._trainer.precision,
            num_parameters=self._trainer.num_parameters,
            result=result,
            judgement=judgement,
            seconds={stage: round(seconds, 4) for stage, seconds in self._seconds.items()},
        )

    def _divide_training_time(self, result: TrainingResult) -> None:
        """Replace the stage's time by its parts; what they leave is building the network."""
        whole = self._seconds.pop("train")
        self._seconds["build"] = max(0.0, whole - sum(result.seconds.values()))
        self._seconds.update(result.seconds)

    def _tell(self, record: EpochRecord) -> None:
        self._listen(EpochEnded(self._job.series, record, self._job.profile.training.epochs))

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._listen(StageStarted(self._job.series, name))
        started = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - started


def _judged(data: SeriesData, model: object) -> Judgement:
    """Forecast the test span once, with the model that is about to be published."""
    anchors = data.anchors["test"]
    return judge(
        Forecasts(
            truth=data.truth(anchors),
            model=forecast_windows(model, data.raw_windows(anchors)),
            history_close=data.history_close(anchors),
            offsets={task.task: np.array(task.offset) for task in data.scaling.tasks},
            series=str(data.series),
        )
    )
