"""`python -m v8 update RUN`: stale models are trained anew, and the better one of old and new serves.

Interrupted, the old models serve on, and the same command goes on where it was.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from v8.cli.options import (
    DEFAULT_ENGINE,
    AddressOption,
    DataDirOption,
    DeviceOption,
    EngineOption,
    FleetSizeOption,
    TablesOption,
    WorkersOption,
)
from v8.cli.publish import check_publishing, publish_run
from v8.errors import ProfileError, SeriesError, V8Error, listed
from v8.invocation import command
from v8.machine.interruption import set_last_words
from v8.market.series import Series
from v8.market.sources.source import SOURCES
from v8.runs.options import asked_series, require_tables, take_tables
from v8.tables import Table
from v8.wording import ABSENT, count, number, percent

if TYPE_CHECKING:
    from v8.artifacts.nested_runs import Decision, Sureness
    from v8.live.ledger import Ledger
    from v8.live.renewal import Looked, Renewal, Renewed, Rule, Standing
    from v8.runs.execution import TrainAll


def update(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, for example runs/aligned.")],
    when: Annotated[
        str, typer.Option("--when", metavar="age|decay|always", help="Which models are stale.")
    ] = "age",
    max_age: Annotated[
        float | None,
        typer.Option(
            "--max-age",
            metavar="DAYS",
            min=0,
            help="Age from which on a model is stale. Default: the length of its test span.",
        ),
    ] = None,
    series: Annotated[
        list[str] | None,
        typer.Option(
            "--series", metavar="BTCUSDT-15m", help="One series; repeat for more. Default: all of the run."
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="|".join(SOURCES),
            help="Where new candles come from. Default: the run's, live for the archive's.",
        ),
    ] = None,
    data_dir: DataDirOption = None,
    tables: TablesOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = "auto",
    fleet_size: FleetSizeOption = "auto",
    engine: EngineOption = DEFAULT_ENGINE,
    address: AddressOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what is stale and would be trained; do nothing.")
    ] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger",
            metavar="FILE",
            help="Where forecasts are recorded. Default: runs/ledger.sqlite, where there is one.",
        ),
    ] = None,
    publish: Annotated[
        str | None,
        typer.Option("--publish", metavar="USER/NAME", help="Publish what serves then, in one commit."),
    ] = None,
) -> None:
    """Train stale models anew on the newest candles; of old and new the better one serves."""
    rule = _rule(when, max_age)
    asked = asked_series(series)

    from v8.artifacts.run_folder import read_run
    from v8.live.renewal import Renewal
    from v8.market.sources.source import open_source
    from v8.runs.engines import choose_engine

    take_tables(tables)
    candle_source = open_source(source or _newest_of(read_run(run).source), data_dir=data_dir)
    renewal = Renewal(run, candle_source, rule, command(*sys.argv[1:]), _opened(ledger))
    chosen = renewal.chosen(asked)
    require_tables(renewal.profile)
    train_all = choose_engine(engine, device, workers, fleet_size, address)
    if dry_run:
        _print_what_would_be_done(renewal, chosen)
        return
    if publish:
        check_publishing(publish, candle_source.name, is_publishable=candle_source.is_publishable)
    is_whole = _renew(renewal, chosen, train_all)
    if publish:
        from v8.hub.layout import Choice

        publish_run(run, publish, Choice(is_partial=True))
    if not is_whole:
        raise typer.Exit(SeriesError.exit_code)


def _rule(when: str, max_age_days: float | None) -> Rule:
    from v8.live.renewal import RULES, Rule

    if when not in RULES:
        raise ProfileError(
            where="--when", rule=f"is one of {', '.join(RULES)}", got=repr(when), fix="Choose one of these"
        )
    if max_age_days is not None and (when != "age" or not math.isfinite(max_age_days)):
        raise ProfileError(
            where="--max-age",
            rule="is a number of days, for --when age",
            got=f"{max_age_days} with --when {when}",
            fix="Write for example --max-age 7, or leave it out",
        )
    return Rule(when, max_age_days)


def _opened(ledger: Path | None) -> Ledger | None:
    """Open the ledger to read it; it is closed when the command ends."""
    from v8.live import DEFAULT_LEDGER
    from v8.live.ledger import Ledger

    if ledger is None and not DEFAULT_LEDGER.exists():
        return None
    return Ledger.open(ledger or DEFAULT_LEDGER)


def _newest_of(source: str) -> str:
    """Name the source that has the newest candles of a run's own."""
    return "live" if source == "vision" and "live" in SOURCES else source


