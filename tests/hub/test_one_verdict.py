"""Every view of a run gives each series and task one best baseline, one number and one verdict."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from ledger_entries import ISSUER, made_entry, made_score

from v8.app import answers
from v8.app.places import ModelSnapshot
from v8.artifacts.metadata import Metadata, read_metadata
from v8.artifacts.run_folder import read_run
from v8.evaluation.leaderboard import LEADERBOARD_FILE
from v8.ledger.database import Ledger
from v8.ledger.record import live_record
from v8.market.series import Series
from v8.reports.card import model_card
from v8.reports.first_screen import change
from v8.reports.outputs import REPORT_FILE, RunOutputs
from v8.tasks import TASKS
from v8.wording import number

pytestmark = pytest.mark.tf  # the run has a real Keras file

NAMES = ("BTCUSDT-15m", "ETHUSDT-15m", "BTCUSDT-1h", "ETHUSDT-1h")
SHARES = {"BTCUSDT-15m": 0.25, "ETHUSDT-15m": 0.02, "BTCUSDT-1h": -0.02, "ETHUSDT-1h": -0.25}
BEST_AT = {"15m": "offset", "1h": "last_close"}
TITLES = {task: each.title for task, each in TASKS.items()}


@pytest.fixture
def run(make_run: Any) -> Path:
    """A run in which another baseline errs least on the validation span of each timeframe.

    On the test spans all of them err alike, and those of a single series would choose yet another one.
    """
    folder: Path = make_run(NAMES, shares=SHARES)
    for name in NAMES:
        metadata = read_metadata(folder / name)
        evaluation = metadata.evaluation.to_json()
        best = BEST_AT[name.rpartition("-")[2]]
        evaluation["validation_mae"] = {
            task: {baseline: 0.01 if baseline == best else 0.02 for baseline in each["significance"]}
            for task, each in evaluation["tasks"].items()
        }
        if name == "ETHUSDT-1h":
            evaluation["validation_mae"]["ohlc"] |= {"offset": 0.0099}
        make_run.change(folder, name, evaluation=evaluation)
    RunOutputs(folder, pytest.fail).write()
    return folder


@pytest.fixture
def leaderboard(run: Path) -> dict[str, dict[str, str]]:
    with (run / LEADERBOARD_FILE).open(newline="", encoding="utf-8") as file:
        return {row["series"]: row for row in csv.DictReader(file)}


@pytest.fixture
def metadata(run: Path) -> dict[str, Metadata]:
    return {name: read_metadata(run / name) for name in NAMES}


def test_the_validation_spans_of_a_timeframe_choose_one_baseline(
    leaderboard: dict[str, dict[str, str]],
) -> None:
    found = {
        (name.rpartition("-")[2], row[f"{task}_best_baseline"])
        for name, row in leaderboard.items()
        for task in TASKS
    }
    assert found == set(BEST_AT.items())


def test_forecasts_say_what_the_leaderboard_says(
    leaderboard: dict[str, dict[str, str]], metadata: dict[str, Metadata]
) -> None:
    for name, row in leaderboard.items():
        for task, quality in metadata[name].quality.items():
            assert quality["best_baseline"] == row[f"{task}_best_baseline"]
            assert quality["relative_mae_to_best"] == pytest.approx(
                float(row[f"{task}_relative_mae_to_best"])
            )
            assert quality["verdict_against_best"] == row[f"{task}_verdict_against_best"]
            assert quality["verdict"] == row[f"{task}_verdict"]


def test_the_readme_of_a_series_says_it(run: Path, leaderboard: dict[str, dict[str, str]]) -> None:
    for name, row in leaderboard.items():
        readme = (run / name / "README.md").read_text("utf-8")
        for task in TASKS:
            best = number(float(row[f"{task}_relative_mae_to_best"]))
            cells = [task, number(float(row[f"{task}_relative_mae"])), row[f"{task}_verdict"]]
            cells += [row[f"{task}_best_baseline"], best, row[f"{task}_verdict_against_best"]]
            assert f"| {' | '.join(cells)} |" in re.sub(" +", " ", readme)


def test_the_report_says_it_in_heading_and_table(run: Path, leaderboard: dict[str, dict[str, str]]) -> None:
    page = (run / REPORT_FILE).read_text("utf-8")
    assert "Best baselines: Candles: offset at 15m, last close at 1h; Bollinger bands: " in page
    for name, row in leaderboard.items():
        (heading,) = re.findall(rf"<summary>{name}<span>(.*?)</span></summary>", page)
        for task, title in TITLES.items():
            verdicts = dict.fromkeys((row[f"{task}_verdict"], row[f"{task}_verdict_against_best"]))
            assert f"{title}: {', '.join(verdicts)}" in heading


def test_the_figures_of_the_report_are_medians_of_it(
    run: Path, leaderboard: dict[str, dict[str, str]]
) -> None:
    page = (run / REPORT_FILE).read_text("utf-8")
    for task, title in TITLES.items():
        (card,) = re.findall(rf'<section class="card"><h2[^>]*>{title}</h2>(.*?)</section>', page)
        shown = re.findall(r"<strong[^>]*>(.*?)</strong>", card)
        for column, figure in zip(("relative_mae", "relative_mae_to_best"), shown, strict=True):
            middle = median(float(row[f"{task}_{column}"]) for row in leaderboard.values())
            assert figure == change(middle)
        # The timeframes have different ones, which the pointer names.
        (names,) = re.findall('<span title="([^"]*)">than the best baseline</span>', card)
        assert f"{title}: offset at 15m, last close at 1h" in names


def test_the_live_record_names_it(run: Path, tmp_path: Path) -> None:
    losses = [[1.0, 1.0], [2.0, 2.0], [9.0, 9.0], [9.0, 9.0]]  # on the record naive has the lowest error
    with Ledger.open_to_write(tmp_path / "ledger.sqlite") as ledger:
        for name in ("BTCUSDT-15m", "BTCUSDT-1h"):
            issuer = replace(
                ISSUER,
                place=ledger.place(run),
                series=name,
                bar_s=Series.parse(name).bar_s,
                forecasters=("model", "naive", "offset", "last_close"),
            )
            entry = made_entry(0, issuer)
            assert ledger.add(entry)
            ((number, _),) = ledger.pending(ledger.place(run), name, entry.issued_for_s).items()
            ledger.add_score(number, made_score(losses, entry))
        record = live_record(ledger, run)
    named = {one.series: one.tasks["ohlc"].best.baseline for one in record.series}
    assert named == {"BTCUSDT-15m": "offset", "BTCUSDT-1h": "last_close"}
    (generation,) = record.series[0].generations
    assert generation.tasks["ohlc"].best.baseline == named[record.series[0].series]


def test_the_card_and_the_service_say_it(
    run: Path, leaderboard: dict[str, dict[str, str]], metadata: dict[str, Metadata]
) -> None:
    card = model_card("someone/models", read_run(run), [*metadata.values()], {})
    assert "Best baselines: ohlc: " in card
    folders = {Series.parse(name): run / name for name in NAMES}
    by_series = {Series.parse(name): each for name, each in metadata.items()}
    served = answers.leaderboard(ModelSnapshot("run", None, folders, by_series, {}))["leaderboard"]
    for row in served:
        expected = leaderboard[row["series"]]
        for task, comparisons in row["tasks"].items():
            assert comparisons["best_baseline"]["name"] == expected[f"{task}_best_baseline"]
            assert comparisons["best_baseline"]["verdict"] == expected[f"{task}_verdict_against_best"]
            shown = number(float(expected[f"{task}_relative_mae_to_best"]))
            assert shown in card


def test_a_part_of_a_run_is_published_with_the_verdicts_of_the_run(
    run: Path, metadata: dict[str, Metadata], leaderboard: dict[str, dict[str, str]]
) -> None:
    only = metadata["ETHUSDT-1h"]
    assert only.evaluation.best_baseline("ohlc") == "offset"  # for this series alone
    card = model_card("someone/models", read_run(run), [only], {})
    assert "× last_close" in card
    assert "Candles × offset" not in card
