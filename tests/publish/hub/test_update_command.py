"""A run that keeps itself current: challenged, killed, continued, decided, published, as a user does it.

One update is done for real: it is killed while it trains, called again, and publishes what serves. Every
other test decides anew on a copy of what it left, with the weights of one side hurt, which trains nothing.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
import pytest
from forked import Forked
from run_doubles import EngineOf
from typer.testing import CliRunner

from v8.annexes.live.entries import Entry, Issuer, Score
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.promotion import NOT_TRAINED, Decision, read_promotions
from v8.annexes.live.renewal import GenerationResult, Renewal, StalenessReport, StalenessRule
from v8.base.errors import ArtifactError
from v8.base.storage import digest_file, write_json
from v8.cli.app import app
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.model.baselines.baselines import reference_baseline
from v8.model.evaluation import significance
from v8.publish.hub.publish import publish
from v8.publish.hub.staging import stage_run
from v8.publish.report.outputs import ReportWriter
from v8.runs.events import RunObserver, SeriesOutcome
from v8.runs.local import InProcessEngine
from v8.runs.plan import Engine, Job
from v8.runs.serving import served_folder
from v8.runs.stages import CHECKPOINT

pytestmark = [pytest.mark.nightly, pytest.mark.tf, pytest.mark.process]

REPO = "someone/tiny"
BTC = "BTCUSDT-15m"
NUM_NEW = 250
"""More new candles than the test span of 700 has."""


@dataclass(frozen=True)
class Drilled:
    """What the update left, and said.

    Args:
        run: The run folder; tests copy it before they change anything.
        candles: The folder of its candles, newer ones included.
        generation: The generation that it trained.
        after_kill: The folder that served after the kill.
        states: What `run.json` of the generation said of the series then.
        output: What the second call printed.
    """

    run: Path
    candles: Path
    generation: str
    after_kill: Path
    states: str
    output: str


def append_candles(file: Path, num_bars: int) -> None:
    """Let the market go on: its first moves come again after its last ones."""
    old = pd.read_csv(file, parse_dates=["open_time"])
    new = old.iloc[:num_bars].copy()
    step = old["open_time"].iloc[1] - old["open_time"].iloc[0]
    new["open_time"] += old["open_time"].iloc[-1] + step - old["open_time"].iloc[0]
    prices = ["open", "high", "low", "close"]
    new[prices] *= old["close"].iloc[-1] / old["open"].iloc[0]
    pd.concat([old, new]).to_csv(file, index=False)


def hurt(artefact: Path) -> None:
    """Make a model much worse, in a way that its own records know nothing of."""
    import keras

    model = keras.saving.load_model(artefact / "model.keras", compile=False)
    model.set_weights([weights * 5.0 if weights.ndim > 1 else weights for weights in model.get_weights()])
    model.save(artefact / "model.keras")
    change(artefact, model_sha256=digest_file(artefact / "model.keras"))


def change(artefact: Path, **changes: Any) -> None:
    content = json.loads((artefact / "metadata.json").read_text())
    write_json(artefact / "metadata.json", content | changes)


@pytest.fixture(scope="module", autouse=True)
def few_windows() -> Iterator[None]:
    """Test differences of the tiny run, too: it has 48 windows that neither model was trained on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(significance, "MIN_WINDOWS", 24)
        yield