def _renew(renewal: Renewal, chosen: Sequence[Series], train_all: TrainAll) -> bool:
    """Renew what is stale, and say whether every series could be looked at and trained."""
    from v8.cli.printing import open_display, print_leaderboard
    from v8.runs.outputs import write_outputs
    from v8.storage import FolderLock

    set_last_words(f"interrupted: what served in {renewal.run} serves on. Go on with: {renewal.words}")
    with FolderLock(renewal.run):
        came = []
        for one in renewal.renew(chosen, train_all, open_display):
            _print(one)
            came.append(one)
        rows = write_outputs(renewal.run, _tell)  # also after a kill between a decision and this
    if any(each.has_changes for each in came):
        print_leaderboard(rows)
    return not any(each.failures for each in came)


def _print(came: Looked | Renewed) -> None:
    from v8.cli.printing import print_reasons
    from v8.live.renewal import Looked

    if isinstance(came, Looked):
        _print_standings(came.standings)
    else:
        _print_decisions(came)
    if came.failures:
        reasons = [(str(failure.series), failure.reason or "") for failure in came.failures]
        print_reasons(f"{len(reasons)} series failed; what served serves on", reasons)


def _print_standings(standings: Sequence[Standing]) -> None:
    from v8.cli.printing import print_lines, print_table

    rows = [
        (one.series, one.generation, one.until, one.live, "yes" if one.is_stale else "no")
        for one in standings
    ]
    header = ("series", "generation", "newest candle", "live record × naive", "stale")
    print_table(Table(header, rows, "What serves"))
    print_lines(*(f"{one.series}: {one.why}." for one in standings))


def _print_decisions(renewed: Renewed) -> None:
    from v8.cli.printing import print_lines, print_table

    tasks = " / ".join(next((one.baselines for one in renewed.decisions if one.baselines), ()))
    title = (
        f"Generation {renewed.generation}: error as a multiple of naive's on candles that neither has seen"
    )
    header = ("series", f"champion: {tasks}", "challenger", "best baseline", "windows", "serves")
    print_table(Table(header, map(_decision_cells, renewed.decisions), title))
    _print_quantiles([one for one in renewed.decisions if one.challenger.quantiles])
    print_lines(*(f"{one.series}: {_told(one)}" for one in renewed.decisions))


def _print_quantiles(decisions: Sequence[Decision]) -> None:
    """Print how sure champions and challengers were, where they have quantiles."""
    from v8.cli.printing import print_table

    if not decisions:
        return
    first = decisions[0].challenger.quantiles
    within = " / ".join(next(iter(first.values())).coverage)
    title = f"Quantiles: CRPS as a multiple of naive's error (truths within {within}); they decide nothing"
    rows = [
        (one.series, each.generation, *(_sureness(each.quantiles.get(task)) for task in first))
        for one in decisions
        for each in (one.champion, one.challenger)
    ]
    print_table(Table(("series", "generation", *first), rows, title))


def _sureness(told: Sureness | None) -> str:
    if told is None:
        return ABSENT
    return f"{number(told.crps)} ({' / '.join(map(percent, told.coverage.values()))})"


def _told(decision: Decision) -> str:
    verdict = "the challenger serves" if decision.is_replaced else "the champion stays"
    return f"{verdict}; of the challenger: {decision.why}."


def _decision_cells(decision: Decision) -> list[str]:
    old, new = decision.champion, decision.challenger
    best = (f"{number(one.multiple)} {one.name}" for one in decision.baselines.values())
    cells = [f"{each.generation}: {' / '.join(map(number, each.multiples.values()))}" for each in (old, new)]
    serves = new if decision.is_replaced else old
    return [decision.series, *cells, " / ".join(best), count(decision.num_windows), serves.generation]


def _print_what_would_be_done(renewal: Renewal, chosen: Sequence[Series]) -> None:
    from v8.cli.printing import print_lines, print_plan

    begun: set[Series] = set()
    for generation, undecided in renewal.unfinished(chosen):
        print_lines(f"Generation {generation} was begun and would be finished first: {listed(undecided)}.")
        begun.update(undecided)
    left = [one for one in chosen if one not in begun]
    if not left:
        return
    _print(looked := renewal.look(left))
    if looked.stale:
        print_plan(renewal.plan(renewal.next_generation(looked.stale), [*looked.stale]), renewal.source)


def _tell(error: V8Error) -> None:
    sys.stderr.write(f"error: {error}\n")
