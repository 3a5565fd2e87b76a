"""Every command but those of annexes: its flags, what it refuses before any work, and who does the work.

The modules that do the work are imported inside the commands, so that `--help` and usage errors answer
quickly.
"""

from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from typer import Argument, Exit, Option, echo

from v8.base.errors import DataError, ProfileError, SeriesError
from v8.base.process import command, report_waiting
from v8.base.registry import advice
from v8.cli import shared as cli
from v8.cli.shared import AddedFunctions, require_plot, table_form, takes_options, with_added_flags
from v8.cli.usage import meant_word
from v8.data.market.series import load_universe
from v8.data.market.sources import SOURCES, OpenedSource, present_source
from v8.profile.profile import load_profile, network_outputs
from v8.runs.options import (
    MAX_BARS,
    BacktestOptions,
    ModelsOptions,
    PreparedBacktest,
    PreparedRun,
    RunOptions,
    chosen_series,
    contradiction,
    served_series,
)

_DEFAULT_PROFILE: Final[str] = RunOptions.model_fields["profile"].default
_NONE_ADDED: Final[AddedFunctions] = MappingProxyType({})


@takes_options(RunOptions)  # a flag for each field
def run(
    options: RunOptions,
    dry_run: bool = Option(False, "--dry-run", help="Print the plan and its estimated time; do nothing."),
    is_list: bool = Option(False, "--list", help="Print for whom each profile is, and its cost."),
    opens: bool = Option(False, "--open", help="Open the report in the browser once there is one."),
    is_verbose: bool = Option(False, "--verbose", help="A line an epoch where the output is no terminal."),
    lang: cli.LangOption = None,
) -> None:
    """Train, evaluate and save a model for every series; the same call again continues or skips.

    Examples:
        v8 run --profile frontier --dry-run
        v8 run frontier --series BTCUSDT-15m
        v8 run --source files --data-dir candles
        v8 run --profile frontier --publish you/models
    """
    if is_list:
        from v8.cli.runs import print_profiles

        print_profiles()
        return
    # The text of the command line that continues this run, for messages and its record.
    continue_command = command("run", *options.words(), *cli.language_words(lang))
    prepared = PreparedRun.from_options(options, continue_command)
    # Sets variables of the environment that TensorFlow reads when it is imported.
    cli.settle_process(options.device)
    echo(f"{'Planning' if dry_run else 'Preparing'} a run of {prepared.plan.profile.name}.")

    # After the line above: importing these takes seconds.
    from v8.cli.runs import RunDisplay, preview, run_and_print

    if dry_run:
        raise Exit(preview(prepared))
    raise Exit(run_and_print(prepared, RunDisplay(opens=opens, is_verbose=is_verbose)).exit_code)


def data(
    action: str | None = Argument(None, metavar="[update]", help="Bring the store of --source live to now."),
    series: cli.SeriesOption = None,
    universe: cli.UniverseOption = None,
    source: cli.SourceOption = "vision",
    data_dir: cli.DataDirOption = None,
    # As in every shipped profile:
    bars: int = Option(8_000, metavar="N", min=1, max=MAX_BARS, help="Newest candles per series."),
    accept_revision: bool = Option(False, "--accept-revision", help="Update, taking what the API says now."),
) -> None:
    """Download and check candles; print what was found, repaired and dropped.

    Examples:
        v8 data --series BTCUSDT-15m
        v8 data --source files --data-dir candles
        v8 data update --universe mine.yaml
    """
    if accept_revision and action is None:
        action = "update"
    named_series = chosen_series(series, universe)
    if action not in (None, "update"):
        raise ProfileError(
            where=command("data"),
            rule="takes the word update, or none",
            got=repr(action),
            fix=meant_word(action, command("data")) or advice(action, ["update"], "Leave it out"),
        )
    if action:
        stores = [kind.present for kind in SOURCES.values() if kind.present]
        if present_source(source) not in stores or data_dir:
            raise ProfileError(
                where=command("data", "update"),
                rule=f"brings the store of --source {' or '.join(stores)} up to date",
                got=f"--source {source}" if present_source(source) not in stores else "--data-dir",
                fix="Leave it out",
            )
        source = present_source(source)
    candles = cli.open_candles(source, data_dir, message=f"Reading candles from {source}.")
    chosen = named_series or served_series(candles)

    from v8.base.terminal import print_reasons
    from v8.cli.inspection import check_candles, update_store
    from v8.data.market.sources.live import LiveSource

    if action and isinstance(candles, LiveSource):
        failures = update_store(candles, chosen, bars, accept_revisions=accept_revision)
    else:
        failures = check_candles(candles, chosen, bars)
    if failures:
        print_reasons(f"{len(failures)} of {len(chosen)} series have no usable candles", failures)
        raise Exit(DataError.exit_code)