@pytest.fixture(scope="module")
def drilled(
    few_windows: None, trained_run: Any, module_hub: Any, tmp_path_factory: pytest.TempPathFactory
) -> Drilled:
    home = tmp_path_factory.mktemp("updated")
    run = Path(shutil.copytree(trained_run.path, home / "runs" / "tiny"))
    candles = Path(shutil.copytree(trained_run.candles_dir, home / "candles"))
    append_candles(candles / f"{BTC}.csv", NUM_NEW)
    hurt(run / BTC)
    publish(stage_run(run, home / "staged", REPO), REPO, is_private=False)
    words = ("update", str(run), "--data-dir", str(candles), "--workers", "1")
    killed = Forked(words, tf=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while killed.poll() is None and not list(run.glob(f"generations/*/{BTC}/{CHECKPOINT}")):
        time.sleep(0.05)
    assert killed.returncode is None, "it must be killed while it trains"
    killed.kill()
    killed.wait()
    (generation,) = (path.name for path in (run / "generations").iterdir())
    states = json.loads((run / "generations" / generation / "run.json").read_text())["series"]
    after_kill = served_folder(run, BTC)
    again = CliRunner().invoke(app, [*words, "--publish", REPO])
    assert again.exit_code == 0, again.output
    return Drilled(run, candles, generation, after_kill, states[BTC]["status"], again.output)


def test_killed_while_it_trains_the_old_model_serves_on_and_the_next_call_finishes_what_was_begun(
    drilled: Drilled,
) -> None:
    assert (drilled.after_kill, drilled.states) == (drilled.run / BTC, "running")
    assert [path.name for path in (drilled.run / "generations").iterdir()] == [drilled.generation]
    # The archive's newest candle is that of the demo market, 2024-12-31T23:45Z, and 250 candles more.
    assert drilled.generation == "2025-01-03"
    (decision,) = read_promotions(drilled.run).decisions
    assert "an earlier call" in decision.stale
    assert decision.challenger.trained_until == "2025-01-03T14:15:00+00:00"


def test_the_better_model_serves_and_every_number_stands_beside_naive_and_the_best_baseline(
    drilled: Drilled,
) -> None:
    served = drilled.run / "generations" / drilled.generation / BTC
    assert served_folder(drilled.run, BTC) == served
    (decision,) = read_promotions(drilled.run).decisions
    assert decision.is_replaced
    assert [*decision.baselines] == [*decision.champion.relative_mae] == ["ohlc", "bands", "volatility"]
    new, old = (mean(each.relative_mae.values()) for each in (decision.challenger, decision.champion))
    assert new < old
    title = "MAE relative to naive on candles that neither was trained on"
    assert title in " ".join(drilled.output.split())
    assert f"{BTC}: the challenger serves; " in drilled.output
    leaderboard = (drilled.run / "leaderboard.csv").read_text()
    evaluated = json.loads((served / "metadata.json").read_text())["evaluation"]["num_windows"]
    assert len(leaderboard.splitlines()) == 2
    assert evaluated >= decision.num_windows > 0


def test_publishing_is_one_commit_that_says_what_changed_and_why(drilled: Drilled, module_hub: Any) -> None:
    first, second = module_hub.commits(REPO)
    assert first.description == ""
    assert second.description.startswith(
        f"{BTC}: model from candles up to 2025-01-03 14:15, its test part included, "
        "in place of 2024-12-31 23:45. Stale: "
    )
    assert "Chosen: its error" in second.description
    served = served_folder(drilled.run, BTC)
    assert second.files[f"models/{BTC}/model.keras"].content == (served / "model.keras").read_bytes()
    card = second.files["README.md"].content.decode()
    assert "## What was renewed" in card
    assert f"| {BTC} | 2025-01-03 14:15 | 2024-12-31 23:45 |" in card
    assert "## What was renewed" not in first.files["README.md"].content.decode()


# Decided anew on copies


@pytest.fixture
def copied(drilled: Drilled, tmp_path: Path) -> Drilled:
    """The same run before anything was decided; nothing of it has to be trained."""
    run = Path(shutil.copytree(drilled.run, tmp_path / "runs" / "tiny"))
    (run / "serving.json").unlink()
    candles = Path(shutil.copytree(drilled.candles, tmp_path / "candles"))
    return replace(drilled, run=run, candles=candles)


def renewal_of(place: Drilled, rule: StalenessRule = StalenessRule()) -> Renewal:  # noqa: B008 - it is frozen
    return Renewal(place.run, open_source("files", data_dir=place.candles), rule, "python -m v8 update")


def train_nothing(jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
    raise AssertionError("there is nothing to train")


NO_ENGINE = EngineOf(train_nothing)


def decide(place: Drilled, engine: Engine = NO_ENGINE) -> Decision:
    """Finish the generation of a place, and return the one decision."""
    observer = ReportWriter()
    (renewed,) = renewal_of(place).renew([Series.parse(BTC)], engine, observer)
    assert isinstance(renewed, GenerationResult)
    (decision,) = renewed.decisions
    assert read_promotions(place.run).decisions == (decision,)
    assert (served_folder(place.run, BTC) == challenger_of(place)) == decision.is_replaced
    return decision


def challenger_of(place: Drilled) -> Path:
    return place.run / "generations" / place.generation / BTC


def level(place: Drilled) -> None:
    """Make the champion the same model as the challenger, from before the candles that evaluate both."""
    for name in ("model.keras", "metadata.json"):
        shutil.copy(challenger_of(place) / name, place.run / BTC / name)
    split = json.loads((place.run / BTC / "metadata.json").read_text())["split"]
    split["validation"]["last_open"] = "2024-12-01T00:00:00+00:00"
    change(place.run / BTC, split=split)


def test_a_champion_that_is_better_stays(copied: Drilled) -> None:
    level(copied)
    hurt(challenger_of(copied))
    decision = decide(copied)
    assert not decision.is_replaced
    assert "is not lower: " in decision.why


def test_only_candles_behind_the_embargo_of_both_are_evaluated(copied: Drilled) -> None:
    test = json.loads((challenger_of(copied) / "metadata.json").read_text())["split"]["test"]
    split = json.loads((copied.run / BTC / "metadata.json").read_text())["split"]
    # The newest candle that the champion has seen is the 21st before the challenger's test span. An embargo
    # of 20 + 3 candles follows, which ends with the third of the span.
    seen = pd.Timestamp(test["first_open"]) - 21 * pd.Timedelta(minutes=15)
    split["validation"]["last_open"] = seen.isoformat()
    change(copied.run / BTC, split=split)
    decision = decide(copied)
    assert decision.num_windows == test["num_windows"] - 3
    # The first window of 20 candles begins at row 3 of the span; its forecast is issued when row 22 closes.
    issued = pd.Timestamp(test["first_open"]) + 23 * pd.Timedelta(minutes=15)
    assert decision.evaluated_from == issued.isoformat()
    assert decision.evaluated_until == "2025-01-03T14:30:00+00:00"


def test_a_champion_that_cannot_be_loaded_gives_way_and_a_challenger_does_not_come(copied: Drilled) -> None:
    (copied.run / BTC / "model.keras").write_bytes(b"not a model")
    assert "champion are damaged" in decide(copied).why
    (copied.run / "serving.json").unlink()
    change(challenger_of(copied), scaling=None, candles={"digest": "cd" * 32})
    decision = decide(copied)
    assert not decision.is_replaced


def test_interrupted_in_a_training_nothing_is_decided_and_a_training_that_fails_decides_for_the_champion(
    copied: Drilled,
) -> None:
    record = copied.run / "generations" / copied.generation / "run.json"
    content = json.loads(record.read_text())
    content["series"][BTC]["status"] = "pending"
    write_json(record, content)

    def interrupted(jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        decide(copied, EngineOf(interrupted))
    assert not (copied.run / "serving.json").exists()

    def failing(jobs: Sequence[Job], observer: RunObserver) -> Iterator[SeriesOutcome]:
        yield from (SeriesOutcome(job.series, reason="out of luck") for job in jobs)

    assert decide(copied, EngineOf(failing)).why == NOT_TRAINED
    assert served_folder(copied.run, BTC) == copied.run / BTC


# What is stale


def looked(place: Drilled, rule: StalenessRule) -> tuple[bool, str]:
    staleness = renewal_of(place, rule).check_staleness([Series.parse(BTC)])
    assert isinstance(staleness, StalenessReport)
    assert not staleness.failures
    (standing,) = staleness.assessments
    return standing.is_stale, standing.reason


def test_age_is_counted_in_candles_behind_the_newest_try(copied: Drilled) -> None:
    # 250 of 700 - 19 rows' worth of test span are new; 3 days are 288 candles.
    first, end = json.loads((copied.run / BTC / "metadata.json").read_text())["split"]["test"]["rows"]
    expected = f"250 new candles since 2024-12-31T23:45:00Z, more than {end - first}"
    assert looked(copied, StalenessRule("age")) == (True, expected)
    assert looked(copied, StalenessRule("age", 3))[0] is False
    assert looked(copied, StalenessRule("age", 2))[0] is True
    assert looked(copied, StalenessRule("always"))[0] is True
    hurt(challenger_of(copied))
    decide(copied)
    for rule in ("age", "decay", "always"):
        assert looked(copied, StalenessRule(rule)) == (False, "0 new candles since 2025-01-03T14:15:00Z")


def test_a_model_decays_when_it_errs_more_than_its_test_span_promised(copied: Drilled) -> None:
    is_stale, why = looked(copied, StalenessRule("decay"))  # its weights are hurt, its evaluation is not
    assert is_stale
    assert f"times {reference_baseline('ohlc')}" in why and "over 248 forecasts" in why
    shutil.copytree(challenger_of(copied), copied.run / BTC, dirs_exist_ok=True)
    candles = json.loads((copied.run / BTC / "metadata.json").read_text())["candles"]
    change(copied.run / BTC, candles=candles | {"last_open": "2025-01-01T23:45:00+00:00"})
    is_stale, why = looked(copied, StalenessRule("decay"))
    assert not is_stale
    assert "no significant decay" in why


def test_a_series_whose_candles_cannot_be_had_fails_by_itself(copied: Drilled) -> None:
    (copied.candles / f"{BTC}.csv").unlink()
    staleness = renewal_of(copied).check_staleness([Series.parse(BTC)])
    assert not staleness.assessments
    assert "BTCUSDT-15m" in str(staleness.failures[0].reason)


def test_the_live_record_is_believed_before_a_back_test(copied: Drilled) -> None:
    metadata = json.loads((challenger_of(copied) / "metadata.json").read_text())
    shutil.copytree(challenger_of(copied), copied.run / BTC, dirs_exist_ok=True)
    change(copied.run / BTC, candles=metadata["candles"] | {"last_open": "2025-01-01T23:45:00+00:00"})
    rng = np.random.default_rng(5)
    with Ledger.open_to_write(copied.run.parent / "ledger.sqlite") as ledger:
        issuer = Issuer(
            place="./tiny",
            series=BTC,
            model_sha256=metadata["model_sha256"],
            revision=None,
            trained_until_s=1_735_000_000,
            profile="tiny",
            profile_digest=metadata["profile_digest"],
            source="live",
            bar_s=900,
            horizon_bars=3,
            tasks={"ohlc": ("open", "high", "low", "close")},
            forecasters=("model", "naive"),
        )
        for number in range(60):
            at_s = 1_735_776_000 + number * 900  # from 2025-01-02T00:00:00Z on
            ledger.add(Entry(issuer, at_s, at_s + 5, "2" * 64, np.ones((2, 12), np.float32)))
        for key, entry in ledger.pending("./tiny", BTC).items():
            losses = rng.exponential(0.01, (2, 1)) * [[2.0], [1.0]]
            ledger.add_score(key, Score(entry.due_s, "3" * 64, entry.values[0], losses))
        renewal = replace(renewal_of(copied, StalenessRule("decay")), ledger=ledger)
        (standing,) = renewal.check_staleness([Series.parse(BTC)]).assessments
    assert standing.is_stale
    assert "on its test span (p " in standing.reason
    assert "60 forecasts" in standing.reason
    assert re.fullmatch(r"ohlc [12]\.\d{3} of 60", standing.live)


# Going on from the champion's weights


def go_on(place: Drilled) -> GenerationResult:
    """Train a challenger that begins from the champion's weights."""
    shutil.rmtree(place.run / "generations")
    renewal = replace(renewal_of(place, StalenessRule("always")), start="champion")
    *_, renewed = renewal.renew([Series.parse(BTC)], InProcessEngine(), RunObserver())
    assert isinstance(renewed, GenerationResult)
    return renewed


def test_a_challenger_that_begins_from_the_champion_says_so_and_is_ruled_on_as_ever(copied: Drilled) -> None:
    champion = digest_file(copied.run / BTC / "model.keras")
    renewed = go_on(copied)
    (decision,) = renewed.decisions
    training = json.loads((challenger_of(copied) / "metadata.json").read_text())["training"]
    assert training["started_from"] == champion
    assert decision.num_windows > 0
    anew = json.loads((copied.run / BTC / "metadata.json").read_text())["training"]
    assert "started_from" not in anew


def test_weights_of_another_profile_are_no_beginning(copied: Drilled) -> None:
    profile = json.loads((copied.run / BTC / "metadata.json").read_text())["profile"]
    change(copied.run / BTC, profile=profile | {"seed": 7, "calibration": "ensemble"})
    renewed = go_on(copied)
    (failure,) = renewed.failures
    assert "; got another calibration, seed. " in failure.reason
    assert renewed.decisions[0].why == NOT_TRAINED


# What is refused


def test_words_that_cannot_be_meant_are_one_line(copied: Drilled) -> None:
    for words, refused in (
        (["--from", "afar"], "--from: .*; got 'afar'"),
        (["--when", "weekly"], "--when: .*; got 'weekly'"),
        (["--max-age", "inf"], "--max-age: .*; got inf"),
        (["--max-age", "3", "--when", "decay"], r"--max-age: .*; got 3\.0 with"),
        (["--series", "DOGEUSDT-1h"], "; got DOGEUSDT-1h"),
        (["--source", "demo", "--publish", REPO], "--source demo: .*; got a simulated market"),
        (["--ledger", "nowhere.sqlite"], "nowhere.sqlite"),
    ):
        files = ["--data-dir", str(copied.candles)] if "--source" not in words else []
        result = CliRunner().invoke(app, ["update", str(copied.run), *files, *words])
        assert result.exit_code in (2, 3, 5)
        assert re.search(refused, result.stderr)
        assert len(result.stderr.splitlines()) == 1
        assert not (copied.run / "serving.json").exists()


def test_a_generation_that_is_damaged_is_named_with_what_to_do(copied: Drilled) -> None:
    record = copied.run / "generations" / copied.generation / "run.json"
    record.write_text(record.read_text()[:200])
    with pytest.raises(ArtifactError, match=r"valid JSON; .* if serving\.json does"):
        list(renewal_of(copied).unfinished_generations([Series.parse(BTC)]))


def test_what_was_begun_with_another_source_is_finished_with_it(copied: Drilled) -> None:
    renewal = replace(renewal_of(copied), source=open_source("vision"))
    with pytest.raises(ArtifactError, match=r"begun with --source files .*; got --source vision"):
        list(renewal.unfinished_generations([Series.parse(BTC)]))
