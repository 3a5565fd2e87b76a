"""A back-test repeated with other seeds: how far its headline numbers spread by the draws of training alone.

backtests/frontier/      the back-test with the profile's own seed
  seed-1042/             the same with another one, over the same folds
  seeds.json             the headline numbers of each
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from v8.base.storage import write_json
from v8.runs.backtest import Backtest
from v8.runs.backtest_results import BacktestPlan, BacktestResults

SEEDS_FILE: Final = "seeds.json"
SEEDS_FORMAT: Final = 1  # version of the keys of `seeds.json`

SEED_STEP: Final = 1_000
"""Distance of two seeds: the series of a run are seeded one after another, and none is to be seeded twice."""


@dataclass(frozen=True)
class SeedSpread:
    """A headline number of a back-test by seed, all of one pool, timeframe and task."""

    pool: str  # a key of `v8.model.evaluation.fold_losses.POOLS`
    timeframe: str
    task: str
    figure: str  # "relative_mae" (to naive) or "against_best", medians over series and folds, unitless
    by_seed: Mapping[int, float]

    @property
    def low(self) -> float:
        """The smallest."""
        return min(self.by_seed.values())

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.by_seed.values())

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.by_seed.values())


def other_seeds(backtest: Backtest, path: Path, num_seeds: int, plan: BacktestPlan) -> dict[Path, Backtest]:
    """Return the back-tests with other seeds, by their folders.

    Args:
        backtest: The one with the profile's own seed.
        path: Its folder.
        num_seeds: Number of seeds, the profile's own included.
        plan: Its plan, whose folds the others use.
    """
    profile = backtest.profile
    others = {}
    for number in range(1, num_seeds):
        seed = profile.seed + SEED_STEP * number
        seeded = profile.but(seed=seed, name=profile.name)
        others[path / f"seed-{seed}"] = replace(backtest, profile=seeded, like=plan)
    return others


def spread_over_seeds(results: Mapping[int, BacktestResults]) -> list[SeedSpread]:
    """Return the headline numbers by seed, of those that every back-test has; at least one, by its seed."""
    by_key: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for seed, of_seed in results.items():
        for pool in of_seed.pools:
            for task, result in pool.tasks.items():
                figures = {"relative_mae": result.model_relative_mae, "against_best": result.against_best}
                for figure, value in figures.items():
                    if value is not None:
                        by_key.setdefault((pool.name, pool.timeframe, task, figure), {})[seed] = value
    return [SeedSpread(*key, by_seed) for key, by_seed in by_key.items() if len(by_seed) == len(results)]


def write_seeds(path: Path, spreads: list[SeedSpread]) -> Path:
    """Write `seeds.json` into the folder of a back-test, atomically; return the file."""
    rows = [
        {**asdict(spread), "low": spread.low, "median": spread.middle, "high": spread.high}
        for spread in spreads
    ]
    file = path / SEEDS_FILE
    write_json(file, {"format": SEEDS_FORMAT, "figures": rows})
    return file
