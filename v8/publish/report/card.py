"""The model card: the README.md that the Hub shows for a published run.

Every number is read from the evaluations in `metadata.json`, through the same leaderboard that the report and
the command line show; nothing is computed here. Nothing depends on the time of day either, so the same run
gives the same card. A model that loses to the naive forecast, or to the best baseline, has a note of that
next to its name.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import yaml

from v8.base.errors import listed, shown
from v8.base.records import Moment, Plain, Sha256, Word, at_keys, checked
from v8.base.storage import packaged, packaged_yaml
from v8.base.wording import ABSENT, Table, count, duration, moment, number, p_value, percent, plural
from v8.forecaster.metadata import ONNX_FILE, MachineInfo, Metadata
from v8.forecaster.series_artifact import covariate_note
from v8.forecaster.standalone import FEATURES_FILE, obstacle
from v8.model.baselines.paths import RANGE_SHARE, pooled
from v8.model.evaluation.evaluation import MODEL
from v8.model.evaluation.leaderboard import (
    LeaderboardRow,
    SeriesResult,
    compared,
    median,
    rank_results,
    untested,
)
from v8.model.evaluation.metrics import importance_rows
from v8.model.evaluation.significance import ALPHA
from v8.profile.columns import interval_names, is_covariate, neighbours
from v8.profile.tasks import TASKS
from v8.publish.report.verdict import baseline_in_words, best_baselines_in_words, verdict
from v8.runs.run_folder import RUN_FILE, RunRecord, start_another

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

LICENSE: Final = "mit"
PIPELINE: Final = "time-series-forecasting"
TAGS: Final = ("v8", "keras", "time-series", PIPELINE, "cryptocurrency", "finance")

FORECAST_PICTURE: Final = "forecast.png"  # forecasts of the end of a test span
MODELS_FOLDER: Final = "models"  # holds a folder for each series

MOST_KLINES: Final = 1_000
"""Most candles of one answer of the exchange's API."""

_BINANCE_SOURCES: Final = (
    "vision",
    "rest",
    "live",
)  # sources with candles of the exchange that the card names

_CARD: Final = packaged("v8.publish.report", "card.md")

_PARTS: Final = packaged_yaml("v8.publish.report", "card.yaml")  # parts that not every card has


@dataclass(frozen=True)
class _TaskFacts:
    loss: Word


@dataclass(frozen=True)
class _RunFacts:
    """What a card reads from `run.json`; a damaged file is refused, so that no markup gets into a card."""

    created_at: Moment
    scaling: Annotated[Word, at_keys("profile", "scaling")]
    family: Annotated[Word, at_keys("profile", "network", "family")]
    tasks: Annotated[Mapping[Word, _TaskFacts], at_keys("profile", "tasks")]
    profile_digest: Sha256
    machine: MachineInfo
    versions: Mapping[Word, Plain]


@dataclass(frozen=True)
class Replacements:
    """Models that took the place of older ones, as the annex that replaced them describes them."""

    table: Table
    lines: Mapping[str, str]  # per series, for the description of a commit


def model_card(
    repo: str,
    run: RunRecord,
    metadata: Sequence[Metadata],
    held_back: Mapping[str, str],
    *,
    is_of_many_runs: bool = False,
    replacements: Iterable[Replacements] = (),
    files: Collection[str] = (),
) -> str:
    """Write the card of a run in Markdown with YAML front matter.

    Args:
        repo: The repository, `user/name`, from which the examples load models.
        run: The run. Where models of other runs of the same profile are published, too, the card is the same
            whichever of these runs it is written for.
        metadata: The metadata of each published series, at least one.
        held_back: By series that is not published: the reason, a clause.
        is_of_many_runs: Whether the models come from more than one run.
        replacements: Newer models that took the place of older ones.
        files: Paths of the other files of the repository; the card shows `features.py`, `forecast.png` and
            `model.onnx` where they are among these.

    Raises:
        ArtifactError: If a key of `run.json` is missing or damaged.
    """
    fix = f"Restore the file, or {start_another()}"
    run_facts = checked(_RunFacts, vars(run), where=RUN_FILE, fix=fix)
    results = [series_metadata.result for series_metadata in metadata]
    first = metadata[0]
    by_series = {series_metadata.series: series_metadata for series_metadata in metadata}
    rows = rank_results(results)
    horizon = "candle" if first.horizon_bars == 1 else plural(first.horizon_bars, "candle")
    is_tested = any(score.naive.p_value is not None for row in rows for score in row.tasks.values())
    intervals = _intervals(results)
    return _CARD.format(
        front_matter=_front_matter(repo, run.profile_name, rows, metadata),
        profile=run.profile_name,
        models=plural(len(metadata), "forecaster"),
        lookback=first.lookback_bars,
        horizon=horizon,
        columns=_columns(first),
        verdict="\n\n".join(verdict(rows)),
        significance=_significance(rows, is_tested=is_tested),
        leaderboard=_leaderboard(rows, is_tested=is_tested),
        intervals=intervals,
        importance=_importance(results),
        sureness=_PARTS["sure" if intervals else "unsure"],
        changes=_changes(replacements),
        held_back=_held_back(held_back),
        picture=_PARTS["picture"] if FORECAST_PICTURE in files else "",
        loader=_loader(repo, by_series[rows[0].series], files),
        repo=repo,
        covariates=_covariates(first),
        series=rows[0].series,
        data=_data(metadata),
        making=_making(run, run_facts, metadata, is_of_many_runs=is_of_many_runs),
    )


