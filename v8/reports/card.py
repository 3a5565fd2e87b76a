"""The model card: the README.md that the Hub shows for a published run.

Every number is read from the evaluations in `metadata.json`, through the same leaderboard that the
report and the command line show; nothing is computed here. Nothing depends on the time of day either, so
the same run gives the same card. A model that loses to the naive forecast, or to the best baseline, is called
so beside its name.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import yaml
from huggingface_hub import EvalResult, ModelCardData

from v8.artifacts.metadata import MachineInfo, Metadata
from v8.artifacts.nested_runs import Decision
from v8.artifacts.run_folder import RUN_FILE, RunRecord
from v8.artifacts.series_artifact import covariate_note
from v8.errors import shown
from v8.evaluation.evaluation import MODEL
from v8.evaluation.importance import importance_rows
from v8.evaluation.leaderboard import LeaderboardRow, SeriesResult, compared, median, rank_results
from v8.evaluation.significance import ALPHA
from v8.quantile_levels import interval_names
from v8.records import Moment, Plain, Sha256, Word, at_keys, checked
from v8.reports.verdict import change_table, verdict
from v8.storage import packaged
from v8.tasks import TASKS
from v8.wording import ABSENT, Table, count, duration, moment, number, p_value, percent, plural, spaced

LICENSE: Final = "mit"
PIPELINE: Final = "time-series-forecasting"
TAGS: Final = ("v8", "keras", "time-series", PIPELINE, "cryptocurrency", "finance")

_CARD: Final = packaged("v8.reports", "card.md")

_PARTS: Final = yaml.safe_load(packaged("v8.reports", "card.yaml"))  # those that are there at times


@dataclass(frozen=True)
class _TaskTold:
    loss: Word


@dataclass(frozen=True)
class _Told:
    """What a card tells of `run.json`, in plain words."""

    created_at: Moment
    scaling: Annotated[Word, at_keys("profile", "scaling")]
    family: Annotated[Word, at_keys("profile", "network", "family")]
    tasks: Annotated[Mapping[Word, _TaskTold], at_keys("profile", "tasks")]
    profile_digest: Sha256
    machine: MachineInfo
    versions: Mapping[Word, Plain]


def model_card(
    repo: str,
    run: RunRecord,
    metadata: Sequence[Metadata],
    held_back: Mapping[str, str],
    *,
    is_of_many_runs: bool = False,
    changes: Iterable[Decision] = (),
) -> str:
    """Write the card of a run in Markdown with YAML front matter.

    It tells of the `metadata.json` of each published series, at least one, and names those held back with the
    reason, a clause. Its examples read from `repo`, `user/name`. When models are of other runs of the same
    profile, too, the card is the same from whichever of them it is written. `changes` made some serve. Raises
    `ArtifactError` if a key is missing or damaged.
    """
    fix = "Restore the file, or start a new run with param:fresh"
    told = checked(_Told, vars(run), where=RUN_FILE, fix=fix)
    results = [about.result for about in metadata]
    first = metadata[0]
    rows = rank_results(results)
    tasks = [first.tasks[task] for task in TASKS if task in first.tasks]
    lines = "".join(f"- {series}: {reason}\n" for series, reason in sorted(held_back.items()))
    renewed = change_table(changes)
    is_tested = any(score.naive.p_value is not None for row in rows for score in row.tasks.values())
    return _CARD.format(
        front_matter=_front_matter(run.profile_name, rows),
        profile=run.profile_name,
        models=plural(len(metadata), "forecaster"),
        lookback=first.lookback_bars,
        horizon="candle" if first.horizon_bars == 1 else plural(first.horizon_bars, "candle"),
        columns=", ".join(f"`{name}`" for task in tasks for name in task.columns),
        verdict="\n\n".join(verdict(rows)),
        significance=_PARTS["test"].format(num_series=len(rows), alpha=ALPHA)
        if is_tested
        else _PARTS["no_test"],
        leaderboard=_leaderboard(rows, is_tested=is_tested),
        intervals=(sure := _intervals(results)),
        importance=_importance(results),
        sureness=_PARTS["sure" if sure else "unsure"],
        changes=_PARTS["changes"].format(table=renewed.markdown()) if renewed.rows else "",
        held_back=f"Not published:\n\n{lines}\n" if held_back else "",
        repo=repo,
        beside=f"\n{note}\n" if (note := covariate_note(first)) else "",
        series=rows[0].series,
        data=_data(metadata),
        making=_making(run, told, metadata, is_of_many_runs=is_of_many_runs),
    )


def _front_matter(profile: str, rows: Sequence[LeaderboardRow]) -> str:
    data = ModelCardData(
        library_name="keras",
        license=LICENSE,
        pipeline_tag=PIPELINE,
        tags=list(TAGS),
        model_name=profile,
        eval_results=[result for row in rows for result in _eval_results(row)],
    )
    content = data.to_dict()  # type: ignore[no-untyped-call]
    # One metric a line, so that a change of the card is easy to see.
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1_000, default_flow_style=None)


def _eval_results(row: LeaderboardRow) -> Iterator[EvalResult]:
    """Write one series as the Hub's model index wants it: task, data set, a result per metric."""
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
                    dataset_type=row.series,
                    dataset_name=f"{row.series} candles ({row.source})",
                    dataset_split="test",
                    dataset_args={name: row.split["test"][name] for name in ("first_open", "last_open")},
                    metric_type=kind,
                    metric_name=f"{TASKS[task].title}: {meaning}",
                    metric_value=value,
                )


