"""What a run can be asked for, whoever asks: checked here, and turned into a plan and who carries it out."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict

from v8.errors import DataError, ProfileError, UnknownSeriesError, listed
from v8.market.series import Series, load_universe, series_advice
from v8.market.sources.source import CandleSource, ChecksSeries, SeriesLister, open_source, with_nearest
from v8.plugins import load_plugins
from v8.profile import TABLES_PLACE, Profile, load_profile
from v8.storage import home

if TYPE_CHECKING:  # usage errors shall be told before these are imported
    from v8.runs.execution import TrainAll
    from v8.runs.plan import Plan

SMOKE_EPOCHS: Final = 1  # epochs of a smoke run: it proves the way, not the model
SMOKE_PRECISION: Final = "float32"  # measuring which is fastest takes longer than it trains


class RunOptions(BaseModel):
    """Every parameter of a run, by the names that the doors give them; `v8 run --help` explains each."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    profile: str = "frontier"
    series: tuple[str, ...] = ()
    universe: Path | None = None
    source: str = "vision"
    data_dir: Path | None = None
    tables: Path | None = None
    bars: int | None = None
    epochs: int | None = None
    precision: str | None = None
    no_mixed_precision: bool = False
    device: str = "auto"
    workers: str = "auto"
    fleet_size: str = "auto"
    engine: str = "local"
    address: str | None = None
    runs: Path = Path("runs")
    fresh: bool = False
    resume: bool = False
    smoke: bool = False
    redo: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    track: tuple[str, ...] = ()
    publish: str | None = None
    evaluate: bool = True
    importance: bool = False
    plugin: tuple[Path, ...] = ()
    command: str = ""  # the command line that continues, for the run's record

    def budgeted(self) -> Profile:
        """Return the profile as it is trained; a smoke run fills in what was not given.

        Raises:
            ProfileError: If there is no such profile, or parameters contradict each other.
        """
        if self.fresh and self.resume:
            raise contradiction("param:fresh", "param:resume", "starts a new run")
        if self.fresh and self.drop:
            raise contradiction("param:drop", "param:fresh", "takes a series out of a run that is there")
        if self.publish and not self.evaluate:
            raise contradiction("param:publish", "param:evaluate turned off", "publishes what was evaluated")
        if self.no_mixed_precision and self.precision not in (None, "float32"):
            other = f"param:precision {self.precision}"
            raise contradiction("param:no_mixed_precision", other, "trains in float32")
        profile = load_profile(self.profile)
        if self.smoke:
            from v8.runs.plan import smoke_bars  # noqa: PLC0415 - see above

            bars = smoke_bars(profile)
            profile = profile.with_budget(newest_bars=bars, epochs=SMOKE_EPOCHS, precision=SMOKE_PRECISION)
        precision = "float32" if self.no_mixed_precision else self.precision
        return profile.with_budget(newest_bars=self.bars, epochs=self.epochs, precision=precision)

    def prepared(self) -> "PreparedRun":
        """Check everything that can be checked before candles are read.

        Raises:
            V8Error: If one of the parameters cannot mean anything, or what it names is not there.
        """
        home()  # a user without one is refused here, not at the first series
        load_plugins(self.plugin)  # which the profile may mean
        profile = self.budgeted()
        asked = asked_series(self.series, self.universe)

        from v8.artifacts.run_folder import locate_run  # noqa: PLC0415 - see above
        from v8.runs.engines import choose_engine  # noqa: PLC0415
        from v8.runs.plan import make_plan  # noqa: PLC0415

        take_tables(self.tables)
        source = open_source(self.source, data_dir=self.data_dir)
        kind = f"{'-smoke' if self.smoke else ''}{'' if self.evaluate else '-unevaluated'}"
        path = locate_run(self.runs, profile.name, kind, is_fresh=self.fresh)
        dropped = tuple(Series.parse(name) for name in self.drop)
        if dropped:
            left = series_without(path, dropped)
            chosen = left if asked is None else tuple(one for one in asked if one not in dropped)
        else:
            chosen = asked or served_series(source)
        redone = tuple(Series.parse(name) for name in self.redo)
        strange = [one for one in redone if one not in chosen]
        if strange:
            rule = "names series that this call trains"
            fix = "Name it with param:series too, or leave it out"
            raise ProfileError(where="param:redo", rule=rule, got=listed(strange), fix=fix)
        train_all = choose_engine(self.engine, self.device, self.workers, self.fleet_size, self.address)
        plan = replace(
            make_plan(profile, chosen, path, redone),
            dropped=dropped,
            is_evaluated=self.evaluate,
            has_importance=self.importance,
        )
        if plan.todo:
            require_tables(profile)
        return PreparedRun(self, plan, source, train_all)


