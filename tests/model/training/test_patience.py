"""Early stopping and plateaus follow Keras' own callbacks."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.model.training.progress import LossPatience
from v8.profile.profile import load_profile

TRAINING = load_profile("aligned").training.model_copy(
    update={"early_stopping_patience_epochs": 4, "reduce_lr_patience_epochs": 2}
)


class KerasCallbacks:
    """The two stock callbacks, driven by hand on a model with one weight."""

    def __init__(self) -> None:
        self.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        self.model.compile(keras.optimizers.SGD(TRAINING.learning_rate), "mse")
        self.stopping = keras.callbacks.EarlyStopping("val_loss", patience=4)
        self.plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=2)
        for callback in (self.stopping, self.plateau):
            callback.set_model(self.model)
            callback.on_train_begin()

    def after(self, epoch: int, loss: float) -> tuple[float, bool]:
        for callback in (self.stopping, self.plateau):
            callback.on_epoch_end(epoch - 1, {"val_loss": loss})
        return float(self.model.optimizer.learning_rate), bool(self.model.stop_training)


CALLBACKS = KerasCallbacks()


@pytest.mark.tf
@settings(deadline=None, max_examples=60)
@given(losses=st.lists(st.sampled_from([1.0, 0.9, 0.89995, 0.8, 0.7, 0.69, 1.1]), min_size=1, max_size=16))
def test_rates_and_stops_equal_the_callbacks_epoch_by_epoch(losses: list[float]) -> None:
    CALLBACKS.model.optimizer.learning_rate.assign(TRAINING.learning_rate)
    CALLBACKS.model.stop_training = False
    for callback in (CALLBACKS.stopping, CALLBACKS.plateau):
        callback.on_train_begin()
    # Infinity lets the first epoch win, as it does in Keras, which has no epoch 0.
    patience = LossPatience(TRAINING.learning_rate, best_loss=float("inf"))
    for epoch, loss in enumerate(losses, 1):
        patience = patience.after(epoch, loss, TRAINING)
        rate, is_stopped = CALLBACKS.after(epoch, loss)
        assert np.float32(patience.learning_rate) == np.float32(rate)
        assert patience.is_out(TRAINING) == is_stopped
        if is_stopped:
            break
    assert patience.best_loss == CALLBACKS.stopping.best


def test_the_untrained_network_competes_as_epoch_0() -> None:
    patience = LossPatience(1e-3, best_loss=0.5)
    for epoch in range(1, 5):
        patience = patience.after(epoch, 0.6, TRAINING)
    assert (patience.best_epoch, patience.best_loss, patience.is_out(TRAINING)) == (0, 0.5, True)