def _loader(repo: str, metadata: Metadata, files: Collection[str]) -> str:
    """Write the lines that download a model, compute its inputs and forecast, without v8."""
    series = metadata.series
    if FEATURES_FILE not in files:
        part = _PARTS["loader_without_features"]
        reason = obstacle(metadata.names) or "it was not published"
        return str(part).format(repo=repo, series=series, obstacle=reason)
    symbol, _, timeframe = series.rpartition("-")
    needed = metadata.needed_bars
    symbols = neighbours(metadata.names)
    frames = ", ".join(f'"{other}": pd.read_csv("{other}-{timeframe}.csv")' for other in symbols)
    others = f", {{{frames}}}" if frames else ""
    text = str(_PARTS["loader"]).format(repo=repo, series=series, needed=f"{needed:,}", others=others)
    if f"{MODELS_FOLDER}/{series}/{ONNX_FILE}" in files:
        text += str(_PARTS["onnx"]).format(series=series)
    has_tables = any(is_covariate(name) for name in metadata.names)
    if metadata.candles.source in _BINANCE_SOURCES and needed < MOST_KLINES and not has_tables:
        limit = min(2 * needed, MOST_KLINES)
        text += str(_PARTS["exchange"]).format(symbol=symbol, timeframe=timeframe, limit=limit)
    return text


def _columns(metadata: Metadata) -> str:
    """List the columns of a model's forecasts, in the usual order of the tasks."""
    tasks = [metadata.tasks[task] for task in TASKS if task in metadata.tasks]
    return ", ".join(f"`{name}`" for task in tasks for name in task.columns)


def _significance(rows: Sequence[LeaderboardRow], *, is_tested: bool) -> str:
    if not is_tested:
        return str(_PARTS["no_test"])
    test = str(_PARTS["test"]).format(num_series=len(rows), alpha=ALPHA)
    without_test = untested(rows)
    return f"{test} Not tested, too few windows: {listed(without_test)}." if without_test else test


def _changes(replacements: Iterable[Replacements]) -> str:
    """Show the models that took the place of older ones; empty without any."""
    return "".join(str(_PARTS["changes"]).format(table=each.table.markdown()) for each in replacements)


def _held_back(reasons: Mapping[str, str]) -> str:
    """List the series that are not published, each with the reason; empty without any."""
    if not reasons:
        return ""
    lines = "".join(f"- {series}: {reason}\n" for series, reason in sorted(reasons.items()))
    return f"Not published:\n\n{lines}\n"


def _covariates(metadata: Metadata) -> str:
    """Say which candles of other series a model needs; empty where it needs none."""
    note = covariate_note(metadata)
    return f"\n{note}\n" if note else ""


