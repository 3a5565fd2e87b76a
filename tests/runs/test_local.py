"""One pipeline, many series: they share a program and a model, and nothing of one is left in the next."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import pytest
from tiny_profiles import demo_data, tiny_profile

from v8.annexes import ray as cluster
from v8.base.child import resource_scope
from v8.base.errors import DivergedError
from v8.data.feature_store import FeatureStore
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.forecaster.metadata import TrainingInfo, read_metadata
from v8.model.networks.serving import ServingGraph
from v8.model.training.trainer import FleetMember, Trainer
from v8.profile.profile import Profile
from v8.runs.events import EventCallback, RunObserver, SeriesOutcome
from v8.runs.local import InProcessEngine, SeriesPipeline
from v8.runs.plan import Job, Recipe
from v8.runs.stages import CHECKPOINT, calibrate

pytestmark = pytest.mark.tf

FIRST = "BTCUSDT-15m"
SECOND = "ETHUSDT-15m"


@dataclass(frozen=True)
class Pipelines:
    """What two pipelines made.

    Args:
        first: Folder of the series that the shared pipeline made before the other.
        after: Folder of the second series, made after it, once saving it had failed.
        alone: Folder of the second series, made by a pipeline of its own.
        trouble: Why saving it failed.
        is_resumed: Whether the checkpoint of the failed attempt was there for the next.
    """

    first: Path
    after: Path
    alone: Path
    trouble: str | None
    is_resumed: bool


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Pipelines:
    profile = tiny_profile(
        "lstm_dense",
        newest_bars=400,
        features=("open", "high", "low", "close"),
        network={"family": "lstm_dense", "dropout": 0.2, "encoder_units": (4,), "dense_units": (4,)},
        tasks={"ohlc": {"weight": 1.0, "loss": "mae"}},
        training={"epochs": 4, "batch_size": 8},
        calibration="ensemble",
    )
    home = tmp_path_factory.mktemp("pipelines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("V8_HOME", str(home / "caches"))
        shared, own = (SeriesPipeline(Recipe(profile, is_publishable=False)) for _ in range(2))
        jobs = [make_job(profile, FIRST, home), make_job(profile, SECOND, home / "shared")]
        assert outcome_of(shared, jobs[0]).reason is None
        in_the_way = jobs[1].folder / "model.keras" / "a folder in the place of the file"
        in_the_way.mkdir(parents=True)
        trouble = outcome_of(shared, jobs[1]).reason
        is_resumed = (jobs[1].folder / CHECKPOINT).exists()
        in_the_way.rmdir()
        in_the_way.parent.rmdir()
        assert outcome_of(shared, jobs[1]).reason is None
        alone = make_job(profile, SECOND, home / "alone")
        assert outcome_of(own, alone).reason is None
    return Pipelines(jobs[0].folder, jobs[1].folder, alone.folder, trouble, is_resumed)


def outcome_of(pipeline: SeriesPipeline, job: Job) -> SeriesOutcome:
    (outcome,) = pipeline.make_artifacts([job], 1, RunObserver(), lambda: None)
    return outcome


def make_job(profile: Profile, name: str, folder: Path) -> Job:
    candles = DemoSource().candles(Series.parse(name), profile.newest_bars)
    return Job(Recipe(profile, is_publishable=False), candles, 5, folder / name)


@pytest.mark.nightly
def test_runs_of_one_block_share_their_programs(tmp_path: Path) -> None:
    checks: list[Callable[[], None]] = []

    class Refusing:
        unstackable_layers: ClassVar[list[str]] = []

        def fit_fleet(self, members: list[FleetMember]) -> Iterator[tuple[int, DivergedError]]:
            yield 0, DivergedError(where="here", rule="none is trained", got="one", fix="Leave it")

    def make_trainer(profile: Profile, **options: Any) -> Any:
        checks.append(options["check_interrupt"])
        return Refusing()

    job = make_job(tiny_profile("dense_newest"), FIRST, tmp_path)
    heard = [list[Any](), list[Any]()]
    store = FeatureStore(tmp_path / "features")
    engine = InProcessEngine(trainer_factory=make_trainer, store=store)
    with resource_scope():
        for events in heard:
            (outcome,) = engine.train([job], EventCallback(events.append))
            assert "none is trained" in str(outcome.reason)
        assert len(checks) == 1
    assert [str(event) for event in heard[0]] == [str(event) for event in heard[1]] != []
    list(engine.train([job], RunObserver()))
    assert len(checks) == 2
    with resource_scope() as resources:
        for num_epochs in (1, 2):
            other = make_job(job.recipe.profile.with_budget(epochs=num_epochs), FIRST, tmp_path)
            list(engine.train([other], RunObserver()))
            assert len(resources) == 1  # programs of one profile at a time


@pytest.mark.nightly
def test_a_worker_of_ray_makes_shard_after_shard_in_one_pipeline(
    made: Pipelines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_HOME", str(made.first.parent / "caches"))
    profile = read_metadata(made.first).trained_profile
    trainers = []
    monkeypatch.setattr("v8.runs.local.Trainer", lambda *_, **__: trainers.append(0) or Trainer(*_, **__))
    wanted = cluster._environment()
    with cluster._marker_file(tmp_path) as sign, ExitStack() as end_of_worker:
        monkeypatch.setattr(cluster, "_until_exit", end_of_worker)
        end_of_worker.callback(cluster._training_thread.cache_clear)
        for name in (FIRST, SECOND):
            shard = pickle.dumps([make_job(profile, name, tmp_path)])
            told = [event for events in cluster._serve(wanted, str(sign), shard, 1) for event in events]
            assert [event.reason for event in told if isinstance(event, SeriesOutcome)] == [None]
    assert len(trainers) == 1
    one, other = (
        keras.saving.load_model(folder / "model.keras").get_weights()
        for folder in (made.first, tmp_path / FIRST)
    )
    for mine, its in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, its)


def metadata(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "metadata.json").read_text())
    return content


@pytest.mark.nightly
def test_g20_a_series_made_after_another_and_tried_twice_has_the_file_it_has_alone(made: Pipelines) -> None:
    assert "model.keras: must be written; got " in (made.trouble or "")
    assert made.is_resumed
    first, after, alone = (
        keras.saving.load_model(folder / "model.keras").get_weights()
        for folder in (made.first, made.after, made.alone)
    )
    for one, other in zip(after, alone, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not all(np.array_equal(one, other) for one, other in zip(first, alone, strict=True))


@pytest.mark.nightly
def test_the_training_that_is_written_has_every_key_of_its_schema(made: Pipelines) -> None:
    keys = [field.name for field in fields(TrainingInfo)]
    keys.remove("started_from")  # only where training began from the weights of another model
    assert list(metadata(made.first)["training"]) == keys
    assert read_metadata(made.first).training.started_from is None


@pytest.mark.nightly
def test_its_calibration_evaluation_and_forecasts_are_those_it_has_alone(made: Pipelines) -> None:
    first, after, alone = (metadata(folder) for folder in (made.first, made.after, made.alone))
    for part in ("scaling", "calibration", "evaluation"):
        assert after[part] == alone[part]
    assert after["scaling"] != first["scaling"]
    # The series before left factors behind that are not those a model begins with.
    factors = [factor for one in first["calibration"]["tasks"] for factor in one["factors"]]
    assert any(factor != 1.0 for factor in factors)
    samples = [(folder / "forecasts.json").read_bytes() for folder in (made.after, made.alone)]
    assert samples[0] == samples[1]


@pytest.mark.nightly
def test_all_series_are_evaluated_by_one_model_that_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[ServingGraph] = []

    class Counted(ServingGraph):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            built.append(self)

    monkeypatch.setattr("v8.model.training.trainer.ServingGraph", Counted)
    profile = tiny_profile(calibration="ensemble")
    trainer = Trainer(profile)
    models = []
    before = []
    weights = [np.asarray(weight) for weight in trainer.network.trainable_variables]
    for name in (FIRST, SECOND, "XRPUSDT-1h"):
        data = demo_data(profile, series=name)
        models.append(trainer.serving_model(data, weights))
        calibrate(models[-1], data)
        windows = data.spans["test"].raw_windows()
        before.append((windows, models[-1].forecast_all(windows)))
    assert len(built) == 1
    assert built[0].model.predict_function.experimental_get_tracing_count() == 1
    for model, (windows, forecasts) in zip(models, before, strict=True):
        for task, again in model.forecast_all(windows).points.items():
            np.testing.assert_array_equal(again, forecasts.points[task])
