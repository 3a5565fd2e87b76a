"""The main job as a user meets it: what a run leaves, and what a second call does with it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from v8.data.features import compute_table
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.forecaster.forecaster import Forecaster

pytestmark = pytest.mark.process

GOOD = ("BTCUSDT-15m", "ETHUSDT-1h")
BROKEN = "DOGEUSDT-1h"  # its file has no rows
MISSING = "ADAUSDT-1h"  # it has no file: the source has never heard of it
Snapshot = Callable[[Path], dict[str, bytes]]
Completed = subprocess.CompletedProcess[str]


def run_json(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text())


def test_g10_one_series_without_candles_leaves_the_others_whole_and_exits_4(
    trained: tuple[Any, Completed],
) -> None:
    place, done = trained
    assert done.returncode == 4, done.stdout + done.stderr
    states = run_json(place.run)["series"]
    assert [states[name]["status"] for name in (*GOOD, BROKEN)] == ["done", "done", "failed"]
    assert "DOGEUSDT-1h" in states[BROKEN]["reason"]
    trace = (place.run / BROKEN / "error.txt").read_text()
    assert trace.startswith("Traceback")
    assert "v8.base.errors.DataError" in trace
    assert "1 series failed" in done.stdout
    assert "2 series trained now, 0 finished before, 1 failed." in done.stdout
    # The last lines: where it all lies, and what to do with it.
    *_, report, folder, forecast = done.stdout.splitlines()
    page = (place.run / "report.html").as_uri()
    assert report == f"Report: {page}"
    # There was something to look at as soon as one series was finished, and each says what it is worth.
    lines = done.stdout.splitlines()
    (told,) = (number for number, line in enumerate(lines) if line.endswith(f"as series end: {page}"))
    ended = [
        number
        for number, line in enumerate(lines)
        if " than the naive forecast, " in line and " ended" in line
    ]
    assert len(ended) == 2
    assert ended[0] < told < ended[1]
    assert folder == f"Run folder: {place.run}"
    assert forecast.startswith(f"Forecast: python -m v8 predict {place.run} --source files ")
    assert "Publish:" not in done.stdout  # not while a series has failed


def test_a_finished_series_has_the_files_of_an_artefact_and_nothing_else(
    trained: tuple[Any, Completed],
) -> None:
    place, _ = trained
    for name in GOOD:
        assert sorted(path.name for path in (place.run / name).iterdir()) == [
            "README.md",
            "forecasts.json",
            "history.csv",
            "metadata.json",
            "model.keras",
            "test_losses.npz",
        ]


def test_output_that_is_no_terminal_is_plain_lines_without_control_characters(
    trained: tuple[Any, Completed],
) -> None:
    _, done = trained
    assert "BTCUSDT-15m: started (" in done.stdout
    assert ": epoch " not in done.stdout  # without --verbose one a minute, and it takes seconds
    assert all(character.isprintable() or character == "\n" for character in done.stdout)
    assert done.stderr == ""


@pytest.mark.tf
def test_g20_metadata_holds_seed_versions_digests_and_the_data_cut_off(
    trained: tuple[Any, Completed],
) -> None:
    place, _ = trained
    metadata = json.loads((place.run / "ETHUSDT-1h" / "metadata.json").read_text())
    # ETHUSDT-1h is number 3 of the universe (BTC 15m, BTC 1h, ETH 15m, ETH 1h): seed 7 + 3.
    assert metadata["seed"] == 10
    assert set(metadata["versions"]) == {"python", "v8", "keras", "tensorflow", "numpy", "pandas"}
    assert metadata["versions"]["keras"] == keras.__version__
    candles = metadata["candles"]
    # The demo market's newest candle closes at 2025-01-01T00:00 UTC.
    assert candles["last_open"] == "2024-12-31T23:00:00+00:00"
    assert (candles["source"], candles["is_publishable"], candles["num_bars"]) == ("files", True, 400)
    assert len(candles["digest"]) == len(metadata["profile_digest"]) == len(metadata["model_sha256"]) == 64
    assert candles["digest"] == run_json(place.run)["series"]["ETHUSDT-1h"]["candles"]["digest"]
    assert [feature["name"] for feature in metadata["features"]] == metadata["profile"]["features"]
    assert metadata["machine"]["num_cores"] >= 1
    assert metadata["training"]["epochs_run"] == 12
    assert metadata["scaling"]["columns"][3]["name"] == "close"
    assert metadata["calibration"]["kind"] == "ensemble"
    factors = {task["task"]: task["factors"] for task in metadata["calibration"]["tasks"]}
    assert {task: len(values) for task, values in factors.items()} == dict.fromkeys(
        metadata["profile"]["tasks"], metadata["horizon_bars"]
    )
    assert all(0 <= factor <= 1 for values in factors.values() for factor in values)
    assert set(metadata["seconds"]) >= {"candles", "features", "windows", "train", "evaluate", "save"}


@pytest.mark.tf
def test_g15_the_one_loader_gives_the_prices_of_plain_keras(trained: tuple[Any, Completed]) -> None:
    place, _ = trained
    folder = place.run / "BTCUSDT-15m"
    forecaster = Forecaster.load(folder)
    candles = open_source("demo").candles(Series.parse("BTCUSDT-15m"), 400)
    table = compute_table(candles, forecaster.features)
    window = table.select(forecaster.features)[-20:][None]
    plain = keras.saving.load_model(folder / "model.keras", compile=False, safe_mode=True)
    expected = plain.predict(window, verbose=0)
    ours = forecaster.forecast(window)
    assert set(ours) == {"ohlc", "volatility"}
    for task in ours:
        np.testing.assert_array_equal(ours[task], expected[task])
    ahead = forecaster.predict(candles)
    assert [str(time) for time in ahead.index] == ["2025-01-01 00:00:00+00:00", "2025-01-01 00:15:00+00:00"]
    np.testing.assert_array_equal(ahead["close"].to_numpy(), expected["ohlc"][0, :, 3].astype(np.float64))


def test_g12_a_second_call_trains_nothing_and_says_so(workplace: Any, snapshot: Snapshot) -> None:
    before = snapshot(workplace.run / "BTCUSDT-15m")
    again = workplace.call(workplace.words(*GOOD))
    assert again.returncode == 0, again.stderr
    assert "2 of 2 series " in again.stdout
    assert "0 series trained now, 2 finished before, 0 failed." in again.stdout
    assert "epoch" not in again.stdout.replace("best epoch", "")
    assert snapshot(workplace.run / "BTCUSDT-15m") == before


def test_the_page_of_a_run_is_opened_on_request(workplace: Any) -> None:
    opened = workplace.folder / "opened"
    workplace.env["BROWSER"] = f"sh -c 'echo %s >> {opened}'"
    again = workplace.call(workplace.words(*GOOD, more=("--open",)))
    assert again.returncode == 0, again.stderr
    assert opened.read_text() == f"{(workplace.run / 'report.html').as_uri()}\n"
    workplace.env["BROWSER"] = "false"
    none = workplace.call(workplace.words(*GOOD, more=("--open",)))
    assert none.returncode == 0
    assert none.stderr.splitlines()[-1].startswith("There is no browser ")


def test_newer_candles_do_not_disturb_a_run_that_is_pinned(workplace: Any) -> None:
    file = workplace.candles / "BTCUSDT-15m.csv"
    last = file.read_text().splitlines()[-1].partition(",")[2]
    file.write_text(file.read_text() + f"2025-01-01 00:00:00+00:00,{last}\n")
    again = workplace.call(workplace.words("BTCUSDT-15m"))
    assert again.returncode == 0, again.stderr
    assert "0 series trained now, 1 finished before" in again.stdout
    assert "BTCUSDT-15m has 1 new candle from 2025-01-01T00:00:00Z on" in again.stdout
    words = f": python -m v8 update {workplace.run} --data-dir {workplace.candles}"
    assert words in again.stdout


def test_a_changed_candle_is_refused_before_any_training_with_a_hint_to_fresh(
    workplace: Any, snapshot: Snapshot
) -> None:
    file = workplace.candles / "BTCUSDT-15m.csv"
    lines = file.read_text().splitlines()
    cells = lines[200].split(",")
    cells[5] = str(float(cells[5]) * 2)  # twice the volume: a plausible candle, but another one
    lines[200] = ",".join(cells)
    file.write_text("\n".join(lines) + "\n")
    artefacts = snapshot(workplace.run / "BTCUSDT-15m")
    again = workplace.call(workplace.words("BTCUSDT-15m"))
    assert again.returncode == 3
    (told,) = [line for line in again.stdout.splitlines() if line.startswith("failed: BTCUSDT-15m: ")]
    assert "was started with 400 candles" in told
    assert "--fresh" in told
    assert again.stderr == ""
    assert snapshot(workplace.run / "BTCUSDT-15m") == artefacts


def test_a_changed_profile_is_refused_by_key_with_a_hint_to_fresh(workplace: Any) -> None:
    workplace.change_profile("batch_size", 16)
    again = workplace.call(workplace.words("BTCUSDT-15m", more=("--epochs", "13")))
    assert again.returncode == 2
    assert "training.batch_size 8 -> 16, training.epochs 12 -> 13" in again.stderr
    assert "--fresh" in again.stderr


def test_a_model_file_that_is_not_the_recorded_one_is_refused(workplace: Any) -> None:
    file = workplace.run / "BTCUSDT-15m" / "model.keras"
    file.write_bytes(file.read_bytes() + b"x")
    again = workplace.call(workplace.words("BTCUSDT-15m"))
    assert again.returncode == 3
    assert f"{file}: " in again.stdout


def test_g9_missing_candles_make_an_error_and_no_model(workplace: Any) -> None:
    alone = workplace.call(workplace.words(BROKEN))
    assert alone.returncode == 3  # every series asked for lacks candles: the source is at fault
    fresh = workplace.call(workplace.words(BROKEN, more=("--fresh",)))
    assert fresh.returncode == 3
    folder = workplace.runs / "tiny-2" / BROKEN
    assert [path.name for path in folder.iterdir()] == ["error.txt"]


def test_g9_a_series_without_a_file_is_an_error_and_does_not_enter_the_run(workplace: Any) -> None:
    alone = workplace.call(workplace.words(MISSING))
    assert alone.returncode == 3
    assert "needs a file" in " ".join((alone.stdout + alone.stderr).split())
    assert MISSING not in run_json(workplace.run)["series"]
    assert not (workplace.run / MISSING).exists()


def test_g11_a_fresh_run_lies_beside_the_old_one_which_stays_as_it_was(
    workplace: Any, snapshot: Snapshot
) -> None:
    before = snapshot(workplace.run)
    workplace.call(workplace.words(BROKEN, more=("--fresh",)))
    workplace.call(workplace.words(BROKEN, more=("--fresh",)))
    assert sorted(path.name for path in workplace.runs.iterdir()) == ["tiny", "tiny-2", "tiny-3"]
    assert snapshot(workplace.run) == before
    newest = workplace.call(workplace.words(BROKEN))
    assert "tiny-3" in newest.stdout


def test_g16_a_run_writes_only_where_it_is_told_to(trained: tuple[Any, Completed]) -> None:
    place, _ = trained
    assert sorted(path.name for path in place.folder.iterdir()) == ["candles", "home", "runs", "tiny.yaml"]


def test_a_dry_run_prints_the_plan_and_touches_nothing(workplace: Any, snapshot: Snapshot) -> None:
    before = snapshot(workplace.folder)
    plan = workplace.call(workplace.words(*GOOD, BROKEN, MISSING, more=("--dry-run",)))
    assert plan.returncode == 4, plan.stderr
    assert "1 series would fail" in plan.stdout and f"{MISSING} from files: " in plan.stdout
    # 400 bars - 19 of warm-up = 381 rows; 381 - 2 x 22 embargo = 337 usable, of which 70 % are 236;
    # 236 - 22 + 1 = 215 train windows; 51 and 50 rows give 30 and 29.
    assert "215/30/29, in 400 candles" in plan.stdout
    assert "done" in plan.stdout
    assert "failed" in plan.stdout
    # One series is left of those that the run before trained two of.
    assert "about" in plan.stdout.partition("Estimated time: ")[2]
    assert "evaluating and saving included: " in plan.stdout
    assert snapshot(workplace.folder) == before


def test_report_redraws_what_was_lost(workplace: Any) -> None:
    board = (workplace.run / "leaderboard.csv").read_text()
    for name in ("leaderboard.csv", "report.html", "timing.json"):
        (workplace.run / name).unlink()
    redrawn = workplace.call(["report", str(workplace.run)])
    assert redrawn.returncode == 0, redrawn.stderr
    assert (workplace.run / "leaderboard.csv").read_text() == board
    assert "BTCUSDT-15m" in (workplace.run / "report.html").read_text()
    assert json.loads((workplace.run / "timing.json").read_text())["num_series"] == 2
