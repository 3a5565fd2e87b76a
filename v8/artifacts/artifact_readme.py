"""The README of one artefact: how to use its `model.keras`, with v8 and with nothing but Keras.

Whoever has only the folder of one series must be able to use it: what goes in, in which order and unit,
what comes out, how good it was beside the naive forecast and the best baseline, and what it has seen.
Everything is read from `metadata.json`; the code in it is run by a test in an environment without v8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from v8.columns import neighbours
from v8.errors import listed
from v8.features.indicators import warmup_bars
from v8.formulas.baselines import called
from v8.losses.judgement import Judgement
from v8.losses.significance import ALPHA
from v8.profile import TableSettings, recorded_tables
from v8.quantile_levels import percent_of, quantile_output
from v8.tables import Table
from v8.wording import number, plural

README_FILE: Final = "README.md"

_EXPONENTIAL = {
    "macd": "An exponential average over n bars starts at the first close and gives the newest value the "
    "weight 2 / (n + 1): `ewm(span=n, adjust=False).mean()` in pandas.",
    "rsi": "Wilder's averages over n bars start at the first change and give the newest value the weight "
    "1 / n: `ewm(alpha=1 / n, adjust=False).mean()`; the first bar counts as no change. The index is 100 "
    "times the average gain over the sum of average gain and average loss, and 50 where nothing moved.",
}


def artifact_readme(metadata: Mapping[str, Any]) -> str:
    """Write the README of an artefact, in Markdown, from the content of its `metadata.json`."""
    parts = (_introduction, _quality, _data, _with_v8, _with_keras, _features)
    return "\n\n".join(part(metadata) for part in parts) + "\n"


def _introduction(metadata: Mapping[str, Any]) -> str:
    symbol, _, timeframe = str(metadata["series"]).partition("-")
    horizon, lookback = (
        plural(metadata[key], f"{timeframe} candle") for key in ("horizon_bars", "lookback_bars")
    )
    parts = [
        f"# {metadata['series']}",
        f"Forecasts the next {horizon} of {symbol} from the last {lookback}. Profile "
        f"`{metadata['profile']['name']}`, {metadata['num_parameters']:,} parameters, trained by v8 "
        f"{metadata['versions']['v8']} with Keras "
        f"{metadata['versions']['keras']}. `metadata.json` tells everything else.",
    ]
    if metadata["is_demo_market"]:
        parts.append(
            "**Demo market: this model was trained on simulated candles and says nothing about a real one.**"
        )
    return "\n\n".join(parts)


def _quality(metadata: Mapping[str, Any]) -> str:
    judgement = Judgement.from_json(metadata["judgement"], where=f"metadata of {metadata['series']}")
    rows = [(task, *_beside(judgement, task)) for task in judgement.tasks]
    header = ("task", "multiple of naive", "verdict", "best baseline", "multiple of it", "verdict")
    lines = [
        "## How good it is",
        f"Mean absolute error on the {judgement.num_windows:,} windows of the test span, which training "
        "never saw, as a multiple of the error of the naive forecast: the close stays where it is, bands and "
        "volatility follow from that. Below 1 it errs less. Beside it stands the forecast without a network "
        "that erred least here. It beats the other or loses to it where "
        f"that is more than chance (Diebold-Mariano, p below {ALPHA:g}); else there is no real difference.",
        Table(header, rows).markdown(),
    ]
    if judgement.loses:
        tasks = ", ".join(judgement.loses)
        lines.append(f"**It loses to the naive forecast at: {tasks}. Use the naive one there.**")
    if judgement.beaten_by:
        found = ", ".join(f"{task} ({called(name)})" for task, name in judgement.beaten_by.items())
        lines.append(f"**A forecast without a network does better at: {found}.**")
    lines.append("Nothing here is financial advice; past errors promise nothing about coming ones.")
    return "\n\n".join(lines)


def _beside(judgement: Judgement, task: str) -> Iterator[str]:
    """Say how a task compares with the naive forecast, and with the baseline that erred least."""
    best = judgement.best_baseline(task)
    yield number(judgement.multiple(task))
    yield judgement.verdict(task)
    yield called(best)
    yield number(judgement.multiple(task, baseline=best))
    yield judgement.verdict(task, best)


def _data(metadata: Mapping[str, Any]) -> str:
    candles, split = metadata["candles"], metadata["split"]
    rows = [
        (name, split[name]["first_open"], split[name]["last_open"], f"{split[name]['num_windows']:,}")
        for name in ("train", "validation", "test")
    ]
    return "\n\n".join(
        [
            "## What it has seen",
            f"{candles['num_bars']:,} candles from `{candles['source']}`, {candles['first_open']} to "
            f"{candles['last_open']} (open times, UTC).",
            Table(("span", "first open", "last open", "windows"), rows).markdown(),
        ]
    )


def covariate_note(metadata: Mapping[str, Any]) -> str:
    """Say in Markdown what a model reads beside the candles of its series; nothing for most models."""
    names = [feature["name"] for feature in metadata["features"]]
    tables = recorded_tables(metadata["profile"].get("covariates", ()), where="metadata, key covariates")
    _, _, timeframe = str(metadata["series"]).rpartition("-")
    lines = [f"- `{symbol}`: its {timeframe} candles up to the same one" for symbol in neighbours(names)]
    lines += [_table_line(table) for table in tables]
    if not lines:
        return ""
    given = ", ".join(f'"{name}": ...' for name in (*neighbours(names), *(table.file for table in tables)))
    told = "It also reads, and refuses to forecast without:\n\n" + "\n".join(lines)
    return f"{told}\n\n```\nforecast = forecaster.predict(candles, covariates={{{given}}})\n```"


def _table_line(table: TableSettings) -> str:
    columns = ", ".join(f"`{name}`" for name in table.columns)
    return (
        f"- `{table.file}`, a table of your own, not published: times in `{table.time}`, {columns}. A row "
        f"counts from its time plus {table.available_after_s:,} s until a newer one does, at most until its "
        f"time plus {table.max_age_s:,} s. On the command line `--tables FOLDER` names its folder"
    )


def _with_v8(metadata: Mapping[str, Any]) -> str:
    beside = f"\n{note}\n" if (note := covariate_note(metadata)) else ""
    return f"""## Use it with v8

