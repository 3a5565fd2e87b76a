"""A comparison from its options to its files: what `compare-profiles` and `v8.compare` do.

The caller shows it. Modules that take a second to import are imported after what is refused in a moment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from v8.annexes.comparison.naming import formulas_of
from v8.annexes.comparison.options import ComparisonOptions
from v8.base.errors import ProfileError
from v8.base.invocation import command
from v8.base.own_files import require_own
from v8.data.market.series import Series
from v8.data.market.sources.source import CandleSource, SeriesLister, open_source
from v8.profile.profile import Profile, load_profile
from v8.runs.options import (
    chosen_series,
    contradiction,
    require_covariate_files,
    served_series,
)

if TYPE_CHECKING:
    from v8.annexes.comparison.results import Comparison
    from v8.runs.options import Placement

COMPARED_SERIES: Final = ("BTCUSDT-15m", "BTCUSDT-1h")


@dataclass(frozen=True)
class FinishedComparison:
    """A comparison, and its files."""

    comparison: "Comparison"
    files: Sequence[Path]


@dataclass(frozen=True)
class PreparedComparison:
    """A comparison of profiles that only has to be begun."""

    options: ComparisonOptions
    profiles: Sequence[Profile]  # without the budget of the comparison, in the order of the tables
    series: Sequence[Series]
    source: CandleSource

    @classmethod
    def from_options(cls, options: ComparisonOptions) -> "PreparedComparison":
        """Check the options, and read what they name but the candles.

        Raises:
            V8Error: If one of the options cannot mean anything, or what it names is not there.
        """
        source = open_source(options.source, data_dir=options.data_dir)
        profiles = [load_profile(name) for name in options.profiles]
        require_covariate_files(profiles, options.tables)
        requested = chosen_series(options.series, options.universe)
        if requested is None and not isinstance(source, SeriesLister):
            requested = chosen_series(COMPARED_SERIES)
        return cls(options, profiles, requested or served_series(source), source)

    def finish(self, command: str, notify: Callable[[str], None]) -> FinishedComparison:
        """Train every profile in every repeat, compare the runs, and write the files.

        Args:
            command: The command line, for the record.
            notify: Gets a line about each step.
        """
        from v8.annexes.comparison.measurement import compare  # noqa: PLC0415 - see the top
        from v8.annexes.comparison.measuring import TrainingOptions  # noqa: PLC0415
        from v8.annexes.comparison.page import require_same_comparison, write_comparison  # noqa: PLC0415
        from v8.annexes.comparison.results import Comparison  # noqa: PLC0415

        options = self.options
        placement = _place(options.device, str(options.fleet_size))
        planned = Comparison(
            command=command,
            source=self.source.name,
            is_demo=not self.source.is_publishable,
            series=tuple(str(one_series) for one_series in self.series),
            num_bars={profile.name: options.bars or profile.newest_bars for profile in self.profiles},
            epochs=_epoch_budget(options),
            num_repeats=options.repeat,
            baseline=options.baseline_profile or self.profiles[-1].name,
            formulas=formulas_of(self.profiles),
            num_workers=_num_workers(placement),
        )
        if not options.overwrite:
            require_same_comparison(options.out, planned)
        training = TrainingOptions(
            source=options.source,
            data_dir=options.data_dir,
            tables=options.tables,
            device=options.device,
            fleet_size=placement.fleet_size if options.fleet_size != "auto" else None,
        )
        measured = compare(
            planned, self.profiles, source=self.source, out=options.out, training=training, notify=notify
        )
        return FinishedComparison(measured, write_comparison(options.out, measured))


def check_places(options: ComparisonOptions) -> list[Path]:
    """Refuse, before hours of measuring, what cannot be written; return the run folders that are compared.

    There are none where profiles are compared.

    Raises:
        ProfileError: If nothing is named, options contradict each other, or `out` is no folder, or holds
            files of others.
    """
    from v8.annexes.comparison.page import comparison_files  # noqa: PLC0415 - see the top

    if options.full and options.epochs is not None:
        other = f"param:epochs {options.epochs}"
        raise contradiction("param:full", other, "runs each profile's own epochs")
    out = options.out
    if out.exists() and not out.is_dir():
        fix = "Choose another place for param:out"
        raise ProfileError(where="param:out", rule="is a folder", got=f"the file {out}", fix=fix)
    for file in comparison_files(out):
        require_own("param:out", file, is_overwriting=options.overwrite)
    if not options.profiles:
        words = ("frontier", "aligned", "--series", COMPARED_SERIES[0])
        raise ProfileError(
            where="param:profiles",
            rule="names the profiles, or the runs, that are compared",
            got="none",
            fix=f"Write for example {command('compare-profiles', *words)}",
        )
    return [Path(name) for name in options.profiles if is_run(name)]


def is_run(name: str | Path) -> bool:
    """Return whether a name is that of a run folder."""
    return (Path(name) / "run.json").is_file()


def compare_run_folders(runs: Sequence[Path], options: ComparisonOptions, command: str) -> FinishedComparison:
    """Compare existing run folders, and write the files; `command` is the command line, for the record."""
    from v8.annexes.comparison.measurement import compare_runs  # noqa: PLC0415 - see the top
    from v8.annexes.comparison.page import require_same_comparison, write_comparison  # noqa: PLC0415

    comparison = compare_runs(runs, baseline=options.baseline_profile, command=command)
    if not options.overwrite:
        require_same_comparison(options.out, comparison)
    return FinishedComparison(comparison, write_comparison(options.out, comparison))


def _place(device: str, fleet_size: str) -> "Placement":
    """Decide where the profiles are trained."""
    from v8.runs.engines import choose_device, local_placement  # noqa: PLC0415 - see the top

    if device != "gpu":  # only the measuring processes look for a GPU; this one would keep it from them
        choose_device(device)
    return local_placement("auto", fleet_size, device)


def _num_workers(placement: "Placement") -> int:
    """Return how many processes a run on this machine uses in parallel."""
    from v8.runs.machine.choices import measured_workers  # noqa: PLC0415 - see the top

    if placement.is_measured:
        return measured_workers(placement.num_workers)
    return placement.num_workers


def _epoch_budget(options: ComparisonOptions) -> int | None:
    """Return the most epochs of each profile; None for each profile's own."""
    if options.full:
        return None
    return 1 if options.epochs is None else options.epochs