def _front_matter(
    repo: str, profile: str, rows: Sequence[LeaderboardRow], metadata: Sequence[Metadata]
) -> str:
    from huggingface_hub import ModelCardData  # noqa: PLC0415 - forecasts of a run folder do without it

    datasets = sorted({one.candles.dataset for one in metadata if one.candles.dataset})
    options: dict[str, Any] = {"datasets": datasets} if datasets else {}
    if any(one.training.started_from for one in metadata):
        # Their training began from the weights of models that were published here before.
        options |= {"base_model": repo, "base_model_relation": "finetune"}
    datasets_by_series = {one.series: one.candles.dataset for one in metadata}
    data = ModelCardData(
        library_name="keras",
        license=LICENSE,
        pipeline_tag=PIPELINE,
        tags=list(TAGS),
        model_name=profile,
        eval_results=[
            result for row in rows for result in _eval_results(row, datasets_by_series[row.series])
        ],
        **options,
    )
    content = data.to_dict()  # type: ignore[no-untyped-call]
    # One metric on each line, so that a change of the card is easy to see.
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1_000, default_flow_style=None)


def _eval_results(row: LeaderboardRow, dataset: str | None) -> Iterator["EvalResult"]:
    """Write the results of one series for the Hub's model index: task, data set, and each metric.

    The Hub's newer format, files in `.eval_results`, takes results on its registered benchmarks only.
    """
    from huggingface_hub import EvalResult  # noqa: PLC0415 - as above

    error = "mean absolute error over that of the"
    for task, score in row.tasks.items():
        metrics = [
            ("relative_mae", f"{error} naive forecast", score.naive.relative_mae),
            ("skill_score", "skill against the naive forecast", score.naive.skill),
        ]
        for best in score.comparisons[1:]:
            meaning = f"{error} best baseline, {best.name}"
            metrics.append(("relative_mae_of_best_baseline", meaning, best.relative_mae))
        for kind, meaning, value in metrics:
            if value is not None and math.isfinite(value):
                yield EvalResult(
                    task_type=PIPELINE,
                    task_name="Time series forecasting",
                    dataset_type=dataset or row.series,
                    dataset_config=row.series if dataset else None,
                    dataset_name=f"{row.series} candles ({row.source})",
                    dataset_split="test",
                    dataset_args={name: row.split["test"][name] for name in ("first_open", "last_open")},
                    metric_type=kind,
                    metric_name=f"{TASKS[task].title}: {meaning}",
                    metric_value=value,
                )


def _leaderboard(rows: Sequence[LeaderboardRow], *, is_tested: bool) -> str:
    comparisons = compared(rows)
    header = ["series"]
    for task, name in comparisons:
        header.append(f"{TASKS[task].title} × {name}")
        if is_tested:
            header.append("p")
    header.append("direction")
    lines = []
    for row in rows:
        cells = [_labelled(row)]
        for by_series in comparisons.values():
            comparison = by_series.get(row.series)
            cells.append(number(comparison.relative_mae if comparison else None))
            if is_tested:
                cells.append(p_value(comparison.corrected_p_value if comparison else None))
        cells.append(_hit_rate(row))
        lines.append(cells)
    best = best_baselines_in_words(rows)
    note = f"\n\nBest baselines: {best}." if best else ""
    return f"{Table(header, lines).markdown()}{note}"


def _hit_rate(row: LeaderboardRow) -> str:
    """Write the hit rate of the direction with its 95 % interval."""
    if row.hit_rate_95 is None:
        return ABSENT
    low, high = row.hit_rate_95
    return f"{percent(row.hit_rate)} ({percent(low)} to {percent(high)})"


def _labelled(row: LeaderboardRow) -> str:
    """Name a series, and the forecasts that are significantly better than its model."""
    tasks_by_winner: dict[str, list[str]] = {}
    for task, score in row.tasks.items():
        for name in score.lost_to:
            tasks_by_winner.setdefault(name, []).append(TASKS[task].title.lower())
    losses = "; ".join(f"loses to {name}: {', '.join(tasks)}" for name, tasks in tasks_by_winner.items())
    return f"{row.series} **{losses}**" if losses else row.series


