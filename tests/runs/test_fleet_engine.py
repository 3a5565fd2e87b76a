"""A fleet gives the artefacts of one series after another, and no member's trouble is another's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from float32_steps import assert_within_steps
from tiny_profiles import tiny_profile

from v8.base.errors import DivergedError
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.forecaster.metadata import read_metadata
from v8.model.networks.serving import ServingModel
from v8.model.training.progress import EpochRecord
from v8.model.training.trainer import FleetMember, Trainer, TrainingResult
from v8.profile.profile import Profile
from v8.runs.events import Event, EventCallback, Note, RunSummary, SeriesOutcome
from v8.runs.local import InProcessEngine
from v8.runs.plan import Job, Recipe
from v8.runs.stages import CHECKPOINT

pytestmark = pytest.mark.tf

NAMES = ("BTCUSDT-15m", "ETHUSDT-15m", "XRPUSDT-1h")


class OneTrainer:
    """Hands out one trainer again and again, so that its programs are compiled once for all tests."""

    def __init__(self) -> None:
        self.trainer: Trainer | None = None

    def __call__(self, profile: Profile, *, precision: str, **_: Any) -> Trainer:
        self.trainer = self.trainer or Trainer(profile, precision=precision)
        return self.trainer


@pytest.fixture(scope="module")
def one_trainer() -> OneTrainer:
    return OneTrainer()


@pytest.fixture(scope="module")
def profile() -> Profile:
    network = {"family": "lstm_dense", "encoder_units": (4,), "dense_units": (4,), "dropout": 0.0}
    return tiny_profile("lstm_dense", network=network, training={"epochs": 2, "batch_size": 32})


@pytest.fixture
def make_jobs(profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Job]]:
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    return lambda *names: [make_job(profile, Series.parse(name), tmp_path) for name in names]


def make_job(profile: Profile, series: Series, folder: Path) -> Job:
    candles = DemoSource().candles(series, profile.newest_bars)
    seed = 10 + NAMES.index(str(series))
    return Job(Recipe(profile, is_publishable=False), candles, seed, folder / str(series))


def weights_in(job: Job) -> list[np.ndarray]:
    model = keras.models.load_model(job.folder / "model.keras")
    return [np.asarray(weight) for weight in model.get_weights()]


def assert_same_weights(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert_within_steps(mine, theirs, magnitude=1.0, steps=64)


def made(jobs: list[Job], listen: Any, fleet_size: int | None, make_trainer: Any) -> Iterator[SeriesOutcome]:
    return InProcessEngine(fleet_size, trainer_factory=make_trainer).train(jobs, EventCallback(listen))


def ignore(event: Event) -> None:
    """Listen to nothing."""


@pytest.fixture(scope="module")
def serial(
    profile: Profile, one_trainer: OneTrainer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[np.ndarray]]:
    """Weights of each series trained on its own."""
    folder = tmp_path_factory.mktemp("serial")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("V8_HOME", str(folder / "home"))
        jobs = [make_job(profile, Series.parse(name), folder) for name in NAMES]
        assert [outcome.reason for outcome in made(jobs, ignore, 1, one_trainer)] == [None] * 3
    return {str(job.series): weights_in(job) for job in jobs}


@pytest.mark.nightly
def test_a_fleet_of_three_publishes_the_models_of_the_serial_workshop(
    make_jobs: Callable[..., list[Job]], serial: dict[str, list[np.ndarray]], one_trainer: OneTrainer
) -> None:
    jobs = make_jobs(*NAMES)
    events = []
    outcomes = list(made(jobs, events.append, None, one_trainer))
    assert {str(outcome.series): outcome.reason for outcome in outcomes} == dict.fromkeys(NAMES)
    for job in jobs:
        assert_same_weights(weights_in(job), serial[str(job.series)])
        assert not (job.folder / CHECKPOINT).exists()
        training = json.loads((job.folder / "metadata.json").read_text())["training"]
        assert training["device"].startswith(("CPU:", "GPU:"))
        assert training["peak_memory_bytes"] > 0
        assert training["windows_per_s"] > 0
        assert training["fleet_size"] == 3
    assert not [event for event in events if isinstance(event, Note)]
    folders = {job.series: job.folder for job in jobs}
    for outcome in outcomes:
        evaluation = read_metadata(folders[outcome.series]).evaluation
        assert outcome.comparisons == (evaluation.against("ohlc"),)


def test_a_series_without_the_onnx_file_that_was_wanted_says_so_with_its_outcome(
    make_jobs: Callable[..., list[Job]], one_trainer: OneTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("v8.forecaster.shared_models.MAX_STEPS", -1)
    (plain,) = make_jobs(NAMES[0])
    notes: list[Event] = []
    (outcome,) = made(
        [replace(plain, recipe=replace(plain.recipe, has_onnx=True))], notes.append, 1, one_trainer
    )
    file = plain.folder / "model.onnx"
    assert outcome.reason is None and not file.exists()
    assert outcome.onnx_fault is not None and outcome.onnx_fault.startswith(f"{file}: forecasts as the Keras")
    assert [note.text for note in notes if isinstance(note, Note)] == [outcome.onnx_fault]
    summary = RunSummary(num_trained=1, num_finished_before=0, failures=(), without_onnx=(outcome,))
    assert (summary.exit_code, replace(summary, without_onnx=()).exit_code) == (4, 0)


class Sick(Trainer):
    """Fails to train, or to evaluate, one series of each fleet."""

    sick = "ETHUSDT-15m"

    def __init__(self, inner: Trainer, stage: str) -> None:
        self._inner = inner
        self._stage = stage
        self.num_micro_batches = inner.num_micro_batches
        self.sizes: list[int] = []

    @property
    def precision(self) -> str:  # type: ignore[override]
        return self._inner.precision

    @property
    def num_parameters(self) -> int:
        return self._inner.num_parameters

    @property
    def unstackable_layers(self) -> list[str]:  # type: ignore[override]
        return self._inner.unstackable_layers

    def serving_model(self, data: Any, weights: Any) -> ServingModel:
        if self._stage == "evaluate" and str(data.series) == self.sick:
            raise ZeroDivisionError("no model today")
        return self._inner.serving_model(data, weights)

    def fit_fleet(
        self, members: Sequence[FleetMember]
    ) -> Iterator[tuple[int, TrainingResult | DivergedError]]:
        self.sizes.append(len(members))
        self._raise_for(members)
        yield from self._inner.fit_fleet(members)

    def _raise_for(self, members: Sequence[FleetMember]) -> None:
        names = [str(member.data.series) for member in members]
        if self._stage == "train" and self.sick in names:
            raise ZeroDivisionError("the program broke")


class Small(Sick):
    """Runs out of memory with more than two models, in the middle of the first epoch's end."""

    def __init__(self, inner: Trainer) -> None:
        super().__init__(inner, "never")

    def fit_fleet(
        self, members: Sequence[FleetMember]
    ) -> Iterator[tuple[int, TrainingResult | DivergedError]]:
        self.sizes.append(len(members))
        yield from self._inner.fit_fleet([self._limited(member, len(members)) for member in members])

    def _limited(self, member: FleetMember, num_models: int) -> FleetMember:
        def on_epoch(record: EpochRecord) -> None:
            member.on_epoch(record)
            if num_models > 2 and str(member.data.series) == NAMES[-1]:
                raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.")

        return replace(member, on_epoch=on_epoch)


