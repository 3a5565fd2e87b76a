"""The definition of correct: a fleet follows serial stock Keras runs, each to its own end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from float32_steps import assert_within_steps
from numpy_batches import span_batches, training_batches
from tiny_profiles import demo_data, tiny_profile, tiny_ranged_profile
from trained_alone import fit

from v8.base.errors import DivergedError
from v8.data.windows import Batch, FleetWindows, SeriesData
from v8.model.networks.networks import build_network
from v8.model.training.progress import EpochRecord
from v8.model.training.trainer import FleetMember, Trainer, TrainingResult
from v8.profile.profile import Profile

pytestmark = pytest.mark.tf

TRAINING = {
    "epochs": 8,
    "learning_rate": 1e-3,
    "early_stopping_patience_epochs": 2,
    "reduce_lr_patience_epochs": 1,
}
NAMES = (("BTCUSDT-15m", 698), ("ETHUSDT-15m", 630), ("XRPUSDT-1h", 560))


class Windows(keras.utils.PyDataset):  # type: ignore[misc]
    """One series' own batches, epoch after epoch, without any filling."""

    def __init__(self, data: SeriesData, seed: int) -> None:
        super().__init__()
        last = data.profile.training.epochs
        batches = training_batches(FleetWindows([data]), [seed], first_epochs=[1], num_epochs=last)
        self._batches = [plain(batch) for batch in batches]
        # Keras looks at two batches and ends an epoch before the first one.
        self._num = len(self._batches) // last
        self._epoch = -1

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: int) -> Any:
        return self._batches[self._epoch * self._num + index]

    def on_epoch_end(self) -> None:
        self._epoch += 1


def plain(batch: Batch) -> tuple[Any, dict[str, Any]]:
    real = np.asarray(batch.weight_BM)[:, 0] == 1
    x = np.asarray(batch.x_BMTF)[real, 0]
    return x, {task: np.asarray(y)[real, 0] for task, y in batch.y_BMHC.items()}


class FromUntrained(keras.callbacks.EarlyStopping):  # type: ignore[misc]
    """Early stopping for which the untrained network is the best so far."""

    def __init__(self, untrained_loss: float) -> None:
        super().__init__("val_loss", patience=2, restore_best_weights=True)
        self._untrained_loss = untrained_loss

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self.best = self._untrained_loss
        self.best_weights = self.model.get_weights()


@pytest.fixture(scope="module")
def stock(series: list[SeriesData]) -> keras.Model:
    """A network of stock Keras for all serial fits: to compile it takes longer than they do."""
    profile = series[0].profile
    network = build_network(profile, seed=0)
    network.compile(
        keras.optimizers.Adam(profile.training.learning_rate),
        loss=dict.fromkeys(profile.tasks, "mean_absolute_error"),
        loss_weights={task: settings.weight for task, settings in profile.tasks.items()},
    )
    return network


def serial_fit(network: keras.Model, data: SeriesData, seed: int) -> dict[str, list[float]]:
    """Train the network from the start of a series, its optimizer's memory wiped; return Keras' history."""
    start = {task.task: task.start for task in data.scaling.tasks}
    network.set_weights(build_network(data.profile, seed=seed, start=start).get_weights())
    for variable in network.optimizer.variables:
        variable.assign(np.zeros(variable.shape))
    network.optimizer.learning_rate = data.profile.training.learning_rate
    (validation,) = span_batches(FleetWindows([data]), "validation", data.num_windows("validation"))
    x, y = plain(validation)
    untrained = network.evaluate(x, y, batch_size=64, verbose=0, return_dict=True)["loss"]
    history = network.fit(
        Windows(data, seed),
        epochs=data.profile.training.epochs,
        validation_data=(x, y),
        callbacks=[FromUntrained(untrained), keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, 1)],
        shuffle=False,
        verbose=0,
    )
    return dict(history.history)


@pytest.fixture(scope="module")
def series() -> list[SeriesData]:
    profile = tiny_profile(training=TRAINING)
    return [demo_data(profile, series=name, num_bars=bars) for name, bars in NAMES]


def fleet_fit(
    series: list[SeriesData], trainer: Trainer | None = None, **options: Any
) -> dict[int, TrainingResult | DivergedError]:
    members = [FleetMember(data, seed=10 + place, **options) for place, data in enumerate(series)]
    return dict((trainer or Trainer(series[0].profile)).fit_fleet(members))