def features(
    profile_argument: cli.ProfileArgument = None,
    series: cli.SeriesOption = None,
    profile: str | None = Option(None, metavar="NAME|FILE", help="Explain features of a profile instead."),
) -> None:
    """Show the feature columns stored on disk, per series, and their folder; or explain a profile's.

    Examples:
        v8 features --profile frontier
        v8 features --series BTCUSDT-15m
    """
    profile = cli.one_profile("features", profile_argument, profile)
    if profile is not None and series:
        rule = "explains features, which are the same for every series"
        raise contradiction("--profile", "--series", rule)
    if profile is not None:
        explained = load_profile(profile)
        report_waiting(f"Reading the features of profile {explained.name}.")

        from v8.cli.inspection import print_features

        print_features(explained)
        return
    chosen = chosen_series(series) or load_universe()
    report_waiting(f"Looking for the features of {len(chosen)} series.")

    from v8.cli.inspection import print_store

    print_store(chosen)


def report(
    run_argument: cli.RunArgument = None, run: cli.RunOption = None, lang: cli.LangOption = None
) -> None:
    """Redraw leaderboard.csv, report.html, its pictures and timing.json from the saved artefacts.

    Examples:
        v8 report runs/frontier
    """
    run = cli.one_run("report", run_argument, run)
    if run.is_dir():
        report_waiting(f"Reading the models of {run}.")

    from v8.cli.runs import redraw

    raise Exit(redraw(run))


@takes_options(ModelsOptions)
def export(
    options: ModelsOptions,
    out: Path | None = Option(None, metavar="FILE", help="Needed: where to, such as forecasts.parquet."),
    models: str | None = Option(None, metavar="onnx", help="Write model.onnx of every model instead."),
    form: str | None = Option(None, "--format", metavar="parquet|csv", help="Default: as FILE ends."),
    overwrite: cli.OverwriteOption = False,
) -> None:
    """Write every forecast of the test spans into a table: of a run, or of all folds of a back-test.

    A row is one bar ahead: series, fold (0 for a run), issued_at, step, open_time, the forecast columns
    with their quantiles, the value that came (close_actual) and the naive forecast (close_naive). A row can
    be used from its issued_at on, the close of the newest candle that the forecast is based on. Join the
    rows of one fold and step to your own table by that time, so that no row sees the future:
    pandas.merge_asof(yours, forecasts, left_on="time", right_on="issued_at", by="series").

    Examples:
        v8 export runs/frontier --out forecasts.parquet
        v8 export backtests/frontier --out forecasts.csv
        v8 export runs/frontier --models onnx
        v8 export you/models --models onnx --out models
    """
    run = options.run
    if models is not None:
        raise Exit(_export_models(models, options, out))
    if out is None:
        raise ProfileError(
            where=command("export"),
            rule="needs --out FILE",
            got="none",
            fix=f"Write for example {command('export', str(run), '--out', 'forecasts.parquet')}",
        )
    form = table_form("--out", out, form, is_overwriting=overwrite)
    names = options.series_names()
    open_source = cli.candles_of_models(options, run)

    from v8.cli.forecasts import export_forecasts

    exit_code = export_forecasts(
        "--out", run, out, is_overwriting=overwrite, form=form, names=names, open_source=open_source
    )
    raise Exit(exit_code)


def _export_models(form: str, options: ModelsOptions, out: Path | None) -> int:
    """Write the models of a place in another form, and return the exit code."""
    cli.require_one_of("--models", form, ("onnx",))
    names = options.series_names()

    from v8.cli.forecasts import export_onnx

    return export_onnx(options.run, out, names, partial(cli.candles_of_models, options))


