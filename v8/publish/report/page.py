"""The report of a run as one self-contained page, `report.html`, and the leaderboard of any page.

All text passes through `v8.publish.report.markup`, which escapes it and builds the page: `filled` puts parts
into a template, `element` makes one tag. `say` translates a sentence and `term` a word (`v8.base.wording`).
Every series has a folded section (`v8.publish.report.series_section`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from v8.base.errors import listed
from v8.base.wording import ABSENT, Table, duration, epochs, number, p_value, percent, say, term
from v8.forecaster.series_artifact import ForecastSample
from v8.model.baselines.baselines import BASELINES, NAIVE
from v8.model.evaluation.bootstrap import ErrorInterval
from v8.model.evaluation.leaderboard import (
    LeaderboardRow,
    compared,
    median,
)
from v8.model.evaluation.significance import BEATS, LOSES, BaselineComparison, ComparisonResult
from v8.profile.columns import TASK_OHLC
from v8.profile.tasks import TASKS
from v8.publish.report.candle_chart import has_candle_chart
from v8.publish.report.first_screen import first_screen
from v8.publish.report.markup import (
    CHART_NOTICE,
    Html,
    content_in_language,
    document,
    element,
    facts,
    filled,
    folded,
    join,
    shown_table,
)
from v8.publish.report.series_section import ends_in_words, has_few_windows, series_section
from v8.publish.report.verdict import (
    baseline_in_words,
    best_baselines_in_words,
    in_words,
    source_in_words,
    titled,
)
from v8.runs.run_folder import RunRecord

MARK: Final = "●"
"""Follows a ratio that differs from 1 significantly."""


MOST_IN_ONE_FILE: Final = 40
"""A page of so many series, those of the default universe, is one file that can be sent as it is."""


@dataclass(frozen=True)
class RunPage:
    """The page of a run and its leaderboard, in the current language."""

    run: RunRecord
    rows: Sequence[LeaderboardRow]  # the leaderboard
    bodies: Mapping[str, Html | None]
    """For each series its `series_body`, or None where that is in a file."""
    sample: ForecastSample | None = None  # forecasts of one series, for the first screen
    intervals: Mapping[str, ErrorInterval] = field(default_factory=dict)
    """By task, how sure the headline is: the 95 % interval of its error relative to the best baseline's.

    Computed by `v8.publish.report.verdict.headline_intervals`.
    """

    @property
    def title(self) -> str:
        """What the browser's tab shows."""
        return f"v8: {self.run.profile_name}"

    @property
    def heading(self) -> str:
        """The headline."""
        return say("Run of profile {name}", name=self.run.profile_name)

    @property
    def is_demo(self) -> bool:
        """Whether a market was simulated."""
        return not self.run.is_publishable or any(row.is_demo for row in self.rows)

    def whole(self, languages: Mapping[str, str] = MappingProxyType({})) -> Html:
        """Return the page; `languages` as of `document`."""
        return document(
            self.title,
            self.heading,
            [self.content()],
            is_demo=self.is_demo,
            has_files=is_in_files(self.run),
            has_candles=True,
            languages=languages,
        )

    def in_language(self, languages: Iterable[str]) -> str:
        """Return the file that a page in another language loads; `languages` are all, that one's first."""
        return content_in_language(
            self.title, self.heading, [self.content()], is_demo=self.is_demo, languages=languages
        )

    def content(self) -> Html:
        """Return what is below the headline."""
        return _run_content(self.run, self.rows, self.bodies, self.sample, self.intervals)


def _run_content(
    run: RunRecord,
    rows: Sequence[LeaderboardRow],
    bodies: Mapping[str, Html | None],
    sample: ForecastSample | None,
    intervals: Mapping[str, ErrorInterval],
) -> Html:
    # The first screen offers the series whose candle chart is in this page already.
    with_chart = [row.series for row in rows if has_candle_chart(bodies[row.series] or "")]
    unevaluated: str = ""
    if not run.is_evaluated:
        unevaluated = element("p", say("The models of this run were not evaluated."))
    failed = say(" {num} failed.", num=len(run.reasons)) if run.reasons else ""
    origin = provenance(
        source=run.source,
        created_at=run.created_at,
        command=run.command,
        profile_digest=run.profile_digest,
        versions=run.versions,
        machine=run.machine,
    )
    return filled(
        "v8.publish.report",
        "run.html",
        opening=first_screen(rows, sample, sorted(with_chart), intervals) if rows else "",
        # A series may be done whose files cannot be read: it has no row and is not counted.
        done=len(rows) if run.is_evaluated else len(run.done),
        num=len(run.series),
        failed=failed,
        unevaluated=unevaluated,
        holes=_few_windows(rows),
        failures=_failures(run),
        leaderboard=_leaderboard(rows, bodies) if rows else "",
        provenance=origin,
    )


def is_in_files(run: RunRecord) -> bool:
    """Return whether the sections of a run are in files of their own."""
    return len(run.series) > MOST_IN_ONE_FILE


def _failures(run: RunRecord) -> Html:
    """Show why series failed; empty where none did."""
    if not run.reasons:
        return Html()
    table = Table(["Series", "Reason"], sorted(run.reasons.items()), is_prose=True)
    return join([element("h2", say("Failed series")), shown_table(table)])