@dataclass(frozen=True)
class PreparedRun:
    """A run that only has to be begun."""

    options: RunOptions  # what was asked for
    plan: "Plan"  # what would be done
    source: CandleSource  # where candles come from
    train_all: "TrainAll"  # who trains

    def lacking(self) -> list[tuple[str, str]]:
        """Return which of the named series the source lacks, and why, as far as it can tell beforehand."""
        found: list[tuple[str, str]] = []
        if isinstance(self.source, ChecksSeries):
            named = asked_series(self.options.series, self.options.universe) or ()
            for series in (one for one in self.plan.todo if one in named):
                try:
                    self.source.require(series)
                except UnknownSeriesError as error:
                    advised = with_nearest(
                        error, series, self.source.name, [*load_universe(), *self.plan.series]
                    )
                    found.append((str(series), str(advised)))
                except DataError as error:
                    found.append((str(series), str(error)))
        return found


def take_tables(folder: Path | None) -> None:
    """Put the folder of users' tables where this process, and those that it starts, look for it.

    Raises:
        ProfileError: If there is no such folder.
    """
    if folder is None:
        return
    if not folder.is_dir():
        rule = "is the folder of the tables that a profile names under covariates"
        got = f"{folder}, which is no folder"
        raise ProfileError(where="param:tables", rule=rule, got=got, fix="Name the folder, not the file")
    os.environ[TABLES_PLACE] = str(folder.absolute())


def require_tables(profile: Profile) -> None:
    """Read the tables that a profile names, before candles are fetched and anything is trained.

    Raises:
        DataError: If one cannot be read, or is not what the profile says.
    """
    if profile.covariates:
        from v8.market.companions import read_user_table  # noqa: PLC0415 - pandas, which most need not

        list(map(read_user_table, profile.covariates))


def asked_series(names: Sequence[str] | None, universe: Path | None = None) -> tuple[Series, ...] | None:
    """Return the named series or those of a universe file; None where neither is given.

    Raises:
        ProfileError: If a name is malformed or given twice, or there are names and a file.
    """
    if not names:
        return load_universe(universe) if universe else None
    if universe:
        raise contradiction("param:universe", "param:series", "chooses the series")
    chosen = tuple(Series.parse(name) for name in names)
    twice = next((f"{one} {count} times" for one, count in Counter(chosen).items() if count > 1), None)
    if twice:
        rule = "each series is given once"
        raise ProfileError(where="param:series", rule=rule, got=twice, fix="Remove the repetition")
    return chosen


def series_without(path: Path, dropped: Sequence[Series]) -> tuple[Series, ...]:
    """Return the series of a run without some of them, which it must have.

    Raises:
        ArtifactError: If there is no run, or it is damaged.
        ProfileError: If the run does not have one of them.
    """
    from v8.artifacts.run_folder import read_run  # noqa: PLC0415 - see above

    names = list(read_run(path).series)
    strange = [str(one) for one in dropped if str(one) not in names]
    if strange:
        fix = series_advice(strange[0], names, "Name series of this run")
        rule = f"takes series out of {path}, which has {listed(names) or 'none'}"
        raise ProfileError(where="param:drop", rule=rule, got=listed(strange), fix=fix)
    return tuple(Series.parse(name) for name in names if Series.parse(name) not in dropped)


def served_series(source: CandleSource) -> tuple[Series, ...]:
    """Return all series of a source that lists them, and say so; else the default universe.

    Raises:
        DataError: If the source has none.
    """
    if not isinstance(source, SeriesLister):
        return load_universe()
    found = source.series()
    sys.stderr.write(f"Found {len(found)} series in the folder: {listed(found)}\n")
    return found


def contradiction(parameter: str, other: str, rule: str) -> ProfileError:
    """Return the error for a parameter beside which another one means nothing."""
    return ProfileError(where=parameter, rule=rule, got=f"{other} beside it", fix="Leave one of them out")
