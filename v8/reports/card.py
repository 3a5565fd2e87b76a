"""The model card: the README.md that the Hub shows for a published run.

Every number is read from the judgements in `metadata.json`, through the same leaderboard that the
report and the command line show; nothing is computed here. Nothing depends on the time of day either, so
the same run gives the same card. A model that loses to the naive forecast is called so, beside its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from v8.columns import TASK_COLUMNS
from v8.evaluation.judgement import LOSES
from v8.evaluation.significance import ALPHA
from v8.reports.leaderboard import LeaderboardRow, TaskScore, rank_results, summarise
from v8.reports.results import RunFacts, SeriesResult, read_results, read_run_facts
from v8.tasks import TASKS
from v8.wording import ABSENT, count, duration, markdown_table, number, p_value, percent

LICENSE: Final = "mit"
PIPELINE: Final = "time-series-forecasting"
TAGS: Final = ("v8", "keras", "time-series", PIPELINE, "cryptocurrency", "finance")

_NO_TEST: Final = "The test spans hold too few windows to say what is more than chance."

_YAML_WIDTH = 1_000
"""One metric a line, so that a change of the card is easy to see."""


def model_card(
    repo: str,
    run: Mapping[str, Any],
    metadata: Sequence[Mapping[str, Any]],
    held_back: Mapping[str, str],
) -> str:
    """Write the card of a run.

    Args:
        repo: `user/name`, for the examples.
        run: The content of `run.json`.
        metadata: One mapping per published series, as `metadata.json` holds it; at least one.
        held_back: Per series that is not published: why, as a clause.

    Returns:
        Markdown with YAML front matter.

    Raises:
        ArtifactError: If a key is missing or damaged.
    """
    facts, results = read_run_facts(run), read_results(metadata)
    rows = rank_results(results)
    parts = [
        _front_matter(facts, results, rows),
        _introduction(facts, metadata),
        _summary(rows),
        _leaderboard(rows),
        _held_back(held_back),
        _usage(repo, rows[0].series),
        _data(metadata),
        _intended_use(metadata[0]),
        _making(facts, run["profile"], metadata, results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(facts: RunFacts, results: Sequence[SeriesResult], rows: Sequence[LeaderboardRow]) -> str:
    splits = {result.series: result.split["test"] for result in results}
    index = [_result(row, splits[row.series]) for row in rows]
    content = {
        "library_name": "keras",
        "license": LICENSE,
        "pipeline_tag": PIPELINE,
        "tags": list(TAGS),
        "model-index": [
            {"name": facts.profile_name, "results": [result for result in index if result["metrics"]]}
        ],
    }
    text = yaml.safe_dump(
        content, sort_keys=False, allow_unicode=True, width=_YAML_WIDTH, default_flow_style=None
    )
    return f"---\n{text}---"


def _result(row: LeaderboardRow, test: Mapping[str, Any]) -> dict[str, Any]:
    """Write one series as the Hub's model index wants it: task, data set, metrics."""
    return {
        "task": {"type": PIPELINE, "name": "Time series forecasting"},
        "dataset": {
            "type": row.series,
            "name": f"{row.series} candles ({row.source})",
            "split": "test",
            "args": {"first_open": test["first_open"], "last_open": test["last_open"]},
        },
        "metrics": [metric for task, score in row.tasks.items() for metric in _metrics(task, score)],
    }


def _metrics(task: str, score: TaskScore) -> Iterator[dict[str, Any]]:
    title = TASKS[task].title
    found = {
        "relative_mae": ("mean absolute error over that of the naive forecast", score.multiple),
        "skill_score": ("skill against the naive forecast", score.skill),
    }
    for kind, (meaning, value) in found.items():
        if value is not None and math.isfinite(value):
            yield {"type": kind, "name": f"{title}: {meaning}", "value": value}


