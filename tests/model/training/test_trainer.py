"""Training: learns, stops, resumes to the same weights, says when it diverges."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from float32_steps import assert_within_steps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_profiles import demo_data, demo_table, table_with, tiny_profile
from trained_alone import fit

from v8.base.errors import ArtifactError, DivergedError
from v8.data.windows import SeriesData, prepare_series
from v8.model.training.progress import EpochRecord, LossPatience
from v8.model.training.state import Checkpoint, FleetState, Progress
from v8.model.training.trainer import FleetMember, InitialWeights, Trainer, TrainingResult, _FleetFit

pytestmark = pytest.mark.tf


def same_weights(one: TrainingResult, two: TrainingResult) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))


@pytest.fixture(scope="module")
def learnable() -> SeriesData:
    """A market in which the next close is known from the last RSI."""
    profile = tiny_profile(
        dropout=0.1,
        horizon_bars=1,
        features=("open", "high", "low", "close", "rsi"),
        tasks={"ohlc": {"weight": 1.0, "loss": "mse"}},
        training={"epochs": 4, "learning_rate": 0.03},
    )
    table = demo_table(profile)
    steps = np.random.default_rng(3).normal(0, 0.01, len(table))
    close = 100 * np.exp(np.cumsum(steps))
    coming = np.append(steps[1:], 0.0)
    changed = dict.fromkeys(("open", "high", "low", "close"), close)
    return prepare_series(table_with(table, rsi=50 + 1_000 * coming, **changed), profile)


@pytest.fixture(scope="module")
def trainer(learnable: SeriesData) -> Trainer:
    return Trainer(learnable.profile)


@pytest.fixture(scope="module")
def another(learnable: SeriesData) -> Trainer:
    """A trainer with programs of its own, as another process has."""
    return Trainer(learnable.profile)


@pytest.fixture(scope="module")
def whole(trainer: Trainer, learnable: SeriesData) -> TrainingResult:
    return fit(trainer, learnable, seed=5)


def test_it_learns_what_can_be_learned(whole: TrainingResult) -> None:
    assert whole.best_validation_loss < 0.5 * whole.untrained_loss
    assert whole.best_epoch >= 1
    assert [record.epoch for record in whole.history] == [1, 2, 3, 4]


def test_g20_the_same_seed_gives_the_same_weights(
    trainer: Trainer, learnable: SeriesData, whole: TrainingResult
) -> None:
    assert same_weights(fit(trainer, learnable, seed=5), whole)
    assert not same_weights(fit(trainer, learnable, seed=6), whole)


@pytest.fixture
def two_series() -> list[SeriesData]:
    profile = tiny_profile()
    return [demo_data(profile, series=name) for name in ("BTCUSDT-15m", "ETHUSDT-15m")]


def drawn_weights(trainer: Trainer, seed: int) -> list[np.ndarray]:
    """Weights that make a network say anything."""
    rng = np.random.default_rng(seed)
    shapes = [tuple(weight.shape) for weight in trainer.network.trainable_variables]
    return [rng.normal(0, 0.5, shape).astype(np.float32) for shape in shapes]


def test_the_published_files_of_two_series_differ_in_weights_alone(
    two_series: list[SeriesData], tmp_path: Path
) -> None:
    trainer = Trainer(two_series[0].profile)
    members = []
    for number, data in enumerate(two_series):
        trainer.serving_model(data, drawn_weights(trainer, 1)).save(tmp_path / f"{number}.keras")
        with zipfile.ZipFile(tmp_path / f"{number}.keras") as archive:
            members.append({name: archive.read(name) for name in ("config.json", "model.weights.h5")})
    assert members[0]["config.json"] == members[1]["config.json"]
    # The networks are the same, so what tells the files apart is the constants of the scaling.
    assert members[0]["model.weights.h5"] != members[1]["model.weights.h5"]


class StoppedError(Exception):
    """Stands for a power cut between two epochs."""


@pytest.mark.parametrize("last_epoch", [1, 3])
def test_g12_a_resumed_training_ends_with_the_same_weights(
    last_epoch: int,
    trainer: Trainer,
    another: Trainer,
    learnable: SeriesData,
    whole: TrainingResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("v8.model.training.trainer.CHECKPOINT_SHARE", 1.0)  # every epoch is saved

    def stop(record: EpochRecord) -> None:
        if record.epoch == last_epoch:
            raise StoppedError

    path = tmp_path / "checkpoint.npz"
    with pytest.raises(StoppedError):
        fit(trainer, learnable, seed=5, checkpoint=path, on_epoch=stop)
    resumed = fit(another, learnable, seed=5, checkpoint=path)
    assert resumed.resumed_from_epoch == last_epoch
    assert same_weights(resumed, whole)
    assert [r.validation_loss for r in resumed.history] == [r.validation_loss for r in whole.history]


def test_a_network_that_begins_from_a_champion_is_first_what_that_was(
    trainer: Trainer, learnable: SeriesData, whole: TrainingResult
) -> None:
    fitted = fit(trainer, learnable, seed=6, initial_weights=InitialWeights("0" * 64, whole.weights))
    assert_within_steps(fitted.untrained_loss, whole.best_validation_loss, steps=8)
    assert fitted.best_validation_loss <= fitted.untrained_loss
    assert not same_weights(fitted, fit(trainer, learnable, seed=6))


def test_a_network_that_is_taught_begins_with_every_weight_in_its_place() -> None:
    data = demo_data(tiny_profile("gru_attention", dropout=0.3, teacher_forcing=0.5))
    teacher_forced = Trainer(data.profile)
    drawn = drawn_weights(teacher_forced, 3)
    state = teacher_forced.first_state(
        [FleetMember(data, seed=5, initial_weights=InitialWeights("0" * 64, drawn))]
    )
    for weight, wanted in zip(teacher_forced.network_weights(state.weights[0]), drawn, strict=True):
        np.testing.assert_array_equal(weight, wanted)


def test_a_checkpoint_of_another_beginning_is_dropped(
    trainer: Trainer, learnable: SeriesData, whole: TrainingResult, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.npz"
    messages = list[str]()
    first = InitialWeights("0" * 64, whole.weights)

    def stop(record: EpochRecord) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        fit(trainer, learnable, seed=5, checkpoint=path, on_epoch=stop, initial_weights=first)
    assert identity_in(path)["started_from"] == "0" * 64
    anew = fit(trainer, learnable, seed=5, checkpoint=path, warn=messages.append)
    assert same_weights(anew, whole)
    assert "It is ignored" in messages[0]


def flipped(content: bytes) -> bytes:
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def identity_in(path: Path) -> dict[str, Any]:
    with np.load(path) as stored:
        return dict(json.loads(bytes(stored["note"]))["identity"])


def resaved(change: Callable[[Checkpoint], Checkpoint]) -> Callable[[Path], None]:
    """Return what writes a checkpoint again with a change."""
    return lambda path: change(Checkpoint.load(path, identity_in(path))).save(path)


def of_another_format(path: Path) -> None:
    checkpoint = Checkpoint.load(path, identity_in(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("v8.model.training.state.CHECKPOINT_FORMAT", 99)
        checkpoint.save(path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(2**40)  # without a disk's space, all zeros


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "no zip": lambda path: path.write_bytes(b"no zip at all" * 100),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "flipped": lambda path: path.write_bytes(flipped(path.read_bytes())),
    "foreign": resaved(lambda it: replace(it, identity={**it.identity, "seed": 6})),
    "other shapes": resaved(lambda it: replace(it, state=it.state._replace(weights=np.zeros(2)))),
    "other type": resaved(lambda it: replace(it, best_weights=it.best_weights.astype(np.float64))),
    "other format": of_another_format,
    "folder": a_folder,
    "huge": huge,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_checkpoint_that_is_not_ours_is_dropped_with_one_line(
    damage: Callable[[Path], object],
    trainer: Trainer,
    learnable: SeriesData,
    whole: TrainingResult,
    tmp_path: Path,
) -> None:
    path = tmp_path / "checkpoint.npz"
    messages = []
    member = FleetMember(learnable, 5, path, warn=messages.append)
    list(trainer.fit_fleet([member]))
    damage(path)
    ((_, result),) = trainer.fit_fleet([member])
    assert isinstance(result, TrainingResult)
    assert result.resumed_from_epoch == 0
    assert same_weights(result, whole)
    assert "It is ignored, " in messages[0]
    assert len(messages[0].splitlines()) == 1
    assert path.is_dir() or Checkpoint.load(path, identity_in(path)).progress.epoch > 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_single_flipped_bit_of_a_checkpoint_goes_unnoticed(
    saved: bytes, tmp_path: Path, place: float, bit: int
) -> None:
    content = bytearray(saved)
    content[int(place * len(content))] ^= 1 << bit
    (tmp_path / "c.npz").write_bytes(content)
    with pytest.raises(ArtifactError, match="a checkpoint that can"):
        Checkpoint.load(tmp_path / "c.npz", {"seed": 1})


def small_checkpoint() -> Checkpoint:
    draws = [np.int32(n) for n in range(12)]
    one = np.float32(1)
    state = FleetState(
        np.arange(3.0), draws, np.zeros(3), np.ones(3), np.float32(4), one, np.int32(0), one, one
    )
    record = EpochRecord(1, 0.5, 0.4, 1e-3, 2.0, 10.0, is_best=True)
    progress = Progress(0.6, LossPatience(1e-3, best_loss=0.4, best_epoch=1), (record,))
    return Checkpoint({"seed": 1}, state, np.arange(3.0) + 1, progress)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "c.npz"
    small_checkpoint().save(path)
    return path.read_bytes()


def test_a_checkpoint_keeps_every_array(tmp_path: Path) -> None:
    small_checkpoint().save(tmp_path / "c.npz")
    loaded = Checkpoint.load(tmp_path / "c.npz", {"seed": 1})
    assert (loaded.state.weights.tolist(), loaded.best_weights.tolist()) == ([0, 1, 2], [1, 2, 3])
    assert [int(draws) for draws in loaded.state.constants] == list(range(12))
    assert (loaded.state.means.tolist(), loaded.state.squares.tolist()) == ([0, 0, 0], [1, 1, 1])
    assert float(loaded.state.num_steps) == 4.0
    assert loaded.progress == small_checkpoint().progress


@pytest.fixture(scope="module")
def ruinous() -> Trainer:
    """A learning rate of 1 ruins a network at once."""
    training = {"epochs": 5, "learning_rate": 1.0, "early_stopping_patience_epochs": 2}
    return Trainer(tiny_profile("dense_newest", training=training))


def test_training_that_never_helps_keeps_the_untrained_network(ruinous: Trainer) -> None:
    """Epoch 0 wins and patience ends the training."""
    data = demo_data(ruinous.profile)
    result = fit(ruinous, data, seed=1)
    assert (result.best_epoch, result.stopped_by, len(result.history)) == (0, "early stopping", 2)
    first = ruinous.network_weights(ruinous.first_state([FleetMember(data, 1)]).take(0).weights)
    assert all(np.array_equal(a, b) for a, b in zip(result.weights, first, strict=True))


@pytest.mark.parametrize(("compile_s", "num_programs"), [(0.0, 2), (1e9, 1)])
def test_a_second_fleet_moves_to_a_smaller_program_only_for_more_than_compiling_it_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compile_s: float, num_programs: int
) -> None:
    """A later fleet of the same size has nothing to compile itself, and must not take that for free."""
    trainer = Trainer(tiny_profile("dense_newest", training={"epochs": 3}))
    data = demo_data(trainer.profile)
    ended = tmp_path / "ended.npz"
    fit(trainer, data, seed=1, checkpoint=ended)
    dict(trainer.fit_fleet([FleetMember(data, 1), FleetMember(data, 2)]))
    trainer.compile_s = dict.fromkeys(trainer.compile_s, compile_s)
    sizes = []
    copied = _FleetFit._copy_tables
    monkeypatch.setattr(
        _FleetFit, "_copy_tables", lambda fleet, data: [sizes.append(len(data)), copied(fleet, data)]
    )
    dict(trainer.fit_fleet([FleetMember(data, 1, checkpoint=ended), FleetMember(data, 2)]))
    assert len(sizes) == num_programs


def test_a_loss_that_is_no_number_stops_the_series_with_a_reason(ruinous: Trainer) -> None:
    data = prepare_series(demo_table(ruinous.profile), ruinous.profile)
    data.inputs_NF[200] = np.nan
    with pytest.raises(DivergedError, match=r"BTCUSDT-15m: .* in epoch 1\. Lower"):
        fit(ruinous, data, seed=1)
