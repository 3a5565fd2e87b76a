"""`python -m v8 forecast`: forecasts of the present, written into the ledger before their truth exists.

Once: the newest close of every series, what was missed since the last call, and scores where the truth has
come. With --every it goes on at each close until Ctrl-C; killed anywhere, the same command goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from v8.cli.options import (
    DataDirOption,
    LedgerOption,
    OfflineOption,
    RepoOption,
    RevisionOption,
    RunArgument,
    SourceOption,
    TablesOption,
    one_place,
    require_folder_of,
)
from v8.errors import ProfileError, V8Error
from v8.invocation import command
from v8.live import DEFAULT_LEDGER
from v8.runs.options import asked_series, take_tables
from v8.wording import plural

if TYPE_CHECKING:
    from v8.live.watching import ServingModels, Wake, Watch
    from v8.market.sources.source import CandleSource

SOME_FAILED: Final = 4
"""Exit code where some series could not be forecast and others could."""


def forecast(
    run: RunArgument = None,
    repo: RepoOption = None,
    series: Annotated[
        list[str] | None,
        typer.Option("--series", metavar="BTCUSDT-15m", help="Only this one; repeat for more. Default: all."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--every", help="Go on at every candle's close until Ctrl-C.")
    ] = False,
    ledger: LedgerOption = DEFAULT_LEDGER,
    source: SourceOption = "live",
    data_dir: DataDirOption = None,
    tables: TablesOption = None,
    revision: RevisionOption = None,
    offline: OfflineOption = False,
) -> None:
    """Issue forecasts into the ledger before their truth exists, and score those whose truth has come."""
    where = one_place("forecast", run, repo)
    names = [str(one) for one in asked_series(series) or ()] or None

    from v8.live.ledger import Ledger
    from v8.machine.interruption import set_last_words
    from v8.market.sources.source import open_source

    take_tables(tables)
    if ledger != DEFAULT_LEDGER:
        require_folder_of("--ledger", ledger)
    _require_present(open_source(source, data_dir=data_dir))
    set_last_words(f"interrupted: {ledger} is whole. Continue with: {command(*sys.argv[1:])}")
    models = _found(where, names, revision, is_offline=offline)
    with Ledger.open_to_write(ledger) as book:
        _open(models)
        from v8.live.watching import Watch, jitter_s

        place = book.place(where)
        watch = Watch(
            models,
            lambda: open_source(source, data_dir=data_dir),
            book,
            place,
            tell=lambda line: typer.echo(line, err=True),
            settle_s=jitter_s(place) if every else 0,
        )
        if every:
            watch.keep_going(lambda woken: _report(woken, watch))
        _finish(watch.wake(), ledger, where)


def _found(
    where: Path | str, names: Sequence[str] | None, revision: str | None, *, is_offline: bool
) -> ServingModels:
    """Look at a place, before a file is made."""
    from v8.machine.starting import quiet_start
    from v8.runs.engines import place

    place("auto", "1", "1")  # the same sums in the same order as when the models were judged
    with quiet_start():
        from v8.live.watching import ServingModels

        return ServingModels(where, names, revision=revision, is_offline=is_offline)


def _open(models: ServingModels) -> None:
    """Open all models, which starts TensorFlow."""
    from v8.machine.starting import quiet_start

    with quiet_start():
        for name in models.series:
            with suppress(V8Error):  # the first wake tells
                models.forecaster(name)


def _require_present(source: CandleSource) -> None:
    """Refuse a market that has no present."""
    if not source.is_publishable:
        raise ProfileError(
            where=f"--source {source.name}",
            rule="a ledger is about the future",
            got="a simulated market, which has none",
            fix="Use --source live",
        )


def _report(woken: Wake, watch: Watch) -> None:
    """Print one line for a wake that did something."""
    from v8.cli.printing import print_lines
    from v8.market.series import iso

    print_lines(f"{_done(woken)}; next at {iso(watch.next_close_s(woken.now_s))}")


def _done(woken: Wake) -> str:
    from v8.market.series import iso

    late = f" ({woken.num_late} late)" if woken.num_late else ""
    failed = f", {len(woken.failures)} series failed" if woken.failures else ""
    issued = plural(woken.num_issued, "forecast")
    return f"{iso(woken.now_s)}: {issued} issued{late}, {woken.num_scored} scored{failed}"


def _finish(woken: Wake, ledger: Path, where: Path | str) -> None:
    """Say what was done; exit otherwise than with 0 where a series failed."""
    from v8.cli.printing import print_lines

    words = (str(where),) if isinstance(where, Path) else ("--repo", where)
    words = words if ledger == DEFAULT_LEDGER else (*words, "--ledger", str(ledger))
    print_lines(f"{_done(woken)}.", f"Ledger: {ledger}. Its record: {command('track', *words)}")
    if woken.failures:
        first = next(iter(woken.failures.values()))
        raise typer.Exit(SOME_FAILED if woken.num_issued else first.exit_code)