def _introduction(facts: RunFacts, metadata: Sequence[Mapping[str, Any]]) -> str:
    first = metadata[0]
    tasks = [task for task in TASK_COLUMNS if task in first["tasks"]]
    columns = ", ".join(f"`{name}`" for task in tasks for name in first["tasks"][task]["columns"])
    num_models = f"{len(metadata)} forecaster{'s' if len(metadata) > 1 else ''}"
    return f"""# {facts.profile_name}: {num_models} of crypto candles

One Keras model per coin and timeframe. Each reads the last {first["lookback_bars"]} candles and forecasts the
next {_bars(first["horizon_bars"])} in price units, volatility as a share of the price:

{columns}

Every model is shown beside the naive forecast, in which the close stays where it is and bands and
volatility follow from that.

**Not financial advice.** Most of what can be forecast here is how far prices move, not in which direction."""


def _summary(rows: Sequence[LeaderboardRow]) -> str:
    summary = summarise(rows)
    cells = [
        (
            TASKS[task].title,
            count(found.num_series),
            number(found.median_multiple),
            number(found.median_skill),
            f"{found.num_beating} ({found.num_significantly_beating})",
            f"{sum(row.tasks[task].verdict == LOSES for row in rows if task in row.tasks)} "
            f"({found.num_significantly_losing})",
        )
        for task, found in summary.tasks.items()
    ]
    header = ("task", "models", "median multiple", "median skill", "beat naive", "lose to naive")
    return f"""## How good they are

Mean absolute error in returns over all steps, on the test span, which nothing was fitted on. The multiple
is the model's error over the naive forecast's: below 1 is better than naive. Skill is 1 minus that. In
brackets: how many differ from naive by more than chance.

{markdown_table(header, cells)}"""


def _leaderboard(rows: Sequence[LeaderboardRow]) -> str:
    tasks = list(summarise(rows).tasks)
    is_tested = any(score.p_value is not None for row in rows for score in row.tasks.values())
    columns = ("skill", "p") if is_tested else ("skill",)
    header = ["series", *(name for task in tasks for name in (TASKS[task].title, *columns)), "direction"]
    cells = [
        [
            _name(row),
            *(cell for task in tasks for cell in _cells(row.tasks.get(task))[: 1 + len(columns)]),
            _direction(row),
        ]
        for row in rows
    ]
    return f"""## Leaderboard

The number below each task is the multiple of the naive forecast's error. Direction: how often the close of
the next bar was on the forecast side, with its 95 % interval. {_test(len(rows)) if is_tested else _NO_TEST}

{markdown_table(header, cells)}"""


def _test(num_series: int) -> str:
    return (
        "p is the chance of a difference this large if model and naive forecast were equally good: "
        f"Diebold-Mariano test, two-sided, corrected for {num_series} series at once (Benjamini-Hochberg); "
        f"below {ALPHA} is more than chance."
    )


def _name(row: LeaderboardRow) -> str:
    losing = [TASKS[task].title.lower() for task, score in row.tasks.items() if score.verdict == LOSES]
    return f"{row.series} **loses to naive: {', '.join(losing)}**" if losing else row.series


def _cells(score: TaskScore | None) -> tuple[str, str, str]:
    if score is None:
        return ABSENT, ABSENT, ABSENT
    return number(score.multiple), number(score.skill), p_value(score.corrected_p_value)


def _direction(row: LeaderboardRow) -> str:
    if row.hit_rate is None or row.hit_rate_95 is None:
        return ABSENT
    low, high = row.hit_rate_95
    return f"{percent(row.hit_rate)} ({percent(low)} to {percent(high)})"


def _held_back(held_back: Mapping[str, str]) -> str:
    if not held_back:
        return ""
    lines = [f"- {series}: {reason}" for series, reason in sorted(held_back.items())]
    return "\n".join(["Not published:", "", *lines])


def _usage(repo: str, series: str) -> str:
    return f"""## How to use them

`candles` is a pandas frame of closed candles: `open_time` (UTC), `open`, `high`, `low`, `close`, `volume`.

```python
import v8

forecaster = v8.load("{repo}", "{series}")
forecast = forecaster.predict(candles)
```

Or with nothing but Keras; `models/{series}/README.md` tells which columns go in and what comes out:

```python
import keras
from huggingface_hub import hf_hub_download

file = hf_hub_download("{repo}", "models/{series}/model.keras")
model = keras.saving.load_model(file, compile=False)
```

`manifest.json` holds the sha256 of every file. Scaling is inside the models, and they load in safe mode:
stock layers only, no code."""