`candles` is a frame of raw candles, at least {_needed_bars(metadata)} unbroken ones up to the newest closed
one: `open_time` (UTC), `open`, `high`, `low`, `close`, `volume`.

```
import v8

forecaster = v8.load("FOLDER or user/name", "{metadata["series"]}")
forecast = forecaster.predict(candles)
```
{beside}
v8 is installed from a checkout of its repository, `python -m pip install /path/to/v8`; the package of that
name on the public index is another."""


def _with_keras(metadata: Mapping[str, Any]) -> str:
    horizon = metadata["horizon_bars"]
    rows = []
    for task, about in metadata["tasks"].items():
        shape, columns = f"(N, {horizon}, {len(about['columns'])})", ", ".join(about["columns"])
        rows.append((f'`forecast["{task}"]`', shape, columns, about["unit"]))
    rows += _quantile_rows(metadata)
    return f"""## Use it with plain Keras

`features` is a frame with the columns of the table below, one row a closed candle, oldest first, no
candle missing. Any Keras from 3.10 on loads the model.

```python
import json

import keras
import numpy as np

with open("metadata.json", encoding="utf-8") as stream:
    metadata = json.load(stream)
names = [feature["name"] for feature in metadata["features"]]
window = features[names].to_numpy(np.float32)[-metadata["lookback_bars"] :]
model = keras.saving.load_model("model.keras", compile=False)
forecast = model.predict(window[None], verbose=0)
```

Scaling is inside the model: raw numbers go in, prices come out. N windows of shape
({metadata["lookback_bars"]}, {len(metadata["features"])}), float32, give:

{Table(("output", "shape", "columns", "unit"), rows).markdown()}

Step k, from 1, is the k-th bar after the window's last one."""


def _quantile_rows(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """List the outputs that hold quantiles, where the model has some."""
    levels = metadata["profile"].get("quantiles", ())
    told = ", ".join(f"{percent_of(level)} %" for level in levels)
    for task, about in metadata["tasks"].items() if levels else ():
        shape = f"(N, {metadata['horizon_bars']}, {len(levels)}, {len(about['columns'])})"
        columns = f"quantiles {told} of {', '.join(about['columns'])}"
        yield f'`forecast["{quantile_output(task)}"]`', shape, columns, about["unit"]


def _features(metadata: Mapping[str, Any]) -> str:
    rows = [
        (str(place), f"`{feature['name']}`", feature["definition"].partition(": ")[2])
        for place, feature in enumerate(metadata["features"])
    ]
    notes = "\n".join(f"- {note}" for note in _notes(metadata))
    return f"## Features\n\n{Table(('place', 'name', 'definition'), rows).markdown()}\n\n{notes}"


def _notes(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Say what a definition's sentence leaves open."""
    lookback, names = metadata["lookback_bars"], [feature["name"] for feature in metadata["features"]]
    yield (
        f"Compute them on at least {_needed_bars(metadata)} candles, {lookback} of the window and "
        f"{warmup_bars(names)} before it, then keep the last {lookback} rows. Start anew after a "
        "missing candle."
    )
    if any("sample " in feature["definition"] for feature in metadata["features"]):
        yield "A sample deviation has the divisor n - 1."
    if any(name.startswith("macd") for name in names):
        yield _EXPONENTIAL["macd"]
    if "rsi" in names:
        yield _EXPONENTIAL["rsi"]
    if "atr" in names:
        yield "The true range of a bar is max(high, previous close) - min(low, previous close)."
    if "volume_norm" in names:
        yield "A window of bars without any volume gives volume_norm 1."
    if others := neighbours(names):
        yield (
            f"What is of {listed(others)} is computed from those candles alone: whatever its definition "
            "names, recent_range too, is theirs."
        )


def _needed_bars(metadata: Mapping[str, Any]) -> int:
    warmup = warmup_bars(feature["name"] for feature in metadata["features"])
    return int(metadata["lookback_bars"]) + warmup
