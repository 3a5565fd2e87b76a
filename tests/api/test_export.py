"""Every forecast of a test span in a table: those that were evaluated; none knows what came later."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny_profiles import tiny_ranged_profile
from typer.testing import CliRunner, Result

from v8.base.storage import write_json
from v8.cli.app import app
from v8.data.market.candles import pin_of
from v8.data.market.series import Series
from v8.data.market.sources import folder_of, open_source
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import read_metadata
from v8.runs.events import RunObserver
from v8.runs.local import InProcessEngine
from v8.runs.plan import Job, Recipe
from v8.runs.run_folder import RunFolder, RunRecord, read_run

pytestmark = pytest.mark.tf

BAR = pd.Timedelta(minutes=15)
OHLC = ["open", "high", "low", "close"]


def export(*words: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, words)])


@pytest.fixture(scope="module")
def exported(trained_run: Any, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    file = tmp_path_factory.mktemp("exported") / "all.parquet"
    done = export(trained_run.path, "--out", file, "--data-dir", trained_run.candles_dir)
    assert done.exit_code == 0, done.output
    table = pd.read_parquet(file)
    assert f"Written: {file}, {len(table):,} rows." in done.stdout
    return table


def test_the_errors_of_what_is_exported_are_those_that_were_evaluated(
    trained_run: Any, exported: pd.DataFrame
) -> None:
    metadata = read_metadata(trained_run.folder)
    evaluated = metadata.evaluation
    tasks = {task: list(one.columns) for task, one in metadata.tasks.items()}
    assert list(tasks) == ["ohlc", "bands", "volatility"]
    assert len(exported) == evaluated.num_windows * evaluated.horizon_bars
    # A naive close is the last close, which errors are shares of.
    closes = exported[["close_naive"]].to_numpy().astype(np.float32).astype(np.float64)
    for task, columns in tasks.items():
        for who, end in {"model": "", "naive": "_naive"}.items():
            made, actual = (exported[[f"{name}{each}" for name in columns]] for each in (end, "_actual"))
            if task == "ohlc":  # of which evaluations read the prices from a table of float32
                actual = actual.astype(np.float32).astype(np.float64)
                made = made.astype(np.float32).astype(np.float64) if end else made
            errors = np.abs(made.to_numpy() - actual.to_numpy()) / (1.0 if task == "volatility" else closes)
            assert errors.mean() == pytest.approx(evaluated.error(task, who).overall, rel=1e-9)


def test_a_row_is_what_could_be_forecast_at_its_issue_and_no_earlier(
    trained_run: Any, exported: pd.DataFrame
) -> None:
    forecaster = Forecaster.load(trained_run.folder)
    candles = trained_run.candles
    assert (exported["open_time"] == exported["issued_at"] + (exported["step"] - 1) * BAR).all()
    assert int(exported["issued_at"].min().timestamp()) >= forecaster.trained_until_s
    issues = exported["issued_at"].unique()
    for issued_at in (issues[0], issues[len(issues) // 2], issues[-1]):
        closed_s = int(issued_at.timestamp())
        earlier = candles.select_rows(np.flatnonzero(candles.open_time_s + 900 <= closed_s))
        assert int(earlier.open_time_s[-1]) + 900 == closed_s  # the newest closed just then
        mine = exported[exported["issued_at"] == issued_at].set_index("open_time")
        alone = forecaster.predict(earlier)
        pd.testing.assert_frame_equal(mine[[*alone]], alone, check_freq=False)
        assert (mine["close_naive"] == earlier.column("close")[-1]).all()


def test_actual_values_is_what_the_candles_tell(trained_run: Any, exported: pd.DataFrame) -> None:
    frame = trained_run.candles.to_frame()
    frame.index = pd.to_datetime(trained_run.candles.open_time_s, unit="s", utc=True)
    came = frame.loc[exported["open_time"], OHLC].to_numpy()
    # To the last digit: float32 has 82556.328125 for 82556.33.
    np.testing.assert_array_equal(exported[[f"{name}_actual" for name in OHLC]].to_numpy(), came)
    assert (came != came.astype(np.float32)).any()
    assert exported.columns[:5].tolist() == ["series", "fold", "issued_at", "step", "open_time"]
    assert set(exported["series"]) == {"BTCUSDT-15m"} and set(exported["fold"]) == {0}


def test_a_csv_holds_the_same_and_other_endings_are_refused(
    trained_run: Any, exported: pd.DataFrame, tmp_path: Path
) -> None:
    words = (trained_run.path, "--data-dir", trained_run.candles_dir, "--series", "btc/usdt-15m", "--out")
    assert export(*words, tmp_path / "all.txt", "--format", "csv").exit_code == 0
    read = pd.read_csv(tmp_path / "all.txt", parse_dates=["issued_at", "open_time"])
    pd.testing.assert_frame_equal(read, exported, check_dtype=False)
    refused = export(*words, tmp_path / "all.xlsx")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: --out, its ending: ")
    contradiction = export(*words, tmp_path / "table.csv", "--format", "parquet")
    assert contradiction.exit_code == 2 and contradiction.stderr.startswith("error: --out: ")
    assert "table.parquet" in contradiction.stderr and not (tmp_path / "table.csv").exists()
    assert len(refused.stderr.splitlines()) == 1
    assert export(*words, tmp_path / "new" / "all.csv").exit_code == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["all.txt"]


def test_other_candles_and_series_that_are_not_there_are_refused(trained_run: Any, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "all.parquet")
    frame = trained_run.candles.to_frame()
    frame.iloc[300, frame.columns.get_loc("volume")] += 1
    (tmp_path / "candles").mkdir()
    frame.to_csv(tmp_path / "candles" / "BTCUSDT-15m.csv")
    other = export(trained_run.path, *out, "--data-dir", tmp_path / "candles")
    assert other.exit_code == 3
    assert " 700 candles from " in other.stderr
    assert "Name where these are: --source, --data-dir, --tables" in other.stderr
    nobody = export(trained_run.path, *out, "--series", "BTCUSD-15m")
    assert nobody.exit_code == 3
    assert "; got none of BTCUSD-15m" in nobody.stderr
    unnamed = export(trained_run.path, *out)
    assert unnamed.exit_code == 2
    assert "; got no --data-dir" in unnamed.stderr
    assert not (tmp_path / "all.parquet").exists()


NOBODYS = (
    b"mine,and,nobody's\n1,2,3\n",
    b"series,fold,issued_at,step,open_time,close,close_truth,close_naive,my_signal\n",
    b"",
    b"PAR1 no table at all PAR1",
)
"""Files that v8 did not write; the second is a table of forecasts to which its user added a column."""


def test_a_file_that_v8_did_not_write_is_replaced_only_with_overwrite(
    trained_run: Any, tmp_path: Path
) -> None:
    words = (trained_run.path, "--data-dir", trained_run.candles_dir, "--out")
    for form in ("csv", "parquet"):
        file = tmp_path / f"precious.{form}"
        for content in NOBODYS:
            file.write_bytes(content)
            refused = export(*words, file)
            assert refused.exit_code == 2
            assert re.fullmatch(
                f"error: --out: .*; got another file at {file}. .* --overwrite .*\n", refused.stderr
            )
            assert file.read_bytes() == content
    assert export(*words, file, "--overwrite").exit_code == 0
    ours = file.read_bytes()
    # Now v8 wrote it, wherever it is put.
    moved = file.rename(tmp_path / "moved.parquet")
    assert export(*words, moved).exit_code == 0
    assert moved.read_bytes() == ours
    for _ in range(2):
        assert export(*words, tmp_path / "mine.csv").exit_code == 0
    frame = pd.read_parquet(moved)
    frame.assign(signal=1.0).to_parquet(moved)
    assert export(*words, moved).exit_code == 2
    (tmp_path / "link.csv").symlink_to(tmp_path / "precious.csv")
    assert export(*words, tmp_path / "link.csv").exit_code == 2


def test_a_back_test_leaves_a_file_of_others_where_its_forecasts_should_lie(
    trained_run: Any, tmp_path: Path
) -> None:
    file = tmp_path / "all.csv"
    file.write_text("precious")
    words = ("--forecasts", file, "--out", tmp_path / "folds", "--data-dir", trained_run.candles_dir)
    result = CliRunner().invoke(app, ["backtest", *map(str, words), "--source", "files"])
    assert result.exit_code == 2, result.output
    assert f"; got another file at {file}." in result.stderr
    assert "or add --overwrite to replace it." in result.stderr
    assert file.read_text() == "precious"
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


def with_states(run: Path, states: dict[str, Any]) -> None:
    content = json.loads((run / "run.json").read_text())
    content["series"] |= states
    write_json(run / "run.json", content)


def test_what_failed_or_is_being_redone_is_named_and_the_others_are_written(
    trained_run: Any, exported: pd.DataFrame, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    file = tmp_path / "all.parquet"
    shutil.copytree(trained_run.path, run)
    failed = {"status": "failed", "reason": "ETHUSDT-15m: the loss was no number."}
    with_states(run, {"ETHUSDT-15m": failed, "SOLUSDT-15m": {"status": "pending"}})
    words = (run, "--data-dir", trained_run.candles_dir, "--out", file)
    done = export(*words)
    assert done.exit_code == 4
    text = " ".join(done.stdout.split())
    # The title of the table is wrapped where the path is too long for a line.
    assert f"Written:{file},{len(exported):,}rows.2missingin{file}" in "".join(done.stdout.split())
    assert "ETHUSDT-15m ETHUSDT-15m: the loss" in text
    assert "SOLUSDT-15m it is not trained" in text
    pd.testing.assert_frame_equal(pd.read_parquet(file), exported)
    named = export(*words, "--series", "BTCUSDT-15m")
    assert (named.exit_code, "missing" in named.stdout) == (0, False)
    both = export(*words, "--series", "BTCUSDT-15m", "--series", "ETHUSDT-15m")
    assert (both.exit_code, "1 missing in" in both.stdout) == (4, True)
    nobody = export(*words, "--series", "ETHUSDT-15m")
    assert nobody.exit_code == 3
    assert "; got none of ETHUSDT" in nobody.stderr


LEAPING = Series("LEAPUSDT", "15m")
SOUND = Series("SOUNDUSDT", "15m")


@pytest.fixture(scope="module")
def leaping_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two series of files; in the test span of one the price leaps three hundredfold within a bar."""
    home = tmp_path_factory.mktemp("leaping")
    profile = tiny_ranged_profile(training={"epochs": 1})
    frame = open_source("demo").candles(Series("BTCUSDT", "15m"), profile.newest_bars).to_frame()
    (home / "candles").mkdir()
    frame.to_csv(home / "candles" / f"{SOUND}.csv")
    prices = ["open", "high", "low", "close"]
    frame.iloc[-40:, frame.columns.get_indexer(prices)] *= 300.0
    leap = frame.index[-40]
    frame.loc[leap, ["open", "low"]] = frame["close"].iloc[-41]
    frame.loc[leap, "high"] = frame.loc[leap, ["high", "close"]].max()
    frame.to_csv(home / "candles" / f"{LEAPING}.csv")
    source = open_source("files", data_dir=home / "candles")
    record = RunRecord.begin(profile, "files", True, "python -m v8 run", data_dir=folder_of(source))
    with pytest.MonkeyPatch.context() as patch, RunFolder(home / "run", record) as folder:
        patch.setenv("V8_HOME", str(home / "caches"))
        candles = [source.candles(series, profile.newest_bars) for series in (LEAPING, SOUND)]
        jobs = [
            Job(Recipe(profile, is_publishable=True), each, 7, home / "run" / str(each.series))
            for each in candles
        ]
        outcomes = InProcessEngine().train(jobs, RunObserver())
        for each, outcome in zip(candles, outcomes, strict=True):
            assert outcome.reason is None, outcome.trace
            folder.pin(each.series, pin_of(each))
            folder.set_state(each.series, status="done")
    yield home / "run"


