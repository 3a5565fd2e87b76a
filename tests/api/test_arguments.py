"""Wrong arguments of the Python API: one clear error of ours each, which is a ValueError and a TypeError."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import v8
from v8.annexes.search.search import OPTIONS as SEARCH_OPTIONS
from v8.api.results import OPTIONS as BACKTEST_OPTIONS
from v8.api.runs import OPTIONS, train
from v8.base.errors import ArgumentError, DataError, StorageError, V8Error
from v8.cli.app import with_plugins
from v8.cli.commands import run as run_command
from v8.data.features import compute_table
from v8.forecaster.forecaster import SeenCandlesWarning
from v8.runs.options import BacktestOptions

NEVER: tuple[Any, ...] = (object(), 1j, b"BTCUSDT-15m", float("nan"), "x" * 5_000, "a\0b", [1, [object()]])
"""What no argument of the API takes."""

FREE = ("model", "candles", "windows_NTF")
"""Arguments that take lists, too, or anything; each has a test of its own below, or elsewhere."""


class Forecasts:
    """What looks like a model."""

    def predict(self, dataset: Any, verbose: int = 0) -> Any:
        raise AssertionError("no model forecasts before every argument is checked")


@dataclass(frozen=True)
class Call:
    """A function of the API, the names of all its arguments, and values of those that it needs."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    required: dict[str, Any]


@pytest.fixture(scope="module")
def calls(trained_run: Any) -> dict[str, Call]:
    """Every function of the API by its name, but what nobody calls.

    Keys of a Profile are checked as those of a file; nobody calls an error, or makes a board by hand.
    """
    frame = trained_run.candles.to_frame()
    run = v8.Run(trained_run.path)
    forecaster = v8.load(trained_run.path, "BTCUSDT-15m")
    board = v8.evaluate("ewma", frame, trained_run.profile, series="BTCUSDT-15m")
    values = {
        "anchors": np.array([500]),
        "file": "halfway.py",
        "folder": trained_run.folder,
        "forecasts": Forecasts(),
        "frame": board.forecasts,
        "metadata": forecaster.about,
        "name": "mine",
        "profile": trained_run.profile,
        "profiles": [trained_run.profile],
        "repo": "a/b",
        "runs": [trained_run.path],
        "series": "BTCUSDT-15m",
        "table": compute_table(trained_run.candles, forecaster.features),
    }
    values |= dict.fromkeys(("source", "run", "path", "metadata_file"), trained_run.path)
    values |= dict.fromkeys(("model", "windows_NTF"))
    checked = ("predict_joined", "outlook", "outlook_joined", "out_of_range_features")
    candles_of = dict.fromkeys((f"v8.Forecaster.{name}" for name in checked), trained_run.candles)
    owners = {v8: v8, v8.Board: board, v8.Run: run, v8.Forecaster: forecaster}
    others = {"v8.Profile", "v8.V8Error", "v8.Board"}
    others |= {f"v8.Run.{name}" for name in ("get", "items", "keys", "values")}
    further = {"v8.train": OPTIONS, "v8.backtest": BACKTEST_OPTIONS, "v8.search": SEARCH_OPTIONS}
    calls = {}
    for kind, owner in owners.items():
        for member in dir(kind):
            called = f"v8.{member}" if kind is v8 else f"v8.{kind.__name__}.{member}"
            if member.startswith("_") or called in others or not callable(getattr(kind, member)):
                continue
            function = getattr(owner, member)
            parameters = inspect.signature(function).parameters.values()
            names = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
            names += further.get(called, ())
            needed = [one.name for one in parameters if one.default is one.empty and one.name in names]
            required = values | {"candles": candles_of.get(called, frame)}
            calls[called] = Call(function, tuple(names), {name: required[name] for name in needed})
    return calls