def provenance(
    *,
    source: str,
    created_at: str,
    command: str,
    versions: Mapping[str, Any],
    machine: Mapping[str, Any],
    profile_digest: str | None = None,
) -> Html:
    """List where the numbers of a page come from.

    Args:
        source: Name of the candle source.
        created_at: When the work began, ISO 8601.
        command: Command line that did it.
        versions: Versions of packages, by name.
        machine: Description of the machine, by property.
        profile_digest: Digest of the profile, where there is one.
    """
    pairs = [("candle source", source_in_words(source)), ("started", created_at), ("command", command)]
    if profile_digest is not None:
        pairs.append(("profile digest", element("span", profile_digest[:12], title=profile_digest)))
    pairs += [(say("version of {name}", name=name), str(value)) for name, value in versions.items()]
    for name, value in machine.items():
        words = f"machine: {name.removesuffix('_bytes').replace('_', ' ')}"
        is_size = name.endswith("_bytes") and isinstance(value, int)
        pairs.append((words, f"{value / 1e6:,.0f} MB" if is_size else str(value)))
    pairs.append(("charts", CHART_NOTICE))
    return folded(say("Where these numbers come from"), facts(pairs))


def _leaderboard(rows: Sequence[LeaderboardRow], bodies: Mapping[str, Html | None]) -> Html:
    """Show the medians, a line for each series, every baseline explained, then the sections.

    A pointer over a ratio shows the outcome and the p-value.
    """
    comparisons = compared(rows)
    num_columns = Counter(TASKS[task].title for task, _ in comparisons)
    header = ["Series", *(_column_head(name) for _, name in comparisons)]
    header += ["direction, step 1", "best epoch", "time"]
    lines = [_median_cells(rows, comparisons)]
    lines += [_leaderboard_cells(row, comparisons) for row in rows]
    groups = [("", 1), *num_columns.items(), ("", 3)]
    order = say("Ordered by {task} × naive, the lowest error first.", task=titled(TASK_OHLC))
    names = {name for row in rows for errors in row.evaluation.errors.values() for name in errors}
    best = best_baselines_in_words(rows)
    briefs = [
        say("{name}: {words}", name=baseline_in_words(name, has_key=True), words=term(baseline.brief))
        for name, baseline in BASELINES.items()
        if name in names and baseline.brief
    ]
    brief = say("In a few words: {parts}.", parts=say("; ").join(briefs))
    baselines = facts(
        (baseline_in_words(name, has_key=True), term(baseline.sentence))
        for name, baseline in BASELINES.items()
        if name in names
    )
    return filled(
        "v8.publish.report",
        "leaderboard.html",
        table=shown_table(Table(header, lines, order), groups=groups, class_="wrapped"),
        mark=MARK,
        num=len(rows),
        brief=element("p", brief, class_="soft") if briefs else "",
        p_table=shown_table(_p_table(rows, comparisons), groups=groups[:-1], class_="wrapped"),
        best=element("p", say("Best baselines: {names}.", names=best), class_="soft") if best else "",
        baselines=baselines,
        sections=join(series_section(row, bodies[row.series]) for row in rows),
    )


def _column_head(name: str) -> str:
    """Name the forecast that a column compares with; the sign is never alone on a line."""
    return f"×\u00a0{baseline_in_words(name)}"


_Comparisons = Mapping[tuple[str, str], Mapping[str, BaselineComparison]]
"""By task and the name of a baseline: the comparison of each series, as `leaderboard.compared` returns it."""


def _median_cells(rows: Sequence[LeaderboardRow], comparisons: _Comparisons) -> list[str]:
    cells = [say("median")]
    for by_series in comparisons.values():
        cells.append(number(median(comparison.relative_mae for comparison in by_series.values())))
    best_epoch = median(row.best_epoch for row in rows) or 0
    epochs_run = median(row.epochs_run for row in rows) or 0
    cells.append(percent(median(row.hit_rate for row in rows)))
    cells.append(epochs(best_epoch, epochs_run))
    cells.append(duration(median(row.total_seconds for row in rows)))
    return cells


def _leaderboard_cells(row: LeaderboardRow, comparisons: _Comparisons) -> list[str]:
    cells: list[str] = [element("a", row.series, href=f"#{row.series}")]
    for (_, name), by_series in comparisons.items():
        comparison = by_series.get(row.series)
        if comparison:
            p = comparison.corrected_p_value
            cells.append(marked(comparison.relative_mae, comparison.outcome, name, p))
        else:
            # The naive forecast is compared in every task, so the profile of this row lacks the task.
            cells.append(say("no such task") if name == NAIVE else ABSENT)
    cells.append(element("span", percent(row.hit_rate), title=f"95 %: {ends_in_words(row.hit_rate_95)}"))
    return [*cells, epochs(row.best_epoch, row.epochs_run), duration(row.total_seconds)]


def _p_table(rows: Sequence[LeaderboardRow], comparisons: _Comparisons) -> Table:
    """Show the corrected p-values of the leaderboard, where nothing can be pointed at."""
    header = ["Series", *(_column_head(name) for _, name in comparisons)]
    lines = []
    for row in rows:
        of_row = [by_series.get(row.series) for by_series in comparisons.values()]
        lines.append([row.series, *(p_value(one.corrected_p_value if one else None) for one in of_row)])
    return Table(header, lines)


def marked(multiple: float | None, outcome: ComparisonResult, name: str, p: float | None) -> Html:
    """Show a ratio of errors, coloured and marked where it is significant; a pointer shows outcome and p."""
    style = {BEATS: "better", LOSES: "worse"}.get(outcome)
    mark = element("span", MARK if style else "", class_="mark")
    tooltip = say("{outcome}, corrected p {p}", outcome=in_words(outcome, name), p=p_value(p))
    return element("span", number(multiple), mark, class_=style, title=tooltip)


def _few_windows(rows: Sequence[LeaderboardRow]) -> Html:
    """Name the series of which holes leave too few windows; empty without one."""
    few = [row.series for row in rows if has_few_windows(row)]
    if not few:
        return Html()
    sentence = say(
        "Holes in the candles, and the warm-up of the indicators after each, leave less than half of the "
        "windows of: {names}.",
        names=listed(few),
    )
    return element("p", sentence)