def test_windows_across_a_leap_are_left_out_and_counted_and_every_series_is_written(
    leaping_run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "all.csv"
    done = export(leaping_run, "--out", file)  # the record knows the folder of the candles
    assert done.exit_code == 0, done.output
    note, written = done.stdout.splitlines()
    table = pd.read_csv(file, parse_dates=["issued_at", "open_time"])
    assert written == f"Written: {file}, {len(table):,} rows."
    issues = table.groupby("series")["issued_at"].nunique()
    num_left_out = issues[str(SOUND)] - issues[str(LEAPING)]
    assert 0 < num_left_out < 40
    assert note.startswith(f"LEAPUSDT-15m: {num_left_out} of {issues[str(SOUND)]} windows, issued from ")
    assert " left out: bb_lower -" in note
    assert (table[["open", "high", "low", "close", "bb_upper", "bb_lower"]] > 0).all(axis=None)


def test_a_run_exports_from_the_folder_that_it_read_last(leaping_run: Path, tmp_path: Path) -> None:
    candles = leaping_run.parent / "candles"
    assert read_run(leaping_run).data_dir == str(candles)
    words = (leaping_run, "--series", str(SOUND), "--out")
    assert export(*words, tmp_path / "one.csv").exit_code == 0
    # Continued with the same candles elsewhere, it knows the new place; with others it keeps the old one.
    moved = shutil.copytree(candles, tmp_path / "moved")
    copied = shutil.copytree(leaping_run, tmp_path / "run")
    source = open_source("files", data_dir=moved)
    record = read_run(copied)
    profile = read_metadata(copied / str(SOUND)).trained_profile
    begun = RunRecord.begin(profile, "files", True, record.command, data_dir=folder_of(source))
    with RunFolder(copied, begun) as folder:
        assert folder.record.data_dir == str(candles)
        folder.pin(SOUND, pin_of(source.candles(SOUND, profile.newest_bars)))
    assert read_run(copied).data_dir == str(candles)  # nothing was kept since
    with RunFolder(copied, begun) as folder:
        folder.pin(SOUND, pin_of(source.candles(SOUND, profile.newest_bars)))
        folder.save_record()
    assert read_run(copied).data_dir == str(moved)
