"""Writes `features.py`: a module that computes the inputs of models with numpy and pandas alone.

The file holds the formulas of v8 themselves: the source of each function of `v8.profile.formulas` that a
profile needs, and of `v8.forecaster.candle_frames`, which reads candles and cuts windows. Between them stand
the constants of the profile and the list of steps. So the file computes what the feature store computes, and
whoever has a repository needs no v8. A test compares both.
"""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pprint import pformat
from typing import Final

from v8.base.storage import packaged
from v8.base.version import VERSION
from v8.forecaster.metadata import Metadata
from v8.profile.columns import MEDIAN, OHLCV, OPEN_TIME, is_raw_column, neighbours, percent_of, split_origin
from v8.profile.indicators import FEATURES, ancestry, formula_of, is_of_package, warmup_bars

FEATURES_FILE: Final = "features.py"

_FORMULAS: Final = "v8.profile", "formulas.py"
_FRAMES: Final = "v8.forecaster", "candle_frames.py"
"""Modules whose source the file holds, each by its package and its file."""

_HEAD: Final = '''"""Inputs of the models of profile {profile}, computed with numpy and pandas alone.

    import features

    inputs = features.compute(candles)
    outputs = model.predict(features.window(inputs), verbose=0)
    print(features.forecast_table(outputs, inputs))

`candles` is a frame of closed candles: open_time (UTC), open, high, low, close, volume. The README.md of a
model says what each column means. Written by v8 {version}; MIT licence.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any, Final

import numpy as np
import pandas as pd

FloatArray = np.ndarray  # float64, shape (N,)
'''


def obstacle(features: Iterable[str]) -> str:
    """Return in one clause why no `features.py` can compute some features; empty if one can.

    >>> obstacle(["close", "range_20"]), obstacle(["ta.adx"])
    ('', 'ta.adx is computed by the package ta')
    """
    functions = {name for name, text in _definitions(*_FORMULAS).items() if text.startswith("def ")}
    for name in features:
        if is_of_package(name):
            return f"{name} is computed by the package ta"
        if name not in FEATURES or not functions.issuperset(_function_names([name])):
            return f"{name} is computed by a plug-in"
    return ""


def features_code(
    *,
    profile: str,
    features: Sequence[str],
    lookback_bars: int,
    horizon_bars: int,
    tasks: Mapping[str, Sequence[str]],
    quantiles: Sequence[float],
) -> str:
    """Return the text of `features.py`.

    Args:
        profile: Name of the profile.
        features: Features in the order of the models; they have no `obstacle`.
        lookback_bars: Bars of a window.
        horizon_bars: Bars ahead.
        tasks: Columns of each output.
        quantiles: Levels; empty for models without quantiles.
    """
    lines = []
    for name in _steps(features):
        formula = formula_of(name)
        parameters = dict(formula.parameters)
        lines.append(
            f"    {name!r}: ({formula.function.__name__}, {tuple(formula.inputs)!r}, {parameters!r}),"
        )
    constants = {
        "LOOKBACK_BARS": lookback_bars,
        "HORIZON_BARS": horizon_bars,
        "WARMUP_BARS": warmup_bars(features),
        "INPUTS": _inputs(features),
        "FEATURES": tuple(features),
        "TASKS": {task: tuple(columns) for task, columns in tasks.items()},
        "QUANTILES": tuple("" if level == MEDIAN else f"q{percent_of(level)}" for level in quantiles),
    }
    assignments = [
        f"{name} = {pformat(value, width=100, compact=True, sort_dicts=False)}"
        for name, value in constants.items()
    ]
    functions = _sources(_FORMULAS, set(_function_names(features)))
    frames = [text for name, text in _definitions(*_FRAMES).items() if name not in {*constants, "STEPS"}]
    parts = [
        _HEAD.format(profile=profile, version=VERSION),
        "\n".join(assignments),
        *functions,
        "\n".join(["STEPS = {", *lines, "}"]),
        *frames,
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _steps(features: Iterable[str]) -> list[str]:
    """List the columns and stages to compute, each after those that it is computed from."""
    steps: dict[str, None] = {}

    def add(name: str) -> None:
        if name in steps or is_raw_column(name):
            return
        for source in formula_of(name).inputs:
            add(source)
        steps[name] = None

    for name in features:
        add(name)
    return list(steps)


def _inputs(features: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the columns of candles that are read, by symbol; the series' own has the empty symbol."""
    raw = {column for name in features for column in ancestry(name).raw_columns} - {OPEN_TIME}
    own: list[str] = [name for name in OHLCV if name in raw or name == "close"]
    own += sorted(name for name in raw if split_origin(name)[0] == "csv")
    inputs: dict[str, tuple[str, ...]] = {"": tuple(own)}
    for symbol in neighbours(features):
        inputs[symbol] = tuple(name for name in OHLCV if f"{symbol}.{name}" in raw)
    return inputs


def _function_names(features: Iterable[str]) -> list[str]:
    return [formula_of(name).function.__name__ for name in _steps(features)]


def _sources(place: tuple[str, str], needed: set[str]) -> list[str]:
    """Return the definitions of a module that some names need, directly or not, in its order."""
    definitions = _definitions(*place)
    waiting = list(needed)
    while waiting:
        for node in ast.walk(ast.parse(definitions[waiting.pop()])):
            if isinstance(node, ast.Name) and node.id in definitions and node.id not in needed:
                needed.add(node.id)
                waiting.append(node.id)
    return [text for name, text in definitions.items() if name in needed]


@cache
def _definitions(package: str, file: str) -> Mapping[str, str]:
    """Return the source of the functions and constants of a module by name, in its order."""
    source = packaged(package, file)
    lines = source.splitlines()
    statements = ast.parse(source).body
    definitions = {}
    for number, node in enumerate(statements):
        end = node.end_lineno
        name = ""
        if isinstance(node, ast.FunctionDef):
            name = node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            after = statements[number + 1] if number + 1 < len(statements) else None
            if isinstance(after, ast.Expr):  # the text that describes a constant
                end = after.end_lineno
        if name:
            text = "\n".join(lines[node.lineno - 1 : end])
            definitions[name] = re.sub(r"\n    import pandas as pd .*\n", "", text)
    return definitions


def features_file(metadata: Metadata) -> str:
    """Return the text of `features.py` for a model and all others of its profile.

    It is empty where numpy and pandas alone cannot compute the features: of the package ta, of plug-ins.
    """
    if obstacle(metadata.names):
        return ""
    return features_code(
        profile=metadata.profile.name,
        features=metadata.names,
        lookback_bars=metadata.lookback_bars,
        horizon_bars=metadata.horizon_bars,
        tasks={name: task.columns for name, task in metadata.tasks.items()},
        quantiles=metadata.profile.quantiles,
    )
