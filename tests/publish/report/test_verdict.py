"""The verdict: true sentences that a layman understands, from the numbers of the leaderboard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from v8.model.evaluation.fold_losses import TaskResult, WindowLosses
from v8.model.evaluation.leaderboard import LeaderboardRow, Verdict
from v8.model.evaluation.significance import BaselineComparison
from v8.publish.report.verdict import TaskVerdict, headline_intervals, signed_pct, verdict


def row(
    name: str, *, is_demo: bool = False, **scores: tuple[BaselineComparison, BaselineComparison]
) -> LeaderboardRow:
    evaluated: Any = SimpleNamespace(direction=[SimpleNamespace(rate=0.5, interval=(0.4, 0.6))])
    tasks = {task: Verdict(*pair) for task, pair in scores.items()}
    about: Any = {"source": "vision", "best_epoch": 3, "epochs_run": 9, "seconds": {}, "split": {}}
    return LeaderboardRow(
        series=name, is_demo=is_demo, evaluation=evaluated, candle_report={}, tasks=tasks, **about
    )


def beside(ours: float, best: float, *chances: float | None) -> tuple[BaselineComparison, BaselineComparison]:
    """The model's error beside naive's, 1, and the best baseline's; p-values for either."""
    naive, other = chances or (None, None)
    return BaselineComparison("naive", ours, 1.0, naive, naive), BaselineComparison(
        "har", ours, best, other, other
    )


def alone(ours: float, chance: float | None) -> tuple[BaselineComparison, BaselineComparison]:
    """Where no baseline is better than naive."""
    naive = BaselineComparison("naive", ours, 1.0, chance, chance)
    return naive, naive


def test_the_sentences_of_one_series_are_those_of_its_numbers_the_furthest_ahead_first() -> None:
    text = verdict(
        [row("BTCUSDT-15m", ohlc=beside(0.95, 0.951, 0.01, 0.4), volatility=beside(0.814, 0.825, 0.0, 0.01))]
    )
    assert text == [
        "BTCUSDT-15m, on candles that training had not seen:",
        # 0.814 / 0.825 = 0.98667
        "Volatility: 18.6 % lower error than the naive forecast (significant), "
        "1.3 % lower than the best baseline, past ranges (har) (significant).",
        # 0.95 / 0.951 = 0.99895
        "Candles: 5.0 % lower error than the naive forecast (significant), "
        "0.1 % lower than the best baseline, past ranges (har) (not significant).",
    ]


HAR = "past ranges (har)"
NAIVE = "error than the naive forecast"
BEST = "than the best baseline, past ranges (har)"
SURE = "significant"
UNSURE = "not significant"
UNKNOWN = "not tested: too few windows"
STILL = BaselineComparison("naive", 0.1, 0.0)


@pytest.mark.parametrize(
    ("score", "said"),
    [
        # Significantly larger than both.
        (beside(1.2, 0.8, 0.01, 0.01), f"20.0 % higher {NAIVE} ({SURE}), 50.0 % higher {BEST} ({SURE})."),
        # Not sure of one, or of either: each says so.
        (beside(0.99, 0.9, 0.5, 0.01), f"1.0 % lower {NAIVE} ({UNSURE}), 10.0 % higher {BEST} ({SURE})."),
        (beside(0.99, 0.9, 0.5, 0.5), f"1.0 % lower {NAIVE} ({UNSURE}), 10.0 % higher {BEST} ({UNSURE})."),
        (beside(0.9, 0.8), f"10.0 % lower {NAIVE} ({UNKNOWN}), 12.5 % higher {BEST} ({UNKNOWN})."),
        # A difference that one decimal does not show is not nothing.
        (
            beside(0.9, 0.90001, 0.0, 0.7),
            f"10.0 % lower {NAIVE} ({SURE}), less than 0.1 % lower {BEST} ({UNSURE}).",
        ),
        # The reference was chosen on other candles; here it is none to be proud of beating.
        (
            beside(0.99, 1.1, 0.5, 0.01),
            f"1.0 % lower {NAIVE} ({UNSURE}), "
            f"10.0 % lower than the reference, {HAR}, here worse than the naive forecast ({SURE}).",
        ),
        # A baseline compared with itself.
        (
            beside(0.9, 0.9, 0.0, None),
            f"10.0 % lower {NAIVE} ({SURE}), the same as the best baseline, past ranges (har).",
        ),
        (alone(1.0, None), "the same error as the naive forecast, and no baseline is better."),
        (alone(0.9, 0.01), f"10.0 % lower {NAIVE} ({SURE}), and no baseline is better."),
        # A market that stood still.
        (
            (STILL, STILL),
            f"an error, where the naive forecast has none ({UNKNOWN}), and no baseline is better.",
        ),
    ],
)
def test_every_case_has_words_that_are_true(
    score: tuple[BaselineComparison, BaselineComparison], said: str
) -> None:
    assert verdict([row("BTCUSDT-15m", ohlc=score)])[1] == f"Candles: {said}"