def publish(
    repo: str = Option(metavar="USER/NAME", help="Where to; made when it does not exist."),
    run_argument: Path | None = Argument(
        None, metavar="RUN", help="A run folder such as runs/frontier; also --run RUN."
    ),
    run: cli.RunOption = None,
    space: str | None = Option(None, metavar="USER/NAME", help="Publish the page of the models in --repo."),
    private: bool = Option(False, "--private", help="Make a new repository one that only you can see."),
    dry_run: bool = Option(False, "--dry-run", help="Print what would change on the Hub; send nothing."),
    only_skilled: bool = Option(False, "--only-skilled", help="Hold back what loses to the naive forecast."),
    is_partial: bool = Option(False, "--partial", help="Publish a run although some series are not done."),
    prune: bool = Option(False, "--prune", help="Remove published models that the run does not have."),
    collection: str | None = Option(None, metavar="TITLE", help="Put it into this collection of yours, too."),
) -> None:
    """Publish a run's models with card, leaderboard and manifest; or the page that shows them.

    Examples:
        v8 publish runs/frontier --repo you/models --dry-run
        v8 publish runs/frontier --repo you/models --only-skilled
        v8 publish runs/aligned --repo you/aligned --collection Mine
        v8 publish --repo you/models --space you/page
    """
    run = cli.maybe_run(run_argument, run)
    if (run is None) == (space is None):
        raise ProfileError(
            where=command("publish"),
            rule="publishes a run folder to --repo, or the page of the models in --repo to --space",
            got="neither" if run is None else "both",
            fix="Write for example runs/frontier --repo you/fleet, and then --repo you/fleet --space "
            "you/page",
        )
    if run is None or run.is_dir():
        report_waiting(f"Reading {run or 'what the page needs'} for {space or repo}.")

    from v8.cli import hub

    choice = {"is_partial": is_partial, "is_only_skilled": only_skilled, "is_pruning": prune}
    if run is None:
        hub.publish_page(str(space), repo, is_private=private, is_dry=dry_run, collection=collection)
    elif dry_run:
        hub.preview_run(run, repo, is_private=private, **choice)
    else:
        hub.publish_run(run, repo, is_private=private, collection=collection, **choice)
    if dry_run and collection:
        echo(f"It would stand in the collection {collection}.")


def pull(
    repo_argument: str | None = Argument(None, metavar="USER/NAME", hidden=True),
    repo: str | None = Option(None, metavar="USER/NAME", help="Where from; also without --repo."),
    series: list[str] | None = cli.some_series("One series; repeat for more. Default: all."),
    revision: cli.RevisionOption = None,
    offline: cli.OfflineOption = False,
) -> None:
    """Download published models, compare every file with the manifest, and say where they are.

    Examples:
        v8 pull --repo you/models
        v8 pull --repo you/models --series BTCUSDT-15m --revision main
    """
    if (repo is None) == (repo_argument is None):
        raise ProfileError(
            where=command("pull"),
            rule="needs the repository on the Hub, once",
            got="none" if repo is None else f"{repo_argument} and --repo {repo}",
            fix=f"Write for example {command('pull', '--repo', 'you/models')}",
        )
    repo = str(repo or repo_argument)
    report_waiting(f"Reading {repo} {'from the cache' if offline else 'on the Hub'}.")

    from v8.cli.hub import pull_models

    pull_models(repo, series or (), revision, is_offline=offline)


def predict(
    folder: Path | None = Argument(
        None, metavar="RUN", help="A run folder, or one series' folder; also --run RUN."
    ),
    run: cli.RunOption = None,
    repo: cli.RepoOption = None,
    series: list[str] | None = cli.some_series("What to forecast; where it has no model, by others."),
    is_all: bool = Option(False, "--all", help="Use the models of all series that are there."),
    universe: cli.UniverseOption = None,
    revision: cli.RevisionOption = None,
    offline: cli.OfflineOption = False,
    source: cli.SourceOption = "live",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    bars: int | None = cli.some_bars("Candles to read. Default: as many as the model needs."),
    allow_old: bool = Option(False, "--allow-old", help="Forecast even bars that have all closed already."),
    output_format: cli.FormatOption = "table",
    plot: Path | None = Option(None, metavar="FILE.png|DIR", help="Draw it; several series into a folder."),
    overwrite: cli.OverwriteOption = False,
    paths: int | None = Option(None, metavar="N", min=1, help="Simulated candles, and chances by them; 512."),
    runtime: cli.RuntimeOption = "auto",
) -> None:
    """Forecast the bars after the newest candle with saved or published models.

    Examples:
        v8 predict runs/frontier
        v8 predict runs/frontier --series BTCUSDT-15m --plot forecast.png
        v8 predict --repo you/models --format json
        v8 predict runs/frontier --source files --data-dir candles
        v8 predict runs/frontier --series BTCUSDT-15m --paths 512
    """
    place = cli.one_place("predict", cli.maybe_run(folder, run), repo)
    cli.require_one_of("--format", output_format, ("table", "csv", "json"))
    if is_all and (series or universe):
        raise contradiction("--all", "--series or --universe", "takes every series that is there")
    named_series = [str(name) for name in chosen_series(series, universe) or ()]
    is_many = is_all or universe is not None or len(named_series) > 1
    require_plot(plot, named_series, is_many=is_many, is_overwriting=overwrite)
    candles = cli.open_candles(source, data_dir, tables, cli.opening(place, runtime))

    from v8.api.issuing import issue_forecasts
    from v8.cli.forecasts import draw_forecasts, print_forecasts
    from v8.forecaster.shared_models import SharedModels
    from v8.publish.hub.places import open_place

    models = open_place(place, revision=revision, is_offline=offline, models=SharedModels(runtime))
    names = named_series or models.series
    is_many = is_many or len(names) > 1
    require_plot(plot, names, is_many=is_many, is_overwriting=overwrite)
    issue = partial(issue_forecasts, models, names, candles, bars=bars, is_any_age=allow_old, num_paths=paths)
    draw = partial(draw_forecasts, place=plot, is_overwriting=overwrite) if plot else None
    raise Exit(print_forecasts(issue, output_format, draw, is_many=is_many))


