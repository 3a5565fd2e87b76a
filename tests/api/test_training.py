"""Training from Python is the command in a process of its own: same weights, same errors."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import keras
import pandas as pd
import pytest
from forked import called
from typer.testing import CliRunner

import v8
from v8.api.arguments import stored_frames, stored_tables, with_others
from v8.api.runs import TrainedSeries
from v8.base.errors import ArtifactError, DataError, ProfileError
from v8.cli.app import app
from v8.data.market.companions import Companions
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.profile.profile import Profile, load_profile

SETTLED = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "XLA_FLAGS")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture(scope="module")
def runs(trained_run: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[v8.Run, Path]:
    """A run of a frame, and of the same candles from a file by the command line."""
    place = tmp_path_factory.mktemp("door")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("V8_HOME", str(place / "home"))
        frame = trained_run.candles.to_frame()
        run = v8.train({"BTCUSDT-15m": frame}, trained_run.profile, runs="python", progress=False)
        (profile,) = (place / "home" / "profiles").iterdir()
        words = ["run", "--profile", profile, "--source", "files", "--data-dir", trained_run.candles_dir]
        words += ["--series", "BTCUSDT-15m", "--runs", place / "shell"]
        called(*words, cwd=place, tf=True).check_returncode()
    return run, place / "shell" / "tiny"


@pytest.mark.tf
@pytest.mark.process
def test_a_frame_trains_to_the_weights_of_the_command_line(runs: tuple[v8.Run, Path]) -> None:
    run, shell = runs
    files = (path / "BTCUSDT-15m" / "model.keras" for path in (run.path, shell))
    ours, theirs = (keras.saving.load_model(file).get_weights() for file in files)
    assert all((one == other).all() for one, other in zip(ours, theirs, strict=True))


@pytest.mark.tf
@pytest.mark.process
def test_the_forecasts_of_a_run_of_a_frame_are_exported_without_naming_its_folder(
    runs: tuple[v8.Run, Path], tmp_path: Path
) -> None:
    run, shell = runs
    assert Path(str(run.record.data_dir)).parent.name == "frames"
    for path in (run.path, shell):
        words = ["export", str(path), "--out", str(tmp_path / f"{path.parent.name}.csv")]
        exported = CliRunner().invoke(app, words)
        assert exported.exit_code == 0, exported.output
    assert (tmp_path / "python.csv").read_bytes() == (tmp_path / "shell.csv").read_bytes()


@pytest.fixture(scope="module")
def unevaluated(runs: tuple[v8.Run, Path], trained_run: Any) -> v8.Run:
    """A run of the same frame that was not evaluated, of a profile that was changed by keyword."""
    place = runs[1].parent.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("V8_HOME", str(place / "home"))
        frame = {"BTCUSDT-15m": trained_run.candles.to_frame()}
        return v8.train(
            frame,
            trained_run.profile,
            runs="python",
            progress=False,
            evaluate=False,
            early_stopping_patience_epochs=9,
        )


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.process
def test_a_profile_changed_by_keyword_is_a_run_of_its_own(
    unevaluated: v8.Run, runs: tuple[v8.Run, Path]
) -> None:
    run = runs[0]
    place = runs[1].parent.parent
    changed = run.record.profile | {"name": unevaluated.record.profile_name}
    changed["training"] = changed["training"] | {"early_stopping_patience_epochs": 9}
    assert (
        unevaluated.record.profile == changed
        and unevaluated.record.profile_digest != run.record.profile_digest
    )
    assert unevaluated.path.name == f"{unevaluated.record.profile_name}-unevaluated"
    assert re.fullmatch(r"tiny-but-[0-9a-f]{8}", unevaluated.record.profile_name)
    assert unevaluated.path.parent == run.path.parent == place / "python"
    assert " --no-evaluate" in unevaluated.record.command and not run.record.plugins
    assert run.record.is_evaluated and not unevaluated.record.is_evaluated


@pytest.mark.tf
@pytest.mark.process
def test_a_model_that_is_not_evaluated_is_the_same_and_never_looks_evaluated(
    unevaluated: v8.Run, runs: tuple[v8.Run, Path], trained_run: Any, monkeypatch: Any
) -> None:
    files = (run.path / "BTCUSDT-15m" / "model.keras" for run in (runs[0], unevaluated))
    ours, theirs = (keras.saving.load_model(file).get_weights() for file in files)
    assert all((one == other).all() for one, other in zip(ours, theirs, strict=True))
    one = unevaluated["BTCUSDT-15m"]
    assert len(one.forecaster.predict(trained_run.candles.to_frame())) == 3
    for told in (unevaluated, one.forecaster):
        assert repr(told).endswith(", not evaluated>") and "naive" not in told._repr_html_()
    assert "It was not evaluated" in (one.folder / "README.md").read_text()
    assert not (unevaluated.path / "leaderboard.csv").exists()
    for ask in (lambda: unevaluated.leaderboard, lambda: one.evaluation, lambda: unevaluated.publish("a/b")):
        with pytest.raises(ArtifactError, match="got no evaluation"):
            ask()
    page = (unevaluated.path / "report.html").read_text()
    assert "this run were not evaluated" in page.replace("\n", "") and "Leaderboard" not in page


@pytest.mark.tf
@pytest.mark.process
def test_no_command_shows_it_as_evaluated(unevaluated: v8.Run, trained_run: Any, monkeypatch: Any) -> None:
    for name in SETTLED:
        monkeypatch.setenv(name, os.environ.get(name, ""))  # a command sets what is not set
    files = ("--source", "files", "--data-dir", str(trained_run.candles_dir))
    for command, more, code, said in (
        ("report", (), 0, "Not evaluated: "),
        ("predict", (*files, "--series", "BTCUSDT-15m", "--allow-old"), 0, "It was not evaluated"),
        ("publish", ("--repo", "a/b", "--partial"), 3, "; got no evaluation"),
    ):
        result = CliRunner().invoke(app, [command, str(unevaluated.path), *more])
        assert (result.exit_code, said in result.output) == (code, True), result.output
    refused = called("app", unevaluated.path, *files, tf=True)  # its end closes what it listens on
    assert (refused.returncode, "; got no evaluation" in refused.stderr) == (3, True), refused.stderr


@pytest.mark.tf
@pytest.mark.process
def test_a_run_shows_its_tables(runs: tuple[v8.Run, Path]) -> None:
    run, _ = runs
    assert list(run) == ["BTCUSDT-15m"]
    assert run.leaderboard.loc["BTCUSDT-15m", "ohlc_relative_mae"] > 0
    errors = run["BTCUSDT-15m"].evaluation
    assert {"model", "naive"} <= set(errors["forecaster"])
    assert errors.query("task == 'ohlc' and forecaster == 'model'").pivot(
        index="step", columns="column", values="mae_return"
    ).shape == (3, 4)
    assert run["BTCUSDT-15m"].history["validation_loss"].notna().all()
    assert "BTCUSDT-15m" in run._repr_html_()
    assert run.report.exists()


@pytest.mark.tf
@pytest.mark.process
def test_the_same_call_again_trains_nothing(
    runs: tuple[v8.Run, Path], trained_run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(runs[1].parent.parent)
    monkeypatch.setenv("V8_HOME", str(runs[1].parent.parent / "home"))
    frame = trained_run.candles.to_frame()
    v8.train(frame, trained_run.profile, series="BTCUSDT-15m", runs="python")
    assert "1 finished before" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["another frame", "cut", "empty"])
def test_a_frame_that_was_stored_is_written_again_where_its_file_holds_something_else(
    home: Path, damage: str
) -> None:
    demo = open_source("demo")
    frames = [demo.candles(Series(name, "1h"), 400).to_frame() for name in ("ETHUSDT", "BTCUSDT")]
    folders = [stored_frames({"ETHUSDT-1h": frame}) for frame in frames]
    files = [folder / "ETHUSDT-1h.parquet" for folder in folders]
    sound = files[0].read_bytes()
    written_ns = files[0].stat().st_mtime_ns
    assert stored_frames({"ETHUSDT-1h": frames[0]}) == folders[0]
    assert files[0].stat().st_mtime_ns == written_ns  # a sound one stays
    content = {"another frame": files[1].read_bytes(), "cut": sound[:-100], "empty": b""}[damage]
    files[0].write_bytes(content)
    assert stored_frames({"ETHUSDT-1h": frames[0]}) == folders[0]
    assert files[0].read_bytes() == sound


@pytest.mark.process
@pytest.mark.tf
def test_covariates_in_memory_are_laid_where_the_command_finds_them(home: Path) -> None:
    table = {"file": "f.csv", "time": "time", "columns": ("rate",), "available_after_s": 0, "max_age_s": 9}
    known = load_profile("frontier").model_dump()
    names = (*known["features"], "BTCUSDT.range_20", "csv.rate")
    profile = Profile.model_validate(known | {"features": names, "covariates": (table,)})
    demo = open_source("demo")
    own, other = (demo.candles(Series(name, "1h"), 400).to_frame() for name in ("ETHUSDT", "BTCUSDT"))
    covariates = {"BTCUSDT": other, "f.csv": {"time": [1_700_000_000], "rate": [0.5]}}
    chosen = ["ETHUSDT-1h"]
    frames = with_others(own, chosen, profile, covariates)
    assert [*frames] == ["ETHUSDT-1h", "BTCUSDT-1h"] and chosen == ["ETHUSDT-1h"]
    folder = stored_tables(Companions.of(profile, covariates).tables)
    assert (folder / "f.csv").read_text() == "time,rate\n1700000000000000,0.5\n"
    (folder / "f.csv").write_text("time,rate\n1700000000000000,0.7\n")
    stored_tables(Companions.of(profile, covariates).tables)
    assert (folder / "f.csv").read_text() == "time,rate\n1700000000000000,0.5\n"
    # The same through the door: one candle for each row of the table there is none.
    with pytest.raises(DataError, match=r"covariates f.csv; got none of 400, 2024"):
        v8.train(own, profile, series="ETHUSDT-1h", covariates=covariates, runs="runs", progress=False)
    for candles, others in (
        ("vision", {"BTCUSDT": other}),
        ({"A-1h": own, "A-15m": own}, {"BTCUSDT": other}),
    ):
        with pytest.raises(ProfileError, match="only together with frames"):
            v8.train(candles, profile, covariates=others)
    with pytest.raises(DataError, match=r": BTCUSDT, f.csv; got 'BTCUSD'"):
        v8.train(own, profile, series="ETHUSDT-1h", covariates={"BTCUSD": other})


@pytest.mark.process
@pytest.mark.tf
def test_a_mistake_that_the_other_process_finds_is_told_with_the_argument(home: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        v8.train("demo", workers="many", series="BTCUSDT-1h", progress=False)
    assert caught.value.where == "workers="
    with pytest.raises(ProfileError, match="series=: names the one series"):
        v8.train(pd.DataFrame({"close": [1.0]}), progress=False)


def test_a_formula_has_a_history_without_epochs(tmp_path: Path) -> None:
    (tmp_path / "history.csv").write_text("epoch,train_loss,validation_loss,seconds\n")
    history = TrainedSeries(tmp_path).history
    assert (len(history), [*history], history.index.name) == (0, ["train_loss", "validation_loss"], "epoch")
