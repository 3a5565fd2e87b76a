"""The folder of a back-test: `plan.json`, a run folder for each fold, and what they show together.

    backtests/frontier/     plan.json, backtest.json, backtest.html
      fold-1/               a run folder like any other, see `v8.artifacts.run_folder`
        BTCUSDT-15m/        model.keras ... and season.npz

The plan is written before anything is trained and never changes: where the folds end must not move with the
newest candle when a back-test is continued. One process at a time writes the folder.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from v8.artifacts.run_folder import SeriesName, require_empty, require_own_files, require_own_profile
from v8.errors import ArtifactError, listed
from v8.market.series import Series
from v8.records import AS_WRITTEN, OpenTime, Positive, check_format, checked, read_json_object, under_key
from v8.storage import WriterLock, write_json
from v8.wording import plural

BACKTEST_FORMAT: Final = 1
"""Version of the keys of `plan.json`."""

PLAN_FILE: Final = "plan.json"

_FIX: Final = "Restore the file, or start another back-test with param:out"


@dataclass(frozen=True)
class Fold:
    """One fold."""

    number: Positive  # from 1, in the order of time
    newest_s: Mapping[SeriesName, OpenTime]
    """Per series that takes part, the latest open time of its candles, seconds, UTC."""

    @property
    def folder(self) -> str:
        """Name of its run folder."""
        return f"fold-{self.number}"

    @property
    def ends(self) -> list[tuple[str, int]]:
        """Timeframe and latest open time of each series that takes part."""
        return [(Series.parse(name).timeframe, end_s) for name, end_s in self.newest_s.items()]


@dataclass(frozen=True)
class BacktestPlan:
    """The content of `plan.json`."""

    format: int  # `BACKTEST_FORMAT`
    profile: dict[str, Any]  # what is trained in each fold
    profile_digest: str  # its digest
    source: str  # name of the candle source
    is_publishable: bool  # false for the demo market
    series: tuple[SeriesName, ...]  # which were asked for
    num_folds: Positive  # how many were asked for
    history_bars: Positive | None
    """Newest candles of each series that the folds lie in; None for all there are."""
    command: str  # the command line
    created_at: str  # when, ISO 8601 in UTC
    folds: tuple[Fold, ...] = ()  # in the order of time
    missing: Mapping[SeriesName, str] | None = None  # why series have no candles

    def contradiction(self) -> tuple[str, str] | None:
        """Return a key that no back-test has as it is, and how it is; None if there is none."""
        if len(set(self.series)) < len(self.series):
            return "series", "a series listed twice"
        if [fold.number for fold in self.folds] != [*range(1, self.num_folds + 1)]:
            told = listed([fold.number for fold in self.folds]) or "none"
            return "folds", f"{plural(self.num_folds, 'fold')} asked for, and in the plan {told}"
        ends_s: dict[str, int] = {}
        for fold in self.folds:
            if strange := [name for name in fold.newest_s if name not in self.series]:
                return "folds", f"{listed(strange)} in {fold.folder}, which the back-test was not asked for"
            if len(set(fold.ends)) > len(dict(fold.ends)):
                return "folds", f"series of one timeframe that end {fold.folder} at different times"
            if late := [name for name, end_s in fold.ends if end_s <= ends_s.get(name, -1)]:
                return "folds", f"{fold.folder} of {late[0]}, which does not end after the one before"
            ends_s |= dict(fold.ends)
        return None

    def difference(self, other: "BacktestPlan") -> list[str]:
        """Name what was asked for otherwise."""
        asked = ("profile_digest", "source", "series", "num_folds", "history_bars")
        return [name for name in asked if getattr(self, name) != getattr(other, name)]


_PLAN: Final = TypeAdapter(BacktestPlan)


class BacktestLock(WriterLock):
    """Hold the folder of a back-test for this process; it is made when missing."""

    def __init__(self, path: Path) -> None:
        rule = "one back-test at a time writes its folder"
        super().__init__(path / PLAN_FILE, rule=rule, fix="Wait until it ends, or choose another param:out")


def read_plan(path: Path) -> BacktestPlan:
    """Read and check the plan of a back-test.

    Raises `ArtifactError` if there is none, it is damaged or of an unknown format, its profile is not
    that of its digest, or its folds are not those of one back-test, each once and in the order of time.
    """
    require_own_files(path)
    file = path / PLAN_FILE
    content = read_json_object(file, fix=_FIX)
    check_format(content, (BACKTEST_FORMAT,), what="back-test", where=str(file), fix=_FIX)
    plan = checked(_PLAN, content, where=str(file), fix=_FIX, rule=AS_WRITTEN)
    require_own_profile(file, fix=_FIX)
    if found := plan.contradiction():
        key, got = found
        raise ArtifactError(where=under_key(str(file), key), rule=AS_WRITTEN, got=got, fix=_FIX)
    return plan


def begin_plan(path: Path, plan: BacktestPlan) -> None:
    """Write the plan of a back-test that begins.

    Raises:
        ArtifactError: If something lies in the folder.
        StorageError: If it cannot be written.
    """
    require_empty(
        path,
        rule=f"a back-test begins in a folder of its own; {PLAN_FILE} would tell whose these are",
        fix=f"Restore {PLAN_FILE} to continue, or choose another param:out",
    )
    write_json(path / PLAN_FILE, asdict(plan))


def require_same(path: Path, begun: BacktestPlan, asked: BacktestPlan) -> None:
    """Refuse to continue a back-test with other wishes than it was begun with.

    Raises `ArtifactError` if they differ.
    """
    if other := begun.difference(asked):
        told = [
            f"{name.removesuffix('_digest')} {_told(begun, name)} -> {_told(asked, name)}" for name in other
        ]
        raise ArtifactError(
            where=str(path),
            rule="a back-test is continued with what it was begun with",
            got=f"other values: {listed(told)}",
            fix="Undo the change, or start another with param:out",
        )


def _told(plan: BacktestPlan, name: str) -> str:
    value = getattr(plan, name)
    return f"{len(value)} series" if isinstance(value, tuple) else str(value)[:12]