def test_of_several_series_the_median_is_told_and_for_how_many_it_is_sure() -> None:
    def rows(*scores: tuple[BaselineComparison, BaselineComparison]) -> str:
        text = verdict([row(f"{letter}USDT-1h", ohlc=one) for letter, one in zip("ABC", scores, strict=True)])
        assert text[0] == "Median of 3 series, on candles that training had not seen:"
        return text[1]

    sure = beside(0.8, 1.0, 0.0, 0.01)
    unsure = beside(0.9, 1.0, 0.0, 0.5)
    worse = beside(1.2, 1.0, 0.01, 0.01)
    half = "10.0 % lower error than the naive forecast (significant for 3 of 3 series)"
    assert (
        rows(sure, unsure, unsure)
        == f"Candles: {half}, 10.0 % lower than the best baseline, {HAR} (significant for 1 of 3 series)."
    )
    both = "significantly lower for 1 of 3 series, significantly higher for 1"
    assert f"10.0 % lower than the best baseline, past ranges (har) ({both})." in rows(sure, unsure, worse)
    # The median is smaller, and the only one that is sure is larger: both counts are told.
    assert "significantly lower for 0 of 3 series, significantly higher for 1" in rows(unsure, unsure, worse)


def test_a_simulated_market_is_told_with_the_verdict() -> None:
    text = verdict([row("BTCUSDT-15m", is_demo=True, ohlc=alone(0.9, 0.01))])
    assert text[0] == "A simulated market, no real coin. BTCUSDT-15m, on candles that training had not seen:"


def pooled(median: float, difference: float, *, best: str = "har", p_best: float | None = 0.01) -> str:
    multiples = {"model": 0.9, "naive": 1.0, "har": 0.9 / median}
    told = TaskResult(6, multiples, best, median, 4, 0.0, p_best, difference)
    return str(TaskVerdict.pooled("volatility", told))


def test_one_test_over_many_folds_says_where_its_mean_is_not_the_median() -> None:
    naive = "Volatility: 10.0 % lower error than the naive forecast (significant)"
    assert pooled(0.98, -0.02) == f"{naive}, 2.0 % lower than the best baseline, {HAR} (significant)."
    assert (
        pooled(0.98, -0.02, p_best=0.3)
        == f"{naive}, 2.0 % lower than the best baseline, past ranges (har) (not significant)."
    )
    said = "2.0 % lower than the best baseline, past ranges (har) (its mean is significantly higher)."
    assert pooled(0.98, 0.02) == f"{naive}, {said}"
    assert pooled(0.9, -0.02, best="naive") == f"{naive}, and no baseline is better."


def test_a_headline_says_between_what_it_lies_and_for_how_many_series_it_holds() -> None:
    losses = np.random.default_rng(1).gamma(2.0, size=300)
    shares = {"AUSDT-1h": 0.8, "BUSDT-1h": 0.9, "CUSDT-1h": 1.2}
    rows = []
    of_windows = {}
    for name, share in shares.items():
        one = row(name, ohlc=beside(share, 1.0, 0.0, 0.01))
        one.evaluation.horizon_bars = 10
        rows.append(one)
        by_name = {"model": share * losses, "naive": losses, "har": losses}
        of_windows[name] = WindowLosses(np.arange(300), {"ohlc": by_name}, 1.0)
    intervals = headline_intervals(rows, of_windows)
    # Every window has the share of its series, so only the draws of series differ: at most all are the worst.
    assert 0.7 < intervals["ohlc"].low < 0.9 < intervals["ohlc"].high < 1.4
    low = signed_pct(intervals["ohlc"].low)
    high = signed_pct(intervals["ohlc"].high)
    (_, sentence) = verdict(rows, intervals)
    assert f"; 95 % interval: {low} to {high}; lower in 2 of 3 series)." in sentence
    # Without the losses of one of them, as in models that were pulled, nothing is said.
    assert headline_intervals(rows, {name: of_windows[name] for name in list(shares)[:2]}) == {}
    assert "interval" not in verdict(rows)[1]