def _data(metadata: Sequence[Mapping[str, Any]]) -> str:
    header = ("series", "source", "first candle", "last candle", "candles", "test span from", "test windows")
    rows = [
        (
            str(content["series"]),
            str(content["candles"]["source"]),
            _time(content["candles"]["first_open"]),
            _time(content["candles"]["last_open"]),
            count(content["candles"]["num_bars"]),
            _time(content["split"]["test"]["first_open"]),
            count(content["split"]["test"]["num_windows"]),
        )
        for content in metadata
    ]
    return f"""## Data

Candles from the sources below (vision: Binance's public archive; files: the publisher's own), in time order:
train, validation, test, with a gap between them as long as what a model reads and forecasts. Times are open
times in UTC. The models know nothing after the last candle.

{markdown_table(header, rows)}"""


def _intended_use(first: Mapping[str, Any]) -> str:
    return f"""## Intended use and limits

- For research and teaching, and as a baseline to beat. No advice to buy or sell anything.
- The close behaves like a random walk, and no model here should be expected to tell where it goes. How far
  high and low reach, the bands and above all the volatility leave more to forecast.
- Each model is for its own coin and timeframe, on candles of the same exchange, and for the next
  {_bars(first["horizon_bars"])} only.
- Markets change. The further the present is from the last candle above, the less the errors above promise.
- Costs, delays and the effect of one's own trades are in none of these numbers.
- A forecast is one number per bar without an interval around it."""


def _making(
    facts: RunFacts,
    profile: Mapping[str, Any],
    metadata: Sequence[Mapping[str, Any]],
    results: Sequence[SeriesResult],
) -> str:
    trainings = [content["training"] for content in metadata]
    rows = [
        ("profile", f"`{facts.profile_name}`, digest `{facts.profile_digest[:12]}`"),
        ("network", f"{profile['network']['family']}, {_parameters(metadata)} parameters"),
        ("scaling and losses", f"{profile['scaling']}; {_losses(profile)}"),
        ("epochs run", _span([result.epochs_run for result in results])),
        ("number format", _distinct(training["precision"] for training in trainings)),
        ("computed on", _distinct(training["device"] for training in trainings)),
        ("machine", _machine(facts.machine)),
        ("time", f"{duration(math.fsum(result.total_seconds for result in results))} over all models"),
        ("run started", facts.created_at),
        ("versions", ", ".join(f"{name} {version}" for name, version in facts.versions.items())),
    ]
    return f"""## How they were made

{markdown_table(("what", "value"), rows)}

The whole profile, the split, the scaling and all errors per step are in the `metadata.json` of each model."""


def _parameters(metadata: Sequence[Mapping[str, Any]]) -> str:
    return _distinct(f"{content['num_parameters']:,}" for content in metadata)


def _losses(profile: Mapping[str, Any]) -> str:
    return ", ".join(f"{task} {about['loss']}" for task, about in profile["tasks"].items())


def _machine(machine: Mapping[str, Any]) -> str:
    memory = machine.get("memory_bytes")
    parts = [str(machine["cpu"]), f"{machine['num_cores']} cores"]
    return ", ".join([*parts, f"{memory / 2**30:.0f} GiB of memory"] if memory else parts)


def _distinct(values: Iterator[str]) -> str:
    return ", ".join(sorted(set(values)))


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return count(low) if low == high else f"{count(low)} to {count(high)}"


def _bars(num_bars: int) -> str:
    return "candle" if num_bars == 1 else f"{num_bars} candles"


def _time(iso: str) -> str:
    """Write an ISO time without seconds and zone.

    >>> _time("2024-09-06T00:15:00+00:00")
    '2024-09-06 00:15'
    """
    return iso[:16].replace("T", " ")