@pytest.fixture(scope="module")
def trainer(series: list[SeriesData]) -> Trainer:
    return Trainer(series[0].profile)


@pytest.fixture(scope="module")
def fleet(series: list[SeriesData], trainer: Trainer) -> dict[int, TrainingResult | DivergedError]:
    return fleet_fit(series, trainer)


@pytest.mark.nightly
@pytest.mark.parametrize("place", [0, 1, 2])
def test_g18_a_fleet_of_three_lengths_follows_three_serial_fits(
    place: int, series: list[SeriesData], stock: keras.Model, fleet: dict[int, TrainingResult | DivergedError]
) -> None:
    history = serial_fit(stock, series[place], seed=10 + place)
    ours = fleet[place]
    assert isinstance(ours, TrainingResult)
    assert len(ours.history) == len(history["loss"])
    # Fed by a PyDataset, Keras gives every batch the same weight in the epoch's loss, a part-filled
    # last one too; where there is none, the numbers are the same.
    is_even = series[place].num_windows("train") % 16 == 0
    train_losses = [record.train_loss for record in ours.history]
    if is_even:
        assert_within_steps(train_losses, history["loss"], steps=32)
    else:
        np.testing.assert_allclose(train_losses, history["loss"], rtol=1e-2)
    assert_within_steps([r.validation_loss for r in ours.history], history["val_loss"], steps=32)
    rates = [record.learning_rate for record in ours.history]
    assert_within_steps(rates, history["learning_rate"], steps=4)
    for mine, theirs in zip(ours.weights, stock.trainable_variables, strict=True):
        assert_within_steps(mine, theirs, magnitude=1.0, steps=64)


@pytest.mark.nightly
def test_the_members_of_the_trial_end_at_different_epochs_for_different_reasons(
    fleet: dict[int, TrainingResult | DivergedError],
) -> None:
    """Otherwise the test above would not show that each keeps its own patience."""
    ends = {
        (len(result.history), result.stopped_by)
        for result in fleet.values()
        if not isinstance(result, DivergedError)
    }
    assert len(ends) > 1


@pytest.mark.nightly
def test_a_member_does_not_depend_on_its_fleet(
    series: list[SeriesData], trainer: Trainer, fleet: dict[int, TrainingResult | DivergedError]
) -> None:
    alone = fit(trainer, series[1], seed=11)
    together = fleet[1]
    assert isinstance(together, TrainingResult)
    assert alone.best_epoch == together.best_epoch
    for one, other in zip(alone.weights, together.weights, strict=True):
        assert_within_steps(one, other, magnitude=1.0, steps=64)


@pytest.mark.nightly
def test_a_member_that_diverges_stops_with_a_reason_and_the_others_go_on(
    series: list[SeriesData], trainer: Trainer, fleet: dict[int, TrainingResult | DivergedError]
) -> None:
    sick = demo_data(series[1].profile, series=NAMES[1][0], num_bars=NAMES[1][1])
    sick.inputs_NF[100] = np.nan
    results = fleet_fit([series[0], sick, series[2]], trainer)
    assert isinstance(results[1], DivergedError)
    assert str(results[1]).startswith("ETHUSDT-15m: the training loss ") and "; got nan" in str(results[1])
    for place in (0, 2):
        healthy = fleet[place]
        same = results[place]
        assert isinstance(healthy, TrainingResult)
        assert isinstance(same, TrainingResult)
        for one, other in zip(healthy.weights, same.weights, strict=True):
            # The sick member's place is given up, and a smaller program rounds otherwise.
            assert_within_steps(one, other, magnitude=1.0, steps=64)


def weighted_losses(data: SeriesData, seed: int, *, is_eager: bool = False) -> list[float]:
    """Train stock Keras with sample weights; return the validation loss after each epoch.

    Run eagerly, a graph that is written out for each bar need not be compiled.
    """
    training = data.profile.training
    start = {task.task: task.start for task in data.scaling.tasks}
    network = build_network(data.profile, seed=seed, start=start)
    network.compile(
        keras.optimizers.Adam(training.learning_rate),
        loss={
            task: keras.losses.MeanAbsoluteError(reduction="mean_with_sample_weight")
            for task in data.profile.tasks
        },
        loss_weights={task: settings.weight for task, settings in data.profile.tasks.items()},
        run_eagerly=is_eager,
    )
    windows = FleetWindows([data])
    losses = []
    (validation,) = span_batches(windows, "validation", data.num_windows("validation"))
    for epoch in range(1, training.epochs + 1):
        for batch in training_batches(windows, [seed], first_epochs=[epoch], num_epochs=1):
            network.train_on_batch(*weighted(batch))
        network.reset_metrics()
        losses.append(network.test_on_batch(*weighted(validation), return_dict=True)["loss"])
    return losses


