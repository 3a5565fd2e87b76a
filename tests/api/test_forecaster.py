"""A forecaster in a notebook: evaluated on unseen candles, drawn, described, fed with plain Keras."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

import v8
from v8.base.errors import DataError, PublishError
from v8.forecaster.forecaster import SeenCandlesWarning
from v8.model.evaluation.evaluation import Evaluation

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def forecaster(trained_run: Any) -> v8.Forecaster:
    return v8.load(trained_run.path, "BTCUSDT-15m")


def test_on_the_test_span_evaluating_gives_the_errors_that_were_evaluated(
    forecaster: v8.Forecaster, trained_run: Any
) -> None:
    start = forecaster.metadata["split"]["test"]["first_open"]
    lookback = pd.Timedelta(forecaster.series.bar_s * forecaster.lookback_bars, "s")
    evaluation = forecaster.evaluation(trained_run.candles, start=pd.Timestamp(start) + lookback)
    evaluated = Evaluation.from_json(forecaster.metadata["evaluation"])
    assert evaluation.num_windows == evaluated.num_windows
    for task in evaluated.tasks:
        assert evaluation.error(task).overall == pytest.approx(evaluated.error(task).overall, rel=1e-6)
        assert evaluation.error(task, "naive").overall == pytest.approx(
            evaluated.error(task, "naive").overall, rel=1e-12
        )


def test_evaluating_begins_behind_what_training_has_seen(forecaster: v8.Forecaster, trained_run: Any) -> None:
    errors = forecaster.evaluate(trained_run.candles.to_frame())
    assert {"model", "naive", "har"} <= set(errors["forecaster"])
    with pytest.raises(DataError) as refused:
        forecaster.evaluate(trained_run.candles.to_frame().tail(200))
    assert refused.value.where == "BTCUSDT-15m, evaluate"
    assert refused.value.got == "0 after it and 0 before it"


def test_a_back_test_over_seen_candles_says_so(forecaster: v8.Forecaster, trained_run: Any) -> None:
    with pytest.warns(SeenCandlesWarning, match="candles of the training"):
        forecaster.forecast_history(trained_run.candles, stride=50)
    forecaster.forecast_history(
        trained_run.candles, start=pd.Timestamp(forecaster.trained_until_s, unit="s", tz="UTC")
    )


def test_features_are_what_plain_keras_is_fed_with(forecaster: v8.Forecaster, trained_run: Any) -> None:
    frame = trained_run.candles.to_frame()
    window = v8.features(frame, trained_run.profile).to_numpy(np.float32)[-forecaster.lookback_bars :]
    model = keras.saving.load_model(trained_run.folder / "model.keras")
    prices = model.predict(window[None], verbose=0)["ohlc"][0]
    assert prices == pytest.approx(
        forecaster.predict(frame)[["open", "high", "low", "close"]].to_numpy(), rel=1e-5
    )


def test_it_is_drawn_and_described(forecaster: v8.Forecaster, trained_run: Any) -> None:
    figure = forecaster.plot(trained_run.candles)
    assert "BTCUSDT-15m" in figure.layout.title.text
    assert "the next 3 candles" in repr(forecaster)
    assert "verdict" in forecaster._repr_html_()


@pytest.mark.nightly
@pytest.mark.process
def test_loading_starts_tensorflow_without_a_word_and_leaves_standard_error_alone(trained_run: Any) -> None:
    program = "import sys, v8; v8.load(sys.argv[1], sys.argv[2]); sys.stderr.write('mine')"
    env = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    words = [sys.executable, "-c", program, str(trained_run.path), "BTCUSDT-15m"]
    process = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "mine")


def test_only_a_model_of_a_run_is_pushed(forecaster: v8.Forecaster) -> None:
    forecaster.folder, folder = None, forecaster.folder
    with pytest.raises(PublishError, match="the run that trained"):
        forecaster.push_to_hub("someone/fleet")
    forecaster.folder = folder
