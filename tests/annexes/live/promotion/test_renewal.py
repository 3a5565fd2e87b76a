"""When a model decays, the ledger first; and who serves: lower error, significantly worse on no task."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluating import evaluate_arrays, rolled
from ledger_entries import FIRST_S
from ledger_entries import ISSUER as BY_SOMEONE

from v8.annexes.live.entries import Entry, Score
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.promotion import ChampionTest
from v8.annexes.live.record import live_losses
from v8.annexes.live.renewal import Renewal, StalenessRule
from v8.base.errors import ProfileError
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.model.baselines.baselines import NAIVE
from v8.model.evaluation.evaluation import MODEL, Evaluation, detect_decay
from v8.model.evaluation.significance import Losses, Significance
from v8.profile.profile import load_profile
from v8.runs.run_folder import RunFolder, RunRecord

BTC = Series("BTCUSDT", "15m")
TASKS = ("ohlc", "volatility")
NUM = 300
ISSUER = replace(
    BY_SOMEONE, tasks={"ohlc": ("open", "high", "low", "close")}, forecasters=("model", "naive", "offset")
)


@pytest.fixture(scope="module")
def evaluated() -> Evaluation:
    """A challenger that errs 0.75 times as much as naive on two tasks."""
    rng = np.random.default_rng(3)
    closes = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, (400, 20)), axis=1))
    naive = {task: values for task, values in rolled(closes, 2).items() if task in TASKS}
    actual = {task: values * np.exp(rng.normal(0, 0.02, values.shape)) for task, values in naive.items()}
    model = {task: naive[task] * (actual[task] / naive[task]) ** 0.25 for task in TASKS}
    offsets = {task: np.full(values.shape[1:], 0.001) for task, values in naive.items()}
    return evaluate_arrays(actual, model, closes, offsets)


def losses_of(multiple: float, num: int = NUM) -> Losses:
    """Return losses of a model that errs so many times as much as naive, with luck of its own each time."""
    rng = np.random.default_rng(5)
    naive = rng.exponential(0.01, num)
    model = multiple * naive + rng.normal(0, 0.001, num)
    by_task = {"ohlc": {"model": model, "naive": naive}}
    return Losses(by_task, np.arange(num), 2, "of a test")


def test_what_was_promised_is_no_decay(evaluated: Evaluation) -> None:
    is_stale, why = detect_decay(evaluated, losses_of(0.75))
    assert not is_stale
    assert why.startswith("no significant decay: ohlc 0.7")


def test_an_error_beyond_the_promise_and_its_uncertainty_is_decay(evaluated: Evaluation) -> None:
    is_stale, why = detect_decay(evaluated, losses_of(0.95))
    assert is_stale
    assert why.startswith("ohlc 0.9")
    assert "on its test span (p below 0.001), over 300 forecasts of a test" in why


def test_the_best_baseline_of_the_run_is_the_opponent(evaluated: Evaluation) -> None:
    losses = losses_of(0.75)
    naive = losses.by_task["ohlc"]["naive"]
    # Far better than the model: "offset" is the opponent only where the verdicts of the run name it.
    by_task = {"ohlc": {**losses.by_task["ohlc"], "offset": 0.2 * naive, "last_close": 2.0 * naive}}
    losses = Losses(by_task, losses.bar_numbers, 2, "of a test")
    is_stale, why = detect_decay(evaluated, losses, {"ohlc": "offset"})
    assert is_stale and "times offset (p below 0.001)" in why
    is_stale, why = detect_decay(evaluated, losses, {"ohlc": "last_close"})
    assert not is_stale and "times last_close" in why


def test_a_promise_that_was_luck_itself_is_no_measure(evaluated: Evaluation) -> None:
    task = evaluated.tasks["ohlc"]
    naive = task.significance["naive"]
    # As if the test span had said 0.75 with an error of a quarter of naive's.
    wide = replace(naive, standard_error=0.25 * evaluated.error("ohlc", "naive").overall)
    tasks = {"ohlc": replace(task, significance={**task.significance, "naive": wide})}
    assert detect_decay(replace(evaluated, tasks=tasks), losses_of(0.95))[0] is False


def test_few_forecasts_say_nothing(evaluated: Evaluation) -> None:
    is_stale, why = detect_decay(evaluated, losses_of(3.0, 23))
    assert not is_stale and why.startswith("23 forecasts ")


def test_the_ledger_gives_what_one_model_issued_in_time_since_a_moment(tmp_path: Path) -> None:
    other = replace(ISSUER, model_sha256="9" * 64)
    issued = [(0, ISSUER, 5), (1, ISSUER, 5), (2, ISSUER, 900), (3, other, 5), (4, ISSUER, 5)]
    with Ledger.open_to_write(tmp_path / "ledger.sqlite") as ledger:
        for number, issuer, delay_s in issued:
            at_s = FIRST_S + number * 900
            ledger.add(Entry(issuer, at_s, at_s + delay_s, "2" * 64, np.ones((3, 8), np.float32)))
        for key, entry in ledger.pending("./tiny", "BTCUSDT-15m").items():
            number = (entry.issued_for_s - FIRST_S) / 900
            score = np.array([[number], [10.0 + number], [20.0 + number]])
            ledger.add_score(key, Score(entry.due_s, "3" * 64, entry.values[0], score))
        found = live_losses(ledger, tmp_path / "tiny", BTC, "0" * 64, FIRST_S + 900)
        none = live_losses(ledger, tmp_path / "tiny", BTC, "8" * 64, 0)
    assert none is None
    assert found
    # The third was written when its first bar had closed; the fourth is another model's.
    assert found.by_task["ohlc"]["model"].tolist() == [1.0, 4.0]
    assert found.by_task["ohlc"]["naive"].tolist() == [11.0, 14.0]
    # The newest candle of a forecast for the close FIRST_S + 900 opened at FIRST_S.
    assert found.bar_numbers.tolist() == [FIRST_S // 900, FIRST_S // 900 + 3]


def test_a_formula_has_no_weights_to_begin_from(tmp_path: Path) -> None:
    formula = RunRecord.begin(load_profile("range_paths"), "files", True, "python -m v8 run")
    with RunFolder(tmp_path / "run", formula):
        pass
    with pytest.raises(ProfileError, match="must have a network"):
        Renewal(tmp_path / "run", open_source("demo"), StalenessRule(), "", start="champion")


@pytest.mark.parametrize(("trained_on", "is_real"), [("files", True), ("demo", False)])
def test_a_model_of_one_market_is_not_challenged_by_one_of_another(
    tmp_path: Path, trained_on: str, is_real: bool
) -> None:
    """At 1ad3d8c1 a model of the demo market replaced a real one, and the run could forecast nothing more."""
    record = RunRecord.begin(load_profile("frontier"), trained_on, is_real, "python -m v8 run")
    with RunFolder(tmp_path / "run", record):
        pass
    source = open_source("demo") if is_real else open_source("files", data_dir=tmp_path)
    with pytest.raises(ProfileError) as refused:
        Renewal(tmp_path / "run", source, StalenessRule(), "")
    assert refused.value.where == f"param:source {source.name}"


def contest(evaluated: Evaluation, *, beside: dict[str, float], surely: bool = True) -> ChampionTest:
    """Let the champion err so many times as much as the challenger; surely, or as chance may have it."""
    ours = {task: evaluated.error(task, MODEL).overall for task in TASKS}
    errors = {task: ours[task] * times for task, times in beside.items()}
    differences = {task: ours[task] - errors[task] for task in TASKS}
    tests = {
        task: Significance(each, abs(each) / (9 if surely else 1) or None, evaluated.num_windows, 20)
        for task, each in differences.items()
    }
    return ChampionTest(evaluated, errors, tests)


def test_a_lower_error_wins_even_where_it_may_be_chance(evaluated: Evaluation) -> None:
    won = contest(evaluated, beside={"ohlc": 1.01, "volatility": 1.0}, surely=False)
    assert won.challenger_wins
    assert re.search("is lower: 0.750 .* 0.754$", won.reason)


def test_an_error_that_is_not_lower_does_not(evaluated: Evaluation) -> None:
    lost = contest(evaluated, beside={"ohlc": 0.99, "volatility": 1.0}, surely=False)
    assert not lost.challenger_wins
    assert re.search("is not lower: 0.750 .* 0.746", lost.reason)


def test_a_tie_does_not_and_rounding_is_no_difference(evaluated: Evaluation) -> None:
    assert not contest(evaluated, beside={"ohlc": 1.0, "volatility": 1.0}).challenger_wins
    assert not contest(evaluated, beside={"ohlc": 1.0 + 1e-12, "volatility": 1.0}).challenger_wins


def test_a_lower_error_does_not_win_where_a_task_is_worse_by_more_than_chance(evaluated: Evaluation) -> None:
    mixed = {"ohlc": 0.95, "volatility": 1.2}
    sure = contest(evaluated, beside=mixed)
    assert sure.worse_tasks == ["ohlc"]
    assert not sure.challenger_wins
    assert sure.reason.endswith(" worse on ohlc (p below 0.001)")
    assert contest(evaluated, beside=mixed, surely=False).challenger_wins


def test_the_best_baseline_is_that_of_the_champions_run(evaluated: Evaluation) -> None:
    beside = {"ohlc": 1.0, "volatility": 1.0}
    own = contest(evaluated, beside=beside).best_baselines
    named = replace(contest(evaluated, beside=beside), references={"ohlc": "offset", "volatility": "absent"})
    multiple = evaluated.error("ohlc", "offset").overall / evaluated.error("ohlc", NAIVE).overall
    assert named.best_baselines["ohlc"] == ("offset", pytest.approx(multiple))
    assert named.best_baselines["volatility"] == own["volatility"]


def test_nothing_is_won_on_windows_that_say_nothing(evaluated: Evaluation) -> None:
    few = contest(replace(evaluated, num_windows=199), beside={"ohlc": 2.0, "volatility": 2.0})
    assert not few.challenger_wins
    assert re.fullmatch("only 199 windows .* 200", few.reason)


def test_every_multiple_is_of_naive_s_error(evaluated: Evaluation) -> None:
    one = contest(evaluated, beside={"ohlc": 2.0, "volatility": 1.0})
    naive = evaluated.error("ohlc", NAIVE).overall
    assert one.champion_multiples["ohlc"] == pytest.approx(2 * evaluated.error("ohlc", MODEL).overall / naive)
    for task, (name, multiple) in one.best_baselines.items():
        assert multiple == evaluated.error(task, name).overall / evaluated.error(task, NAIVE).overall
