"""Wrong arguments of the Python API: one clear error of ours each, which is a ValueError and a TypeError."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import v8
from v8.api.runs import OPTIONS, train
from v8.base.errors import ArgumentError, DataError, StorageError, V8Error
from v8.cli.app import with_plugins
from v8.cli.commands import run as run_command
from v8.data.features import compute_table
from v8.forecaster.forecaster import SeenCandlesWarning

NEVER: tuple[Any, ...] = (object(), 1j, b"BTCUSDT-15m", float("nan"), "x" * 5_000, "a\0b", [1, [object()]])
"""What no argument of the API takes."""

FREE = ("model", "candles", "windows_NTF")
"""Arguments that take lists, too, or anything; each has a test of its own below, or elsewhere."""


class Forecasts:
    """What looks like a model."""

    def predict(self, dataset: Any, verbose: int = 0) -> Any:
        raise AssertionError("no model forecasts before every argument is checked")


@pytest.fixture(scope="module")
def calls(trained_run: Any) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Every function of the API with arguments that it takes."""
    frame = trained_run.candles.to_frame()
    forecaster = None
    run = v8.Run(trained_run.path)
    forecaster = v8.load(trained_run.path, "BTCUSDT-15m")
    profile = trained_run.profile
    series = "BTCUSDT-15m"
    candles = {"candles": frame}
    board = v8.evaluate("ewma", frame, profile, series=series)
    return {
        "v8.load": (v8.load, {"source": trained_run.path, "series": series, "revision": None}),
        "v8.train": (
            v8.train,
            {"candles": frame, "profile": profile, "series": series, "covariates": None, "runs": "runs"}
            | dict.fromkeys(("fresh", "progress", "evaluate"), False)
            | dict.fromkeys(OPTIONS),
        ),
        "v8.backtest": (
            v8.backtest,
            {
                "candles": "demo",
                "profile": profile,
                "series": series,
                "folds": 2,
                "column": "close",
                "out": "b",
            }
            | {"history": None, "bars": None, "epochs": None, "progress": False},
        ),
        "v8.export": (
            v8.export,
            {"run": trained_run.path, "series": series, "column": "close", "source": None, "data_dir": None}
            | {"tables": None, "progress": False},
        ),
        "v8.leaderboard": (v8.leaderboard, {"runs": [trained_run.path]}),
        "v8.worth": (
            v8.worth,
            {"run": trained_run.path, "series": series, "fee_bps": 1.0, "spread_bps": 1.0, "target_pct": 40.0}
            | {"max_leverage": 2.0, "source": None, "data_dir": None, "tables": None, "progress": False},
        ),
        "v8.search": (
            v8.search,
            {"candles": "demo", "profile": profile, "trials": 1, "hours": None, "ranges": None, "folds": 3}
            | {"later": 2, "series": series, "history": None, "bars": None, "out": "s", "progress": False},
        ),
        "v8.compare": (
            v8.compare,
            {"profiles": [profile], "candles": "demo", "series": series, "bars": None, "epochs": None}
            | {
                "full": False,
                "repeat": 1,
                "baseline": None,
                "out": "c",
                "overwrite": False,
                "progress": False,
            },
        ),
        "v8.plugin": (v8.plugin, {"file": "halfway.py"}),
        "v8.features": (v8.features, {**candles, "profile": profile, "series": series, "covariates": None}),
        "v8.windows": (
            v8.windows,
            {**candles, "profile": profile, "series": series, "covariates": None}
            | {"span": "train", "batch_size": None, "seed": None},
        ),
        "v8.evaluate": (
            v8.evaluate,
            {**candles, "forecasts": Forecasts(), "profile": profile, "series": series, "column": None}
            | {"covariates": None, "about": None, "runs": "runs"},
        ),
        "v8.Board.add": (board.add, {"name": "mine", "frame": board.forecasts, "about": None}),
        "v8.Board.load": (v8.Board.load, {"folder": "boards/mine"}),
        "v8.Board.save": (board.save, {"folder": "boards/mine"}),
        "v8.Run": (v8.Run, {"path": trained_run.path}),
        "v8.Run.publish": (run.publish, {"repo": "a/b", "private": False}),
        "v8.Forecaster": (
            v8.Forecaster,
            {"metadata": forecaster.about, "model": None, "metadata_file": "x", "revision": None},
        ),
        "v8.Forecaster.load": (v8.Forecaster.load, {"folder": trained_run.folder, "revision": None}),
        "v8.Forecaster.from_pretrained": (
            v8.Forecaster.from_pretrained,
            {"repo": "a/b", "series": series, "revision": None},
        ),
        "v8.Forecaster.predict": (
            forecaster.predict,
            {**candles, "covariates": None, "now_s": None, "max_age_bars": None},
        ),
        "v8.Forecaster.predict_joined": (forecaster.predict_joined, {"candles": trained_run.candles}),
        "v8.Forecaster.outlook": (
            forecaster.outlook,
            {"candles": trained_run.candles, "now_s": None, "max_age_bars": None},
        ),
        "v8.Forecaster.outlook_joined": (forecaster.outlook_joined, {"candles": trained_run.candles}),
        "v8.Forecaster.paths": (
            forecaster.paths,
            {**candles, "num_paths": 8, "seed": 1, "covariates": None, "now_s": None},
        ),
        "v8.Forecaster.out_of_range_features": (
            forecaster.out_of_range_features,
            {"candles": trained_run.candles},
        ),
        "v8.Forecaster.forecast_history": (
            forecaster.forecast_history,
            {**candles, "covariates": None, "stride": 50, "start": None, "end": None, "now_s": None},
        ),
        "v8.Forecaster.forecast": (forecaster.forecast, {"windows_NTF": None}),
        "v8.Forecaster.forecast_all": (forecaster.forecast_all, {"windows_NTF": None}),
        "v8.Forecaster.forecast_after": (
            forecaster.forecast_after,
            {"table": compute_table(trained_run.candles, forecaster.features), "anchors": np.array([500])},
        ),
        "v8.Forecaster.forecast_usable": (
            forecaster.forecast_usable,
            {"table": compute_table(trained_run.candles, forecaster.features), "anchors": np.array([500])},
        ),
        "v8.Forecaster.evaluate": (forecaster.evaluate, {**candles, "start": None, "covariates": None}),
        "v8.Forecaster.evaluation": (forecaster.evaluation, {**candles, "start": None, "covariates": None}),
        "v8.Forecaster.plot": (forecaster.plot, {**candles, "covariates": None}),
        "v8.Forecaster.companions": (forecaster.companions, {"covariates": None}),
        "v8.Forecaster.joined": (
            forecaster.joined,
            {**candles, "covariates": None, "now_s": None, "reaches": False},
        ),
        "v8.Forecaster.push_to_hub": (forecaster.push_to_hub, {"repo": "a/b", "private": False}),
    }


