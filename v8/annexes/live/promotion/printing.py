"""What the command `update` does and prints. When it is interrupted, old models serve on."""

import math
from collections.abc import Sequence
from pathlib import Path

from v8.annexes.live.promotion.decisions import change_table
from v8.annexes.live.promotion.renewal import (
    STALENESS_RULES,
    GenerationResult,
    Renewal,
    StalenessReport,
    StalenessRule,
)
from v8.base.errors import ProfileError, listed
from v8.base.process import set_exit_message
from v8.base.storage import FolderLock
from v8.base.terminal import print_all_lines, print_error, print_lines, print_reasons, print_table
from v8.base.wording import Table
from v8.cli import shared as cli
from v8.data.market.series import Series
from v8.data.market.sources.source import present_source
from v8.publish.report.outputs import ReportWriter, RunOutputs
from v8.runs.events import ObserverGroup
from v8.runs.plan import Engine
from v8.runs.run_folder import read_run


def stale_rule(when: str, max_age_days: float | None) -> StalenessRule:
    """Return the rule by which models are stale, from `--when` and `--max-age`.

    Raises `ProfileError` if one of them is wrong, or they contradict each other.
    """
    cli.require_one_of("--when", when, STALENESS_RULES)
    if max_age_days is not None and (when != "age" or not math.isfinite(max_age_days)):
        rule = "is a number of days, for --when age"
        fix = "Write for example param:max_age 7, or leave it out"
        got = f"{max_age_days} with param:when {when}"
        raise ProfileError(where="param:max_age", rule=rule, got=got, fix=fix)
    return StalenessRule(when, max_age_days)


def newest_source(run: Path) -> str:
    """Return the name of the source of a run, or of the one that has newer candles of the same market."""
    return present_source(read_run(run).source)


def renew(renewal: Renewal, chosen: Sequence[Series], engine: Engine) -> bool:
    """Renew stale models; return whether every series could be examined and trained, with all its files."""
    set_exit_message(f"interrupted: what served in {renewal.run} serves on. Go on with: {renewal.command}")
    with FolderLock(renewal.run):
        steps = []
        observer = ObserverGroup([cli.run_display(), ReportWriter()])
        for step in renewal.renew(chosen, engine, observer):
            _print_renewal(step)
            steps.append(step)
        # Also after a kill between a decision and this.
        results = RunOutputs(renewal.run, print_error).write()
    if any(decision.is_replaced for step in steps for decision in step.decisions):
        cli.print_leaderboard(results)
    return not any(step.failures or step.without_onnx for step in steps)


def preview_renewal(renewal: Renewal, chosen: Sequence[Series]) -> None:
    """Print what is stale and would be trained."""
    unfinished: set[Series] = set()
    for generation, undecided in renewal.unfinished_generations(chosen):
        print_lines(f"Generation {generation} was begun and would be finished first: {listed(undecided)}.")
        unfinished.update(undecided)
    left = [series for series in chosen if series not in unfinished]
    if left:
        report = renewal.check_staleness(left)
        _print_renewal(report)
        if report.stale:
            plan = renewal.plan(renewal.next_generation(report.stale), list(report.stale))
            cli.print_plan(plan, renewal.source)


def _print_renewal(step: StalenessReport | GenerationResult) -> None:
    """Print how old the models are, or which models serve after a new generation was trained."""
    if isinstance(step, StalenessReport):
        rows = [
            (model.series, model.generation, model.until, model.live, "yes" if model.is_stale else "no")
            for model in step.assessments
        ]
        header = ("series", "generation", "newest candle", "live record × naive", "stale")
        print_table(Table(header, rows, "What serves"))
        print_all_lines(f"{model.series}: {model.reason}." for model in step.assessments)
    else:
        print_decisions(step)
    if step.failures:
        reasons = [(str(failure.series), failure.reason or "") for failure in step.failures]
        print_reasons(f"{len(reasons)} series failed; what served serves on", reasons)
    cli.print_without_onnx(step.without_onnx)


def print_decisions(renewed: GenerationResult) -> None:
    """Print the errors of new and old models, and which of them serve."""
    measure = "MAE relative to naive on candles that neither was trained on"
    print_table(change_table(renewed.decisions, f"Generation {renewed.generation}: {measure}"))
    for decision in renewed.decisions:
        verdict = "the challenger serves" if decision.is_replaced else "the champion stays"
        print_lines(f"{decision.series}: {verdict}; of the challenger: {decision.why}.")
