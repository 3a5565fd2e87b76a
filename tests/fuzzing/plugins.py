"""Plug-ins that register one thing, valid or with one fault, and what v8 must do with them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

import v8
from v8.base import plugins
from v8.base.errors import V8Error
from v8.base.registry import own_entries
from v8.data.market.series import Series
from v8.model.baselines.baselines import BASELINES
from v8.profile.indicators import FEATURES, ancestry
from v8.profile.profile import load_profile
from v8.runs.events import run_isolated

FILE: Final = "mine.py"
SOUND: Final = "sound"

_BASELINE: Final = """
import sys
from v8.model.baselines.baselines import BASELINES, Baseline


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError


def fit(train, scaling):
    {body}
    return lambda span: {{}}


BASELINES.register(Baseline({name!r}, "A toy.", "the fuzzer", fit))
"""
_FEATURE: Final = """
import numpy as np
from v8.profile.formulas import Feature, Formula, Kind
from v8.profile.indicators import FEATURES


def function(close):
    return {body}


FORMULA = Formula(function, ("close",), warmup_bars={warmup})
FEATURES.register(Feature("mine", "A toy.", "the fuzzer", Kind.CENTRED, FORMULA))
"""
_NAMES: Final = (
    *("model", "Model", "naive", "actual", "open_time", "model_q5", "har", "HAR", "../x", "/x", "<script>"),
    *("=cmd", "+1", "x" * 5_000, "", " ", ".x", "a.b", "a b", "con", "Nul", "LPT1", "\0", "\x1b[31m", "a\nb"),
    *("\u202e", "\ud800", "日本", None, 7, True, b"x", ("a",)),
)
_FAILING: Final = (
    *("raise SystemExit(0)", "raise Unspeakable", "sys.setrecursionlimit(60); fit(train, scaling)"),
    *("raise GeneratorExit", "raise ValueError('\\ud800')", "sys.exit('x' * 5_000)", "1 / 0"),
)
_LOOKING: Final = (
    *("np.roll(close, -{bars})", "close / close.mean()", "np.random.default_rng().normal(size=len(close))"),
    *("close / close.max()", "(close - close.mean()) / close.std()", "np.cumsum(close) / close.sum()"),
    *("np.concatenate([close[{bars}:], close[-{bars}:]])", "close[::-1].copy()", "np.sort(close)"),
    *("close[:-{bars}]", "close[-1]", "close[:, None]", "None", "close * np.nan", "'x'", "close[{bars}:]"),
    *("np.array([])", "np.concatenate([close, close])", "close.fill(1.0) or close", "1 / 0", "open(close)"),
)
_PAST: Final = (
    *("np.log(close)", "np.diff(close, prepend=close[:1])", "np.cumsum(np.diff(close, prepend=close[:1]))"),
    *("np.maximum.accumulate(close) / close", "np.ones_like(close)", "np.float32(close)"),
)


def made_plugin(random: Random) -> tuple[str, str]:
    """Return the text of a plug-in and what it is: `SOUND`, or what is wrong with it."""
    kind = random.choice(("name", "failing", "looking", "looking", "past"))
    if kind == "name":
        return _BASELINE.format(name=random.choice(_NAMES), body="pass"), kind
    if kind == "failing":
        return _BASELINE.format(name="mine", body=random.choice(_FAILING)), kind
    bars = random.choice((1, 2, 10, 100, 1_000))
    body = random.choice(_LOOKING if kind == "looking" else _PAST).format(bars=bars)
    text = _FEATURE.format(body=body, warmup=random.choice((0, 0, 1, 50)))
    return text, SOUND if kind == "past" else kind


def use_plugin(folder: Path, kind: str, series: Series) -> None:
    """Load a plug-in and name what it registers; what is wrong must be refused, all else not."""
    try:
        v8.plugin(folder / FILE)
        if kind == "failing":
            _, outcome = run_isolated(series, lambda: BASELINES["mine"].fit(None, None))  # type: ignore[arg-type]
            if outcome.reason is None or not outcome.trace or not outcome.reason.isprintable():
                raise AssertionError(f"a failing baseline ended as {outcome}")
        elif kind in ("looking", SOUND):
            profile = load_profile("aligned")
            profile.but(features=(*profile.features, "mine"))
        if kind not in ("failing", SOUND):
            raise AssertionError(f"accepted, although something is wrong: {kind}")
    except V8Error as error:
        if kind in ("failing", SOUND):
            raise AssertionError(f"refused, although nothing is wrong: {error}") from error
        raise
    finally:
        _unload()


def _unload() -> None:
    for registry in (BASELINES, FEATURES):
        dict.pop(registry, "mine", None)
    for cache in (plugins.loaded, own_entries):
        cache.clear()
    ancestry.cache_clear()
