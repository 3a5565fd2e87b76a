"""Every sentence that pages say stands in each catalogue, with the same places for values, and no other."""

from __future__ import annotations

import ast
import re
import string
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import yaml

from v8.baselines.baselines import BASELINES
from v8.comparison.page import CLAIM_NOTE, CLAIMED
from v8.comparison.results import FIGURES
from v8.evaluation.fold_losses import POOLS
from v8.evaluation.importance import KINDS
from v8.evaluation.significance import ComparisonResult
from v8.hardware import describe_machine
from v8.language import ENGLISH, LANGUAGES, catalogue, language, say
from v8.market.candles import CandleReport, Gap, LostRow
from v8.reports.backtest import BREAK_RULE, NOTE, QUANTILE_NOTE
from v8.reports.markup import BUTTONS, DEMO_WARNING
from v8.storage import packaged
from v8.tasks import TASKS
from v8.trading.rules import TRADING_RULES
from v8.wording import spaced

WORTH_FIGURES = (
    *("target volatility, % a year", "utility before costs, % a year", "volatility, % a year", "right, %"),
    "held, %",
    *("traded, times a year", "costs, % a year", "worst fall, %", "earned, %", "filled, %", "left, %"),
    *("width, bps", "stopped, %", "lost by stops, bps a trade", "MAE of volatility, % a year"),
)
PACKAGE = Path(__file__).parents[2] / "v8"
TERMS = {
    *(task.title for task in TASKS.values()),
    *(name for task in TASKS.values() for name in (task.name, *map(spaced, task.columns))),
    *get_args(ComparisonResult),
    *(baseline.sentence for baseline in BASELINES.values()),
    *(spaced(each.name) for kind in (CandleReport, Gap, LostRow) for each in fields(kind)),
    *(f"machine: {name.removesuffix('_bytes').replace('_', ' ')}" for name in describe_machine()),
    *(DEMO_WARNING, *BUTTONS),
    *(BREAK_RULE, NOTE, QUANTILE_NOTE, *POOLS),
    *(kind.title for kind in FIGURES.values()),
    *(CLAIM_NOTE, *CLAIMED.values()),
    *(
        word
        for rule in TRADING_RULES.values()
        for word in (rule.title, rule.unit, rule.without_forecast)
        if word
    ),
    *("rule, unit", "best other way", "its gain", "no forecast", "perfect foresight", "model − best, 95 %"),
    *("Gain of a day, mean over series; more is better", *WORTH_FIGURES),
    # Stages and spans.
    *("candles", "features", "windows", "build", "compile", "train", "validate", "evaluate", "save"),
    *("validation", "test", "rows", "embargo bars"),
    # Units that times were written in.
    *("seconds", "milliseconds", "microseconds", "nanoseconds"),
    # What is counted.
    *("fold", "model", "repeat", "epoch"),
    # Titles of tables and facts.
    *("Series", "Reason", "direction, step 1", "best epoch", "time", "all", "span", "step"),
    *(f"{kind} {unit}" for kind in ("MAE", "RMSE") for unit in ("of last close", "price", "in %", "as is")),
    *("model's MAE ÷ its", "p of it", "model's RMSE ÷ its", "model's CRPS ÷ its"),
    *(
        "hit rate",
        "always up",
        "windows counted",
        "worth, independent",
        "actual values flat",
        "forecast flat",
    ),
    *("fold", "series", "task", "best baseline", "its error", "× best", "smaller", "verdict", "shock"),
    *("Pooled", "By fold", "× naive", "× best baseline", "Model", "Profile"),
    *("profile digest", "charts", "candle source", "started", "command", "created at", "source"),
    *("inputs", *KINDS, "moves", "beside"),
    "True",
    # Of v8/app: moods, and what is told of a forecast and of a model's training.
    *("calm", "usual", "wild", "unknown", "opens, UTC", "day", "profile", "bars", "candles digest"),
    *("model sha256", "revision", "train span", "validation span", "test span"),
}
"""Words that are data: what `term` is given."""


def said() -> dict[str, str]:
    """Return every sentence that is said, and where."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        source = file.read_text()
        if "from v8.language import" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(func=ast.Name(id="say"), args=[ast.Constant(value=str(sentence))]):
                    found[sentence] = f"{file.relative_to(PACKAGE)}:{node.lineno}"
                case ast.Call(func=ast.Name(id="say")):
                    raise AssertionError(f"{file}:{node.lineno}: say takes a sentence that is written out")
    for file in sorted(PACKAGE.rglob("*.html")):
        found |= dict.fromkeys(re.findall(r"\[\[(.+?)\]\]", file.read_text()), str(file.relative_to(PACKAGE)))
    return found


def places(sentence: str) -> set[str | None]:
    return {name for _, name, _, _ in string.Formatter().parse(sentence)} - {None}


@pytest.mark.parametrize("name", [name for name in LANGUAGES if name != ENGLISH])
def test_no_sentence_is_missing_or_kept_though_nobody_says_it(name: str) -> None:
    sentences, kept = said(), catalogue(name)
    assert {text: where for text, where in sentences.items() if text not in kept} == {}
    assert sorted(TERMS - set(kept)) == []
    assert sorted(set(kept) - set(sentences) - TERMS) == []
    assert [text for text, told in kept.items() if places(text) != places(told)] == []


def test_a_sentence_keeps_its_values_and_the_language_ends_with_its_block() -> None:
    with language("zh-TW"):
        assert say("Series") == "序列"
    assert say("Series") == "Series"


@pytest.mark.parametrize("name", [name for name in LANGUAGES if name != ENGLISH])
def test_no_sentence_stands_twice(name: str) -> None:
    # YAML would take the last one and say nothing.
    keys = [key.value for key, _ in yaml.compose(packaged("v8", f"{name}.yaml")).value]
    assert sorted(key for key in set(keys) if keys.count(key) > 1) == []