@pytest.mark.tf
def test_no_argument_of_any_function_takes_what_it_is_not_for(
    calls: dict[str, Call], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"v8.train", "v8.worth", "v8.Run.publish", "v8.Forecaster.predict", "v8.Board.add"} < calls.keys()
    for called, call in calls.items():
        for name in call.names:
            for wrong in NEVER:
                if name in FREE and (name == "model" or isinstance(wrong, list)):
                    continue
                with pytest.raises(ArgumentError) as caught:
                    call.function(**{**call.required, name: wrong})
                assert str(caught.value).startswith(f"{called}, {name}=: is "), (str(caught.value), wrong)
                assert isinstance(caught.value, ValueError) and isinstance(caught.value, TypeError)
                assert len(str(caught.value)) <= 600 and str(caught.value).isprintable()


@pytest.mark.tf
def test_an_argument_that_nobody_knows_names_the_nearest(calls: dict[str, Call]) -> None:
    for called, call in calls.items():
        for name in call.names:
            wrong = f"{name[:-1]}_"
            with pytest.raises(
                ArgumentError, match=f"{called}: has the arguments .*got one named '{wrong}'"
            ) as caught:
                call.function(**{wrong: None})
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
        (v8.load, "v8.load: has .*missing a required argument: 'source'"),
        (lambda: v8.load("a", "b", "c"), "v8.load: has .*too many positional arguments"),
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
        (lambda: v8.train("demo", scaling="rangd"), "key scaling: .*got 'rangd'. Did you mean ranged"),
        (lambda: v8.train("demo", publish="a/b", evaluate=False), "publish=: .*; got evaluate= "),
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
def test_strides_and_times_that_cannot_be_are_refused(calls: dict[str, Call]) -> None:
    call = calls["v8.Forecaster.forecast_history"]
    history = partial(call.function, **call.required)
    for stride, words in ((1.5, "is a whole number; got 1.5"), (0, "stride=: is greater than or equal to 1")):
        with pytest.raises(ArgumentError, match=words):
            history(stride=stride)
    with pytest.raises(ArgumentError, match="now_s=: is less than 253402300800; got 1000000"):
        history(now_s=10**30)
    for moment in ("soon", pd.NaT, "9999999-01-01"):
        with pytest.raises(DataError, match="time, such as 2024-08-01"):
            history(start=moment)


@pytest.mark.tf
def test_what_fits_is_taken_as_it_is(calls: dict[str, Call]) -> None:
    history = calls["v8.Forecaster.forecast_history"]
    with pytest.warns(SeenCandlesWarning) as told:
        rows = history.function(**history.required, stride=np.int64(50), start=pd.Timestamp("2000-01-01"))
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


def test_help_shows_a_kind_without_its_limits() -> None:
    parameters = inspect.signature(v8.backtest).parameters
    assert parameters["folds"].annotation is int
    assert parameters["history"].annotation == int | None


def test_every_option_of_the_command_backtest_is_an_argument_in_python() -> None:
    ours = {*inspect.signature(v8.backtest).parameters, *BACKTEST_OPTIONS}
    assert {*BacktestOptions.model_fields} - {"source", "data_dir"} <= ours  # these follow from `candles`


@pytest.mark.tf
def test_what_is_shown_of_it_is_what_there_is(calls: dict[str, Call], trained_run: Any) -> None:
    assert [*v8.__all__] == sorted(v8.__all__)
    assert dir(v8) == sorted([*v8.__all__, "compare", "search", "worth"])
    assert all(getattr(v8, name) for name in dir(v8)) and v8.__version__
    run = v8.Run(trained_run.path)
    forecaster = calls["v8.Forecaster.predict"].function.__self__
    for thing in (run, run["BTCUSDT-15m"], forecaster, v8.Profile.of("frontier")):
        assert {"predict", "leaderboard", "history", "but"} & {*dir(thing)}
        assert not [name for name in dir(thing) if name.startswith("_")]
    assert not {"model_dump", "model_config", "copy"} & {*dir(v8.Profile.of("frontier"))}
    assert repr(run).endswith(": 1 series>")