def _leaderboard(rows: Sequence[LeaderboardRow], *, is_tested: bool) -> str:
    every = compared(rows)
    header = ["series"]
    lines = []
    for task, name in every:
        header += [f"{TASKS[task].title} × {name}", *(["p"] if is_tested else [])]
    for row in rows:
        cells = [_labelled(row)]
        for one in (those.get(row.series) for those in every.values()):
            cells.append(number(one.relative_mae if one else None))
            cells += [p_value(one.corrected_p_value if one else None)] if is_tested else []
        low, high = map(percent, row.hit_rate_95 or (None, None))
        cells.append(f"{percent(row.hit_rate)} ({low} to {high})" if row.hit_rate_95 else ABSENT)
        lines.append(cells)
    return Table([*header, "direction"], lines).markdown()


def _labelled(row: LeaderboardRow) -> str:
    """Name a series, and what is better than its model by more than chance."""
    losses: dict[str, list[str]] = {}
    for task, score in row.tasks.items():
        for name in score.lost_to:
            losses.setdefault(name, []).append(TASKS[task].title.lower())
    said = "; ".join(f"loses to {name}: {', '.join(tasks)}" for name, tasks in losses.items())
    return f"{row.series} **{said}**" if said else row.series


def _intervals(results: Sequence[SeriesResult]) -> str:
    """Write medians over series of how quantiles did; nothing where none has any."""
    evaluated = [result.quantiles for result in results if result.quantiles]
    if not evaluated:
        return ""
    names = interval_names(evaluated[0].levels)
    rows = []
    for task, about in evaluated[0].tasks.items():
        those = [
            one.tasks[task] for one in evaluated if one.levels == evaluated[0].levels and task in one.tasks
        ]
        for name in about.errors:
            errors = [one.errors[name] for one in those if name in one.errors]
            within = (median(each.mean_coverage(at) for each in errors) for at in range(len(names)))
            crps = median(one.errors[name].crps / one.errors[MODEL].crps for one in those)
            rows.append([TASKS[task].title, spaced(name), number(crps), *map(percent, within)])
    header = ("task", "forecaster", "CRPS, model = 1", *(f"within {name}" for name in names))
    return str(_PARTS["intervals"]).format(table=Table(header, rows).markdown())


def _importance(results: Sequence[SeriesResult]) -> str:
    """Write medians over series of what kinds of inputs are worth; nothing where nobody asked."""
    found = [result.importance for result in results if result.importance]
    if not found:
        return ""
    header = ("inputs", *(TASKS[task].title for task in next(iter(found[0].values()))))
    return str(_PARTS["importance"]).format(table=Table(header, importance_rows(found)).markdown())


def _data(metadata: Sequence[Metadata]) -> str:
    header = ("series", "source", "first candle", "last candle", "candles", "test span from", "test windows")
    rows = []
    for about in metadata:
        candles = about.candles
        test = about.split.test
        read = [moment(candles.first_open), moment(candles.last_open), count(candles.num_bars)]
        evaluated = moment(test.first_open), count(test.num_windows)
        rows.append([about.series, shown(candles.source), *read, *evaluated])
    return Table(header, rows).markdown()


def distinct_versions(makings: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return every version that any of some records names, by what it is of.

    >>> distinct_versions([{"keras": "3.14"}, {"keras": "3.15"}])
    {'keras': '3.14, 3.15'}
    """
    found = [*makings]
    names = dict.fromkeys(name for versions in found for name in versions)
    return {name: _distinct(versions[name] for versions in found if name in versions) for name in names}


def _making(run: RunRecord, told: _Told, metadata: Sequence[Metadata], *, is_of_many_runs: bool) -> str:
    makings = metadata if is_of_many_runs else [run]
    results = [about.result for about in metadata]
    made_with = distinct_versions(making.versions for making in makings)
    machines = [about.machine for about in metadata] if is_of_many_runs else [told.machine]
    times = sorted(making.created_at for making in makings)
    num_parameters = _distinct(f"{about.num_parameters:,}" for about in metadata)
    losses = ", ".join(f"{task} {about.loss}" for task, about in told.tasks.items())
    fewest, most = (count(pick(result.epochs_run for result in results)) for pick in (min, max))
    rows = [
        ("profile", f"`{run.profile_name}`, digest `{run.profile_digest[:12]}`"),
        ("network", f"{told.family}, {num_parameters} parameters"),
        ("scaling and losses", f"{told.scaling}; {losses}"),
        ("epochs run", fewest if fewest == most else f"{fewest} to {most}"),
        ("number format", _distinct(about.training.precision for about in metadata)),
        ("computed on", _distinct(about.training.device for about in metadata)),
        ("machine", _distinct(map(_machine, machines))),
        ("time", f"{duration(math.fsum(result.total_seconds for result in results))} over all models"),
        ("models saved", f"{times[0]} to {times[-1]}") if is_of_many_runs else ("run started", times[0]),
        ("versions", ", ".join(f"{name} {version}" for name, version in made_with.items())),
    ]
    return Table(("what", "value"), rows).markdown()


def _machine(machine: MachineInfo) -> str:
    memory = machine.memory_bytes
    known = f"{machine.cpu}, {machine.num_cores} cores"
    return f"{known}, {memory / 2**30:.0f} GiB of memory" if memory else known


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(map(shown, values))))


def change_line(decision: Decision) -> str:
    """Say in one line of a commit's description what changed of a series, and why."""
    new, old = (moment(each.trained_until) for each in (decision.challenger, decision.champion))
    return (
        f"{decision.series}: model up to {new} in place of {old}. "
        f"Stale: {decision.stale}. Chosen: {decision.why}."
    )