def weighted(batch: Batch) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    y = {task: np.asarray(values)[:, 0] for task, values in batch.y_BMHC.items()}
    weight_B1 = np.asarray(batch.weight_BM)[:, :1]
    # Keras wants a weight for every error that is left after the mean over columns: one a step.
    return np.asarray(batch.x_BMTF)[:, 0], y, {task: weight_B1.repeat(v.shape[1], 1) for task, v in y.items()}


ATTENTIVE = {
    "tasks": {"ohlc": {"weight": 1.0, "loss": "mae"}},
    "training": {"epochs": 2, "learning_rate": 0.005, "batch_size": 128},
    "lookback_bars": 6,
    "horizon_bars": 2,
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("profile", "second"),
    [
        *(
            (tiny_profile(name, **ATTENTIVE), NAMES[1])
            for name in ("transformer", "gru_attention", "lstm_attention")
        ),
        (tiny_ranged_profile(training={"epochs": 2, "learning_rate": 0.02}), ("ETHUSDT-1h", 800)),
    ],
    ids=lambda value: value.network.family if isinstance(value, Profile) else "",
)
def test_g18_a_fleet_of_two_of_another_family_follows_serial_fits(
    profile: Profile, second: tuple[str, int]
) -> None:
    fleet = [demo_data(profile), demo_data(profile, series=second[0], num_bars=second[1])]
    for place, ours in fleet_fit(fleet).items():
        assert isinstance(ours, TrainingResult)
        is_written_out = profile.network.family != "dense_newest"
        losses = weighted_losses(fleet[place], seed=10 + place, is_eager=is_written_out)
        assert losses[0] != pytest.approx(losses[1], rel=2e-5)  # there is something to follow
        assert_within_steps([r.validation_loss for r in ours.history], losses, steps=32)


class StoppedError(Exception):
    """Stands for a power cut between two epochs."""


@pytest.mark.nightly
def test_g12_a_fleet_resumes_to_identical_weights(
    series: list[SeriesData],
    trainer: Trainer,
    fleet: dict[int, TrainingResult | DivergedError],
    tmp_path: Any,
) -> None:
    def members(on_epoch: Callable[[EpochRecord], None]) -> list[FleetMember]:
        return [
            FleetMember(data, 10 + place, tmp_path / f"{place}.npz", on_epoch)
            for place, data in enumerate(series)
        ]

    def stop(record: EpochRecord) -> None:
        if record.epoch == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        list(trainer.fit_fleet(members(stop)))
    results = dict(Trainer(series[0].profile).fit_fleet(members(lambda record: None)))
    for place, result in results.items():
        whole = fleet[place]
        assert isinstance(result, TrainingResult)
        assert isinstance(whole, TrainingResult)
        for one, other in zip(result.weights, whole.weights, strict=True):
            assert_within_steps(one, other, magnitude=1.0, steps=64)


@pytest.mark.nightly
def test_a_member_that_had_ended_before_a_resume_ends_once_and_the_others_go_on(
    series: list[SeriesData],
    trainer: Trainer,
    fleet: dict[int, TrainingResult | DivergedError],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process was killed between its last epoch and its artefact, while the others still trained."""
    monkeypatch.setattr("v8.model.training.trainer.CHECKPOINT_SHARE", 1.0)  # every epoch is saved
    checkpoints = [tmp_path / f"{place}.npz" for place in range(3)]
    fit(trainer, series[1], seed=11, checkpoint=checkpoints[1])
    members = [FleetMember(data, 10 + place, checkpoints[place]) for place, data in enumerate(series)]
    ended = list(trainer.fit_fleet(members))
    assert sorted(place for place, _ in ended) == [0, 1, 2]
    assert ended[0][0] == 1
    for place, result in ended:
        whole = fleet[place]
        assert isinstance(result, TrainingResult)
        assert isinstance(whole, TrainingResult)
        assert [record.epoch for record in result.history] == [record.epoch for record in whole.history]
        for one, other in zip(result.weights, whole.weights, strict=True):
            assert_within_steps(one, other, magnitude=1.0, steps=64)