@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_g10_one_series_trouble_is_its_own(
    stage: str,
    make_jobs: Callable[..., list[Job]],
    serial: dict[str, list[np.ndarray]],
    one_trainer: OneTrainer,
) -> None:
    assert one_trainer.trainer is not None
    jobs = make_jobs(*NAMES)
    trainer = Sick(one_trainer.trainer, stage)
    outcomes = by_name(made(jobs, ignore, 3, lambda *_, **__: trainer))
    assert outcomes[Sick.sick].reason is not None
    assert outcomes[Sick.sick].reason.startswith("ETHUSDT-15m: unexpected ZeroDivisionError: ")
    for job in (jobs[0], jobs[2]):
        assert outcomes[str(job.series)].reason is None
        assert_same_weights(weights_in(job), serial[str(job.series)])


def test_g10_a_series_without_enough_candles_leaves_its_fleet_before_training(
    make_jobs: Callable[..., list[Job]], serial: dict[str, list[np.ndarray]], one_trainer: OneTrainer
) -> None:
    jobs = make_jobs(*NAMES)
    jobs[1] = replace(jobs[1], candles=jobs[1].candles.newest(40))
    outcomes = by_name(made(jobs, ignore, 3, one_trainer))
    assert outcomes[NAMES[1]].error.exit_code == 3
    for job in (jobs[0], jobs[2]):
        assert outcomes[str(job.series)].reason is None
        assert_same_weights(weights_in(job), serial[str(job.series)])


def test_out_of_memory_halves_the_fleet_and_every_series_goes_on_where_it_was(
    make_jobs: Callable[..., list[Job]], serial: dict[str, list[np.ndarray]], one_trainer: OneTrainer
) -> None:
    assert one_trainer.trainer is not None
    jobs = make_jobs(*NAMES)
    events = []
    trainers = []

    def make_trainer(*_: Any, **__: Any) -> Trainer:
        assert one_trainer.trainer is not None
        trainers.append(Small(one_trainer.trainer))
        return trainers[-1]

    outcomes = by_name(made(jobs, events.append, None, make_trainer))
    assert [outcomes[name].reason for name in NAMES] == [None] * 3
    assert [trainer.sizes for trainer in trainers] == [[3], [2, 1]]
    notes = [event.text for event in events if isinstance(event, Note)]
    assert re.match("A fleet of 3 ran out of memory; .* 2.$", notes[0])
    for job in jobs:
        assert_same_weights(weights_in(job), serial[str(job.series)])
    metadata = [json.loads((job.folder / "metadata.json").read_text()) for job in jobs]
    assert metadata[0]["training"]["resumed_from_epoch"] == 1


def by_name(outcomes: Iterator[SeriesOutcome]) -> dict[str, SeriesOutcome]:
    return {str(outcome.series): outcome for outcome in outcomes}
