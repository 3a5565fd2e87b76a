"""A back-test with several seeds: other profiles over the same folds, and how far numbers spread."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from v8.data.market.series import Series
from v8.model.evaluation.fold_losses import spread_over_seeds
from v8.profile.profile import load_profile
from v8.publish.report.backtest import seed_sentence, seeds_table
from v8.runs.backtest import Backtest, other_seeds, read_seeds, write_seeds

TASKS = ("ohlc", "volatility")


def results(model: float, best: float | None, tasks: tuple[str, ...] = TASKS) -> Any:
    of_task = SimpleNamespace(model_relative_mae=model, against_best=best)
    return SimpleNamespace(
        pools=[SimpleNamespace(name="all folds", timeframe="1h", tasks=dict.fromkeys(tasks, of_task))]
    )


def test_every_seed_is_trained_over_the_folds_of_the_first_in_a_folder_of_its_own() -> None:
    profile = load_profile("frontier")
    backtest = Backtest(profile, (Series("BTCUSDT", "1h"),), 2, None, "python -m v8 backtest")
    plan: Any = SimpleNamespace()
    others = other_seeds(backtest, Path("backtests/frontier"), 3, plan)
    assert [path.as_posix() for path in others] == [
        "backtests/frontier/seed-1042",
        "backtests/frontier/seed-2042",
    ]
    assert [other.profile.seed for other in others.values()] == [1_042, 2_042]
    for other in others.values():
        assert (other.like, other.profile.name, other.series) == (plan, "frontier", backtest.series)
        assert other.profile.but(seed=42, name="frontier") == profile
    assert other_seeds(backtest, Path(), 1, plan) == {}


def test_each_headline_number_has_its_median_and_both_ends(tmp_path: Path) -> None:
    by_seed = {42: results(0.9, 0.99), 1_042: results(0.91, 0.97), 2_042: results(0.95, 1.0, TASKS[:1])}
    spreads = spread_over_seeds(by_seed)
    # One seed has no volatility: three numbers and two are not compared.
    assert [(each.task, each.figure) for each in spreads] == [
        ("ohlc", "relative_mae"),
        ("ohlc", "against_best"),
    ]
    assert (spreads[0].low, spreads[0].middle, spreads[0].high) == (0.9, 0.91, 0.95)
    table = seeds_table(spreads, 3)
    assert table.rows[1][2:] == ["× best baseline", "0.9900", "0.9700", "1.0000"]
    assert "3 seeds" in str(table.title)
    assert seed_sentence(spreads[0], 3).endswith(": 0.9100, over 3 seeds 0.9000 to 0.9500")
    same = replace(spreads[0], by_seed={42: 0.9, 1_042: 0.9})
    assert "0.9000 with each of 2 seeds" in seed_sentence(same, 2)
    written = json.loads(write_seeds(tmp_path, spreads).read_text())["figures"][0]
    assert read_seeds(tmp_path)[0] == written
    assert written["by_seed"] == {"42": 0.9, "1042": 0.91, "2042": 0.95}
    assert (written["low"], written["median"]) == (0.9, pytest.approx(0.91))
