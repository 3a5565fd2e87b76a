"""Words that are data: `v8.base.wording.term` translates them, but no call of it holds them written out.

A sentence that `say` is called with, or that stands in `[[...]]` in a template, is found by itself. Titles of
tables, names of tasks and of facts are listed here, by the file that they stand in.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, get_args

from v8.annexes.comparison.page import CLAIM_NOTE, CLAIMED
from v8.annexes.comparison.results import FIGURES
from v8.annexes.trading.page import SCORES_TITLE as TITLE_OF_SCORES
from v8.annexes.trading.page import TITLE as TITLE_OF_GAINS
from v8.annexes.trading.rules import TRADING_RULES
from v8.base.hardware import describe_machine
from v8.base.wording import spaced
from v8.data.market.candles import CandleReport, Gap, Leap, LostRow
from v8.model.baselines.baselines import BASELINES
from v8.model.evaluation.fold_losses import POOLS
from v8.model.evaluation.metrics import INPUT_KINDS
from v8.model.evaluation.significance import ComparisonResult
from v8.profile.tasks import TASKS
from v8.publish.report.backtest import BREAK_RULE, NOTE, QUANTILE_NOTE
from v8.publish.report.markup import BUTTONS, DEMO_WARNING


@dataclass(frozen=True)
class Words:
    """Words of one file.

    Args:
        file: The file, from the root of the repository, with `/`.
        note: What a translator should know of them.
        words: The words; `_` of the code is a space here.
    """

    file: str
    note: str
    words: tuple[str, ...]


TITLE: Final = "Title of a table, or of one of its columns."
FACT: Final = "Name of a fact; its value follows."
FIGURE: Final = "Name of a figure, in the first column of a table."
STAGE: Final = "A stage of a run, in a list of times."

_RULE_TITLES: Final = [
    word for rule in TRADING_RULES.values() for word in (rule.title, rule.unit, rule.without_forecast) if word
]
_REPORT_FIELDS: Final = [
    spaced(field.name) for kind in (CandleReport, Gap, Leap, LostRow) for field in fields(kind)
]
_ERROR_UNITS: Final = ("of last close", "price", "in %", "as is")

REGISTERED: Final = (
    Words(
        "v8/profile/tasks.py",
        "What is forecast: the title of a task at the beginning of a sentence, its name, or a column of it.",
        (
            *(task.title for task in TASKS.values()),
            *(task.name for task in TASKS.values()),
            *(spaced(column) for task in TASKS.values() for column in task.columns),
        ),
    ),
    Words(
        "v8/model/evaluation/significance.py",
        "Result of a test; the name of a baseline follows, except where nothing is known.",
        get_args(ComparisonResult),
    ),
    Words("v8/profile/tasks.yaml", "What is forecast.", tuple(task.sentence for task in TASKS.values())),
    Words(
        "v8/model/baselines/baselines.yaml",
        "What a baseline assumes.",
        tuple(baseline.sentence for baseline in BASELINES.values()),
    ),
    Words(
        "v8/model/baselines/baselines.yaml",
        "A baseline in a few words; its name stands before it.",
        tuple(baseline.brief for baseline in BASELINES.values() if baseline.brief),
    ),
    Words(
        "v8/model/baselines/baselines.yaml",
        "The name of a baseline.",
        tuple(baseline.title for baseline in BASELINES.values() if baseline.title),
    ),
    Words(
        "v8/data/market/candles.py",
        "What was found in the candles of a source; counts follow.",
        (*_REPORT_FIELDS,),
    ),
    Words(
        "v8/base/hardware.py",
        FACT,
        tuple(f"machine: {name.removesuffix('_bytes').replace('_', ' ')}" for name in describe_machine()),
    ),
    Words("v8/publish/report/markup.py", "Warning on every page of a simulated market.", (DEMO_WARNING,)),
    Words("v8/publish/report/markup.py", "What a button of a chart does.", BUTTONS),
    Words("v8/publish/report/backtest.py", "Note below a table.", (BREAK_RULE, NOTE, QUANTILE_NOTE)),
    Words("v8/model/evaluation/fold_losses.py", "Folds that a row sums up.", (*POOLS,)),
    Words("v8/model/evaluation/metrics.py", "Kind of inputs of a network.", (*INPUT_KINDS,)),
    Words("v8/annexes/comparison/results.py", FIGURE, tuple(kind.title for kind in FIGURES.values())),
    Words("v8/annexes/comparison/page.py", FIGURE, (*CLAIMED.values(), CLAIM_NOTE)),
    Words("v8/annexes/trading/page.py", "Title of a table.", (TITLE_OF_GAINS, TITLE_OF_SCORES)),
    Words(
        "v8/annexes/trading/rules.py",
        "A rule of trading, the unit of its gain, or what is done without a forecast.",
        (*_RULE_TITLES,),
    ),
)
"""Words of registries of v8."""

COMPOSED: Final = (
    Words(
        "v8/publish/report/series_section.py",
        "An error and its unit, title of a column.",
        tuple(f"{kind} {unit}" for kind in ("MAE", "RMSE") for unit in _ERROR_UNITS),
    ),
    Words("v8/publish/report/series_section.py", "The value of a fact that holds.", ("True",)),
    Words("v8/annexes/live/app/forecast_view.py", FACT, ("train span", "validation span", "test span")),
)
"""Words that code puts together."""

WRITTEN: Final = (
    Words(
        "v8/publish/report/page.py", TITLE, ("Series", "Reason", "direction, step 1", "best epoch", "time")
    ),
    Words(
        "v8/publish/report/series_section.py", TITLE, ("model's MAE ÷ its", "p of it", "model's RMSE ÷ its")
    ),
    Words("v8/publish/report/series_section.py", TITLE, ("model's CRPS ÷ its", "inputs", "span", "rows")),
    Words(
        "v8/publish/report/series_section.py",
        TITLE,
        ("step", "hit rate", "closes that rose", "windows counted"),
    ),
    Words(
        "v8/publish/report/series_section.py",
        TITLE,
        ("worth, independent", "actual values flat", "forecast flat"),
    ),
    Words("v8/publish/report/series_section.py", TITLE, ("slope", "intercept")),
    Words(
        "v8/publish/report/page.py", FACT, ("profile digest", "charts", "candle source", "started", "command")
    ),
    Words("v8/publish/report/series_section.py", STAGE, ("all",)),
    Words("v8/runs/stages.py", STAGE, ("candles", "features", "windows", "evaluate", "save", "compile")),
    Words("v8/model/training/trainer.py", STAGE, ("build", "compile", "train", "validate")),
    Words("v8/publish/report/figures.py", "Candles that a line is about.", ("train", "validation")),
    Words("v8/annexes/live/app/answers.py", "A part of the candles.", ("train", "validation", "test")),
    Words("v8/data/windows.py", FACT, ("embargo bars",)),
    Words(
        "v8/data/market/frames.py",
        "A unit that times were written in.",
        ("seconds", "milliseconds", "microseconds", "nanoseconds"),
    ),
    Words("v8/model/evaluation/metrics.py", "Kind of inputs of a network.", ("moves", "beside")),
    Words("v8/publish/report/backtest.py", TITLE, ("fold", "task", "best baseline", "its error", "× best")),
    Words("v8/publish/report/backtest.py", TITLE, ("95 % interval", "smaller", "verdict", "shock")),
    Words("v8/publish/report/backtest.py", TITLE, ("Pooled", "By fold")),
    Words("v8/publish/report/backtest.py", TITLE, ("series", "× naive", "× best baseline", "Model")),
    Words("v8/publish/report/backtest.py", FACT, ("created at", "source")),
    Words("v8/publish/report/backtest.py", "What is counted; its number comes before it.", ("fold", "model")),
    Words(
        "v8/annexes/comparison/page.py", "What is counted; its number comes before it.", ("repeat", "epoch")
    ),
    Words("v8/annexes/live/app/page.py", "What is counted; its number comes before it.", ("day",)),
    Words("v8/annexes/comparison/page.py", TITLE, ("Profile",)),
    Words("v8/annexes/trading/page.py", TITLE, ("rule, unit", "best alternative", "its gain", "its score")),
    Words("v8/annexes/trading/page.py", TITLE, ("no forecast", "perfect foresight", "p, corrected")),
    Words("v8/annexes/trading/page.py", TITLE, ("rule", "unit")),
    Words("v8/annexes/trading/page.py", "What is counted; its number comes before it.", ("day",)),
    Words("v8/annexes/trading/page.py", TITLE, ("model − best alternative, 95 %",)),
    Words(
        "v8/annexes/trading/rules.py",
        FIGURE,
        ("target volatility, % a year", "utility before costs, % a year"),
    ),
    Words("v8/annexes/trading/rules.py", FIGURE, ("volatility, % a year", "held, %", "held and right, %")),
    Words(
        "v8/annexes/trading/rules.py", FIGURE, ("hit rate, %", "maximum drawdown in one test span, mean, %")
    ),
    Words("v8/annexes/trading/rules.py", FIGURE, ("traded, times a year", "costs, % a year")),
    Words("v8/annexes/trading/rules.py", FIGURE, ("earned in one test span, mean, %",)),
    Words("v8/annexes/trading/rules.py", FIGURE, ("filled, %", "width, bps", "stopped, %")),
    Words(
        "v8/annexes/trading/rules.py", FIGURE, ("closes beyond the range, %", "MAE of volatility, % a year")
    ),
    Words("v8/annexes/trading/rules.py", FIGURE, ("lost by stops (−: gained), bps a trade",)),
    Words("v8/annexes/live/app/tiles.py", "How much the price moves.", ("calm", "usual", "wild", "unknown")),
    Words("v8/annexes/live/app/forecast_view.py", TITLE, ("opens, UTC",)),
    Words(
        "v8/annexes/live/app/answers.py",
        FACT,
        ("profile", "bars", "candles digest", "model sha256", "revision"),
    ),
)
"""Words that their file holds as literals, so a check finds those that it no longer holds."""