@pytest.mark.tf
def test_every_public_function_is_among_those_calls(calls: Any) -> None:
    # Keys of a Profile are checked as those of a file; nobody calls an error, or makes a board by hand.
    public = {f"v8.{name}" for name in dir(v8)} - {"v8.Profile", "v8.V8Error", "v8.Board"}
    for kind in (v8.Board, v8.Run, v8.Forecaster):
        names = [name for name in dir(kind) if not name.startswith("_")]
        members = {name for name in names if callable(getattr(kind, name))}
        public |= {f"v8.{kind.__name__}.{name}" for name in members - {"get", "items", "keys", "values"}}
    assert public == calls.keys()


@pytest.mark.tf
def test_no_argument_of_any_function_takes_what_it_is_not_for(
    calls: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for called, (function, good) in calls.items():
        for name in good:
            for wrong in NEVER:
                if name in FREE and (name == "model" or isinstance(wrong, list)):
                    continue
                with pytest.raises(ArgumentError) as caught:
                    function(**{**good, name: wrong})
                assert str(caught.value).startswith(f"{called}, {name}=: is "), (str(caught.value), wrong)
                assert isinstance(caught.value, ValueError) and isinstance(caught.value, TypeError)
                assert len(str(caught.value)) <= 600 and str(caught.value).isprintable()


@pytest.mark.tf
def test_an_argument_that_nobody_knows_names_the_nearest(calls: Any) -> None:
    for called, (function, good) in calls.items():
        misspelt = {f"{name[:-1]}_": value for name, value in good.items()}
        for name, wrong in zip(good, misspelt, strict=True):
            with pytest.raises(
                ArgumentError, match=f"{called}: has the arguments .*got one named '{wrong}'"
            ) as caught:
                function(**{wrong: good[name]})
            assert "Did you mean" in str(caught.value) or len(name) < 5, str(caught.value)


@pytest.mark.tf
def test_a_place_that_the_system_refuses_is_told_in_our_words() -> None:
    with pytest.raises(StorageError) as refused:
        v8.Run("a" * 300)
    assert refused.value.got == "File name too long"


@pytest.mark.process
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: v8.load(None), "v8.load, source=: .*; got None"),
        (lambda: v8.load("x" * 5_000), "is of 1 to 4,096 printable letters; got 'xx.* of 5,000 letters"),
        (v8.load, "v8.load: takes .*missing a required argument: 'source'"),
        (lambda: v8.load("a", "b", "c"), "v8.load: takes .*too many positional arguments"),
        (lambda: v8.train("demo", series=5), "v8.train, series=: .*; got 5"),
        (lambda: v8.train("demo", bars=True), "v8.train, bars=: .*; got True"),
        (
            lambda: v8.train("demo", "frontier", learning_rate=3),
            "profile frontier, key training.learning_rate: .* 1; got 3",
        ),
        (
            lambda: v8.train("demo", learnin_rate=1e-3),
            "got one named 'learnin_rate'. Did you mean learning_rate=",
        ),
        (
            lambda: v8.train("demo", scaling="rangd"),
            "key scaling: .*got 'rangd'. Did you mean ranged",
        ),
        (
            lambda: v8.train("demo", publish="a/b", evaluate=False),
            "publish=: .*; got evaluate= ",
        ),
        (lambda: v8.Profile(name="mine"), "profile mine, key .*; got no such key"),
        (lambda: v8.Profile.of("fronteer"), "profile fronteer: .*Did you mean frontier"),
        (lambda: v8.train("demo", ephocs=3), "got one named 'ephocs'. Did you mean epochs="),
    ],
)
def test_errors_speak_python(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert "--" not in str(caught.value) and "python -m" not in str(caught.value)


@pytest.mark.tf
def test_strides_and_times_that_cannot_be_are_refused(calls: Any) -> None:
    history, good = calls["v8.Forecaster.forecast_history"]
    for stride, words in ((1.5, "is a whole number; got 1.5"), (0, "stride=: is greater than or equal to 1")):
        with pytest.raises(ArgumentError, match=words):
            history(**{**good, "stride": stride})
    with pytest.raises(ArgumentError, match="now_s=: is less than 253402300800; got 1000000"):
        history(**{**good, "now_s": 10**30})
    for moment in ("soon", pd.NaT, "9999999-01-01"):
        with pytest.raises(DataError, match="time, such as 2024-08-01"):
            history(**{**good, "start": moment})


@pytest.mark.tf
def test_what_fits_is_taken_as_it_is(calls: Any) -> None:
    history, good = calls["v8.Forecaster.forecast_history"]
    with pytest.warns(SeenCandlesWarning) as told:
        rows = history(**{**good, "stride": np.int64(50), "start": pd.Timestamp("2000-01-01")})
    assert len(rows) and told[0].filename == __file__


@pytest.mark.tf
def test_a_run_is_a_mapping_that_says_no(trained_run: Any) -> None:
    run = v8.Run(trained_run.path)
    assert "BTCUSDT-15m" in run and "ETHUSDT-15m" not in run and 5 not in run
    assert run.get("ETHUSDT-15m") is None
    with pytest.raises(V8Error) as refused:
        run["ETHUSDT-15m"]
    assert refused.value.got == "BTCUSDT-15m"


def test_other_options_of_the_command_are_arguments_of_train() -> None:
    ours = {name for name in inspect.signature(train).parameters if name not in ("candles", "options")}
    shell = set(inspect.signature(with_plugins(run_command)).parameters) - {"source", "data_dir", "dry_run"}
    shell -= {"is_list", "opens", "is_verbose", "lang"}  # what a terminal shows, and in which language
    shell -= {"profile_argument"}  # the same as --profile
    assert shell == (ours - {"covariates", "progress"}) | OPTIONS.keys()


@pytest.mark.tf
def test_what_is_shown_of_it_is_what_there_is(calls: Any, trained_run: Any) -> None:
    assert [*v8.__all__] == sorted(v8.__all__)
    assert dir(v8) == sorted([*v8.__all__, "compare", "search", "worth"])
    assert all(getattr(v8, name) for name in dir(v8)) and v8.__version__
    run = v8.Run(trained_run.path)
    forecaster = calls["v8.Forecaster.predict"][0].__self__
    for thing in (run, run["BTCUSDT-15m"], forecaster, v8.Profile.of("frontier")):
        assert {"predict", "leaderboard", "history", "but"} & {*dir(thing)}
        assert not [name for name in dir(thing) if name.startswith("_")]
    assert not {"model_dump", "model_config", "copy"} & {*dir(v8.Profile.of("frontier"))}
    assert repr(run).endswith(": 1 series>")
