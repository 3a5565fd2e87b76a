"""Every view of a run gives each series and task one best baseline, one number and one verdict."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledger_entries import ISSUER, made_entry, made_score

import v8
from v8.annexes.live.app import answers
from v8.annexes.live.app.page import whole_record_part
from v8.annexes.live.app.service import ModelSnapshot
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.promotion import ChampionTest
from v8.annexes.live.record import LiveRecord, live_record, own_baseline_sentence
from v8.annexes.live.reporting import record_sentences, record_table
from v8.api.issuing import error_lines
from v8.base.wording import number
from v8.data.market.series import Series
from v8.forecaster.metadata import Metadata, checked_metadata, read_metadata
from v8.model.baselines.baselines import BASELINES, NAIVE
from v8.model.evaluation.evaluation import detect_decay
from v8.model.evaluation.leaderboard import LEADERBOARD_FILE, references
from v8.model.evaluation.significance import Losses
from v8.profile.tasks import TASKS
from v8.publish.hub.publish import publish
from v8.publish.hub.pull import pull
from v8.publish.hub.staging import stage_run
from v8.publish.report.card import model_card
from v8.publish.report.outputs import REPORT_FILE, RunOutputs
from v8.runs.run_folder import read_run

pytestmark = pytest.mark.tf  # the run has a real Keras file

REPO = "someone/models"
HORIZON_BARS = 2
NAMES = ("BTCUSDT-15m", "ETHUSDT-15m", "BTCUSDT-1h", "ETHUSDT-1h")
SHARES = {"BTCUSDT-15m": 0.25, "ETHUSDT-15m": 0.02, "BTCUSDT-1h": -0.02, "ETHUSDT-1h": -0.25}
BEST_AT = {"15m": "offset", "1h": "last_close"}
BEST_IN_WORDS = "naive × a constant (offset) at 15m, last close (last_close) at 1h"
FORECAST = [name for name, task in TASKS.items() if task.is_of_bars]  # by the shipped profiles


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
        assert "of this series alone" not in " ".join(error_lines(metadata[name]))
        content = {key: value for key, value in metadata[name].content.items() if key != "verdict"}
        assert "of this series alone" in error_lines(checked_metadata(content))[-1]


def live(
    place: Path | str,
    file: Path,
    commits: dict[str, str | None],
    baselines: tuple[str, ...] = ("offset", "last_close"),
) -> LiveRecord:
    """Return the record of forecasts of some series, with the commit of each; naive has the lowest error."""
    with Ledger.open_to_write(file) as ledger:
        for name, commit in commits.items():
            issuer = replace(
                ISSUER,
                place=ledger.place(place),
                series=name,
                revision=commit,
                bar_s=Series.parse(name).bar_s,
                forecasters=("model", "naive", *baselines),
            )
            entry = made_entry(0, issuer)
            assert ledger.add(entry)
            ((number, _),) = ledger.pending(ledger.place(place), name, entry.issued_for_s).items()
            losses = [[1.0, 1.0], [2.0, 2.0], *[[9.0, 9.0]] * len(baselines)]
            ledger.add_score(number, made_score(losses, entry))
        return live_record(ledger, place)


def test_the_live_record_of_models_of_the_hub_names_it(run: Path, hub: Any, tmp_path: Path) -> None:
    publish(stage_run(run, tmp_path / "staged", REPO), REPO, is_private=True)
    names = ["ETHUSDT-15m", "ETHUSDT-1h"]
    commit = pull(REPO, names).revision
    hub.stop()  # a record is computed without the Hub
    elsewhere = "BTCUSDT-1h"  # it was not pulled to this machine
    commits: dict[str, str | None] = dict.fromkeys([*names, elsewhere], commit)
    record = live(REPO, tmp_path / "ledger.sqlite", commits)
    named = {one.series: one.tasks["ohlc"].best.baseline for one in record.series}
    assert named == {"ETHUSDT-15m": "offset", "ETHUSDT-1h": "last_close", elsewhere: "naive"}
    assert record.with_own_baseline == [elsewhere]
    assert not record.tasks["ohlc"].is_best_of_run


def test_a_live_record_says_that_it_chose_the_baseline_itself(
    make_run: Any, hub: Any, tmp_path: Path
) -> None:
    older = make_run(NAMES[:1])  # of format 1, which stores no verdict
    publish(stage_run(older, tmp_path / "staged", REPO), REPO, is_private=True)
    commit = pull(REPO).revision
    record = live(REPO, tmp_path / "ledger.sqlite", {NAMES[0]: commit})
    assert record.tasks["ohlc"].best.baseline == "naive"
    assert f"BTCUSDT-15m: {own_baseline_sentence()}" in record_sentences(record)
    assert own_baseline_sentence() in str(whole_record_part(record))


def test_the_card_and_the_service_say_it(
    run: Path, leaderboard: dict[str, dict[str, str]], metadata: dict[str, Metadata]
) -> None:
    card = model_card("someone/models", read_run(run), [*metadata.values()], {})
    assert f"Best baselines: Candles: {BEST_IN_WORDS}; " in card
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


def with_keys(text: str) -> str:
    """Write the keys of baselines for their names in words, the longest first: one begins with another."""
    titles = {baseline.title: name for name, baseline in BASELINES.items() if baseline.title}
    for title in sorted(titles, key=len, reverse=True):
        text = text.replace(title, titles[title])
    return text


def baselines_in(text: str) -> set[str]:
    """Return the baselines that a text names, but for the naive forecast."""
    names = {*BASELINES} - {NAIVE}
    return {name for name in names if re.search(rf"\b{re.escape(name)}\b", text)}


def of_leaderboard(run: Path, metadata: Metadata) -> str:
    with (run / LEADERBOARD_FILE).open(newline="", encoding="utf-8") as file:
        (row,) = [row for row in csv.DictReader(file) if row["series"] == metadata.series]
    return str(row)


def of_report(run: Path, metadata: Metadata) -> str:
    page = (run / REPORT_FILE).read_text("utf-8")
    (heading,) = re.findall(rf"<summary>{metadata.series}<span (.*?)</span></summary>", page)
    return with_keys(heading)


def of_readme(run: Path, metadata: Metadata) -> str:
    text = (run / metadata.series / "README.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith(tuple(f"| {task} " for task in FORECAST))]
    assert len(rows) == len(FORECAST)
    return str(rows)


def of_card(run: Path, metadata: Metadata) -> str:
    card = model_card(REPO, read_run(run), [metadata], {})
    return str(re.findall(r"× ([a-z_]+)", card))


def of_predict(_: Path, metadata: Metadata) -> str:
    return str(metadata.quality)


def of_api(run: Path, metadata: Metadata) -> str:
    series = Series.parse(metadata.series)
    snapshot = ModelSnapshot("run", None, {series: run / metadata.series}, {series: metadata}, {})
    return str(answers.leaderboard(snapshot))


def of_python(run: Path, metadata: Metadata) -> str:
    rows = v8.leaderboard([run])
    return str([*rows.loc[rows["series"] == metadata.series, "best_baseline"]])


def of_live_record(run: Path, metadata: Metadata) -> str:
    record = live(run, run / f"{metadata.series}.sqlite", {metadata.series: None})
    return str([record_table(record).markdown(), *record_sentences(record)])


def of_promotion(_: Path, metadata: Metadata) -> str:
    return str(ChampionTest(metadata.evaluation, {}, {}, references(metadata.verdicts)).best_baselines)


def of_decay(_: Path, metadata: Metadata) -> str:
    drawn = np.random.default_rng(1).uniform(1.0, 2.0, 300)
    losses = dict.fromkeys(metadata.evaluation.errors["ohlc"], drawn)
    losses["model"] = 5.0 * losses["model"]  # worse than all, so the reason names each comparison
    newer = Losses(dict.fromkeys(metadata.evaluation.tasks, losses), np.arange(300), HORIZON_BARS, "since")
    return detect_decay(metadata.evaluation, newer, references(metadata.verdicts))[1]


VIEWS = {
    "leaderboard": of_leaderboard,
    "report": of_report,
    "README of the series": of_readme,
    "card": of_card,
    "predict": of_predict,
    "API": of_api,
    "Python": of_python,
    "live record": of_live_record,
    "promotion": of_promotion,
    "decay": of_decay,
}


def test_no_view_names_another_reference_than_the_run_s(run: Path, metadata: dict[str, Metadata]) -> None:
    for name, metadata_of_series in metadata.items():
        expected = {BEST_AT[name.rpartition("-")[2]]}
        named = {view: baselines_in(of_view(run, metadata_of_series)) for view, of_view in VIEWS.items()}
        assert named == dict.fromkeys(VIEWS, expected), name