@with_added_flags
@takes_options(BacktestOptions)
def backtest(
    options: BacktestOptions,
    forecasts: Path | None = Option(
        None, metavar="FILE", help="Write every forecast of its own seed, as export does."
    ),
    overwrite: cli.OverwriteOption = False,
    lang: cli.LangOption = None,
    added: AddedFunctions = _NONE_ADDED,
) -> None:
    """Evaluate a profile over many folds, fitted again for each; the same call again continues.

    Examples:
        v8 backtest --profile frontier --series BTCUSDT-1h --folds 8
        v8 backtest --profile mine.yaml --forecasts forecasts.parquet
    """
    form = table_form("--forecasts", forecasts, is_overwriting=overwrite) if forecasts else ""
    prepared = PreparedBacktest.from_options(options, cli.this_command())
    candles = prepared.source
    out = prepared.path
    echo(f"Preparing to evaluate {prepared.backtest.profile.name}.")

    from v8.cli.runs import evaluate_and_print
    from v8.publish.report.backtest import PAGE_FILE, added_sections, write_backtest

    cli.settle_process(options.device)
    sections_before = added_sections(out)
    results = evaluate_and_print(out, prepared.backtest, candles, prepared.engine)
    exit_code = 0 if results.is_complete(options.series) else SeriesError.exit_code
    if prepared.num_seeds > 1:
        from v8.cli.runs import repeat_and_print

        is_complete = repeat_and_print(prepared, results)
        exit_code = exit_code if is_complete else SeriesError.exit_code
    if results.cells and forecasts:
        from v8.cli.forecasts import export_forecasts

        export_code = export_forecasts(
            "--forecasts",
            out,
            forecasts,
            is_overwriting=overwrite,
            form=form,
            open_source=lambda _: OpenedSource(candles, options.tables),
        )
        exit_code = max(exit_code, export_code)
        if prepared.num_seeds > 1:
            seed = prepared.backtest.profile.seed
            echo(f"These forecasts are of seed {seed}, the profile's own; the others are in {out}/seed-*.")
    if results.cells and added:
        sections = {name: make_section(out, results, candles) for name, make_section in added.items()}
        write_backtest(out, results, sections)
    for name in sections_before:
        if name not in added:
            echo(f"{out / PAGE_FILE} has no longer what --{name} added; repeat the command with it.")
    raise Exit(exit_code)


def doctor(
    profile_argument: cli.ProfileArgument = None,
    profile: str | None = Option(
        None, metavar="NAME|FILE", help="Whose network is measured. Default: frontier."
    ),
    is_json: bool = Option(False, "--json", help="Print one JSON document and nothing else."),
    seconds: float = Option(0.5, metavar="S", min=0.05, help="Time of each measurement."),
) -> None:
    """Examine this machine: driver, devices, speed of training, and the flags to choose for it.

    Examples:
        v8 doctor
        v8 doctor --profile aligned --json
    """
    chosen = load_profile(cli.one_profile("doctor", profile_argument, profile) or _DEFAULT_PROFILE)
    network_outputs(chosen)  # raises an error if the profile has no network to measure
    report_waiting("Asking for the driver, and starting what computes.")

    from v8.cli.inspection import run_doctor

    raise Exit(run_doctor(chosen, seconds, is_json=is_json))