def _intervals(results: Sequence[SeriesResult]) -> str:
    """Write medians over series of the errors of quantiles; empty where no model has any."""
    evaluated = [result.quantiles for result in results if result.quantiles]
    if not evaluated:
        return ""
    first = evaluated[0]
    names = interval_names(first.levels)
    rows = []
    for task, quantiles in first.tasks.items():
        comparable = [
            one.tasks[task] for one in evaluated if one.levels == first.levels and task in one.tasks
        ]
        for name in quantiles.errors:
            errors = [one.errors[name] for one in comparable if name in one.errors]
            crps = median(one.errors[name].crps / one.errors[MODEL].crps for one in comparable)
            cells = [TASKS[task].title, baseline_in_words(name), number(crps)]
            for place in range(len(names)):
                cells.append(percent(median(one.mean_coverage(place) for one in errors)))
            rows.append(cells)
    header = ("task", "forecaster", "CRPS, model = 1", *(f"within {name}" for name in names))
    content = str(_PARTS["intervals"]).format(table=Table(header, rows).markdown())
    coverage = pooled(result.price_range for result in results)
    if coverage is None:
        return content
    note = str(_PARTS["price_range"]).format(
        stated=percent(RANGE_SHARE, 0), share=percent(coverage.share), num=count(coverage.num_windows)
    )
    return f"{content}{note}"


def _importance(results: Sequence[SeriesResult]) -> str:
    """Write medians over series of the importance of kinds of inputs; empty where it was not measured."""
    importances = [result.importance for result in results if result.importance]
    if not importances:
        return ""
    tasks = next(iter(importances[0].values()))
    header = ("inputs", *(TASKS[task].title for task in tasks))
    table = Table(header, importance_rows(importances))
    return str(_PARTS["importance"]).format(table=table.markdown())


def _data(metadata: Sequence[Metadata]) -> str:
    header = ("series", "source", "first candle", "last candle", "candles", "test span from", "test windows")
    rows = []
    for series_metadata in metadata:
        candles = series_metadata.candles
        test = series_metadata.split.test
        rows.append(
            [
                series_metadata.series,
                shown(candles.source),
                moment(candles.first_open),
                moment(candles.last_open),
                count(candles.num_bars),
                moment(test.first_open),
                count(test.num_windows),
            ]
        )
    return Table(header, rows).markdown()


def distinct_versions(records: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return every version that any of some records has, by the name of the package.

    >>> distinct_versions([{"keras": "3.14"}, {"keras": "3.15"}])
    {'keras': '3.14, 3.15'}
    """
    versions_by_name: dict[str, list[str]] = {}
    for versions in records:
        for name, version in versions.items():
            versions_by_name.setdefault(name, []).append(version)
    return {name: _distinct(versions) for name, versions in versions_by_name.items()}


def _making(
    run: RunRecord, run_facts: _RunFacts, metadata: Sequence[Metadata], *, is_of_many_runs: bool
) -> str:
    """Return a table of how, with what and on which machines the models were trained."""
    results = [series_metadata.result for series_metadata in metadata]
    records: Sequence[RunRecord | Metadata] = metadata if is_of_many_runs else [run]
    versions = distinct_versions(record.versions for record in records)
    times = sorted(record.created_at for record in records)
    machines = [run_facts.machine]
    if is_of_many_runs:
        machines = [series_metadata.machine for series_metadata in metadata]
    num_parameters = _distinct(f"{series_metadata.num_parameters:,}" for series_metadata in metadata)
    losses = ", ".join(f"{task} {task_facts.loss}" for task, task_facts in run_facts.tasks.items())
    fewest = count(min(result.epochs_run for result in results))
    most = count(max(result.epochs_run for result in results))
    seconds = math.fsum(result.total_seconds for result in results)
    formats = _distinct(series_metadata.training.precision for series_metadata in metadata)
    devices = _distinct(series_metadata.training.device for series_metadata in metadata)
    machine_names = _distinct(_machine(machine) for machine in machines)
    version_list = ", ".join(f"{name} {version}" for name, version in versions.items())
    rows = [
        ("profile", f"`{run.profile_name}`, digest `{run.profile_digest[:12]}`"),
        ("network", f"{run_facts.family}, {num_parameters} parameters"),
        ("scaling and losses", f"{run_facts.scaling}; {losses}"),
        ("epochs run", fewest if fewest == most else f"{fewest} to {most}"),
        ("number format", formats),
        ("computed on", devices),
        ("machine", machine_names),
        ("time", f"{duration(seconds)} over all models"),
        ("models saved", f"{times[0]} to {times[-1]}") if is_of_many_runs else ("run started", times[0]),
        ("versions", version_list),
    ]
    return Table(("what", "value"), rows).markdown()


def _machine(machine: MachineInfo) -> str:
    return f"{machine.cpu}, {machine.num_cores} cores, {machine.memory_bytes / 2**30:.0f} GiB of memory"


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(sorted({shown(value) for value in values}))
