"""What a source of candles can do, which there are, and the one way to open one by name.

A source is a file of this folder and an entry of `sources.yaml`; one's own calls `SOURCES.register`. It
serves what it has or raises an error. None of them ever falls back to another, and the demo market opens only
under its own name. `CutOffSource` shows of any of them what there was at a moment of the past.
"""

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from v8.errors import DataError, ProfileError, UnknownSeriesError
from v8.market.series import Series, series_advice
from v8.registry import Named, Registry, read_entries

if TYPE_CHECKING:  # the command line lists the sources without waiting for pandas
    from v8.market.candles import Candles


class CandleSource(Protocol):
    """Where candles come from."""

    @property
    def name(self) -> str:
        """The name the source is opened by; it marks the candles and everything made from them."""

    @property
    def is_publishable(self) -> bool:
        """Whether models trained on these candles may be published; never for the demo market."""

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> "Candles":
        """Return the newest closed candles of a series, at most `num_bars`, fewer when there are no more.

        None opens after `end_s`, seconds since the epoch, UTC; None for the newest there are.
        """


@runtime_checkable
class SeriesLister(Protocol):
    """A source that knows which series it has; of the others the default universe is asked for."""

    def series(self) -> tuple[Series, ...]:
        """List them, at least one."""


@runtime_checkable
class ChecksSeries(Protocol):
    """A source that can tell at little cost whether it has a series."""

    def require(self, series: Series) -> None:
        """Refuse a series that the source lacks; no candles are fetched."""


@runtime_checkable
class KeepsTime(Protocol):
    """A source that knows the exchange's time: that decides what is closed, not this machine's clock."""

    def now_s(self) -> int:
        """Return the exchange's time, whole seconds since the epoch; never ahead of it."""


def present_of(source: object) -> int:
    """Return the present of a source in seconds since the epoch: the exchange's time, else this machine's."""
    return source.now_s() if isinstance(source, KeepsTime) else int(time.time())


@runtime_checkable
class BringsMany(Protocol):
    """A source that fetches the candles of many series at once."""

    def bring(self, series: Sequence[Series], num_bars: int) -> None:
        """Have the newest candles of some series at hand, so that `candles` need not wait for each alone.

        What goes wrong with a series is not told here: asking for its candles tells.
        """


@runtime_checkable
class KeepsCandles(Protocol):
    """A source that keeps on this machine what it fetched."""

    def kept(self, series: Series, num_bars: int, end_s: int) -> "Candles":
        """Return candles as `CandleSource.candles` does, from this machine alone: nobody is asked.

        Nothing says that they are complete; whoever needs certain ones compares the digest. Raises
        `DataError` if none are kept.
        """


@runtime_checkable
class ReadsFolder(Protocol):
    """A source that reads a folder of the user."""

    @property
    def folder(self) -> Path:
        """The folder."""


def folder_of(source: "CandleSource") -> Path | None:
    """Return the folder that a source reads, absolute; None where it reads none."""
    if isinstance(source, CutOffSource):
        return folder_of(source.source)
    return source.folder.absolute() if isinstance(source, ReadsFolder) else None


class KeptCandles:
    """A source of which only what is kept on this machine is seen; see `KeepsCandles`."""

    def __init__(self, source: CandleSource) -> None:
        self._source = source
        self.name = source.name
        self.is_publishable = source.is_publishable

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> "Candles":
        """Return candles up to a time from this machine alone; see `CandleSource`.

        Raises `DataError` if none are kept, or the source keeps nothing.
        """
        if end_s is None or not isinstance(self._source, KeepsCandles):
            rule = "needs candles that are kept on this machine"
            got = "none"
            fix = f"Ask the source {self.name} itself"
            raise DataError(where=f"{series} from {self.name}", rule=rule, got=got, fix=fix)
        return self._source.kept(series, num_bars, end_s)


@dataclass(frozen=True)
class SourceKind(Named):
    """A source that can be asked for.

    Args:
        open: Opens it; it refuses what it cannot work with. `later` imports its module only then.
        reads_folder: Whether `open` takes the folder of `--data-dir`, which is there; else it takes none.
    """

    open: Callable[..., CandleSource]
    reads_folder: bool = False


SOURCES: Final = Registry("source", read_entries(SourceKind, "v8.market.sources", "sources.yaml", "open"))
"""Every source by the name that `--source` takes."""


def open_source(
    name: str, *, data_dir: Path | None = None, begin: Callable[[], object] = lambda: None
) -> CandleSource:
    """Open a source by its key of `SOURCES`; one that reads a folder takes `data_dir`.

    What can be refused at once is, and then `begin` is called: importing a source may take a second.
    """
    if name not in SOURCES and Path(name).is_dir():
        rule = f"a source is one of {', '.join(SOURCES)}"
        fix = f"Write param:source files param:data_dir {shlex.quote(name)}"
        raise ProfileError(where=f"param:source {name}", rule=rule, got="a folder", fix=fix)
    kind = SOURCES.find(name, where=f"param:source {name}")
    if kind.reads_folder and not (data_dir and data_dir.is_dir()):
        rule = "needs the folder that holds the candle files"
        got = "no param:data_dir" if data_dir is None else f"{data_dir}, which is no folder"
        fix = "Add param:data_dir FOLDER"
        raise ProfileError(where=f"param:source {kind.name}", rule=rule, got=got, fix=fix)
    if data_dir is not None and not kind.reads_folder:
        readers = " or ".join(each.name for each in SOURCES.values() if each.reads_folder)
        rule = f"only the source {readers} reads a folder"
        fix = f"Add param:source {readers} or leave param:data_dir out"
        raise ProfileError(where=f"param:data_dir {data_dir}", rule=rule, got=f"param:source {name}", fix=fix)
    begin()
    return kind.open(data_dir) if kind.reads_folder else kind.open()


class CutOffSource:
    """A source of which nothing after a moment is seen, by series: the latest open time shown.

    It is in seconds since the epoch, UTC. Series of a timeframe share it, so neighbours are shown as far.
    """

    def __init__(self, source: CandleSource, newest_s: Mapping[str, int]) -> None:
        self.source = source
        self._newest_s = newest_s
        self.name = source.name
        self.is_publishable = source.is_publishable

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> "Candles":
        """Return the newest candles up to the moment; see `CandleSource`."""
        same = (each_s for name, each_s in self._newest_s.items() if name.endswith(f"-{series.timeframe}"))
        last_s = self._newest_s.get(str(series)) or next(same)
        found = self.source.candles(series, num_bars, last_s if end_s is None else min(end_s, last_s))
        # Later candles are known to exist; that they do is no news in a back-test.
        return found.noting(num_newer=0)


def require_listed(series: Series, source: str) -> None:
    """Refuse a symbol that the exchange cannot have before anything is asked."""
    if not series.symbol.isalnum():
        rule = "the exchange's symbols are letters and digits, such as BTCUSDT"
        fix = "Write it as the exchange does, or give files of your own with param:source files"
        raise UnknownSeriesError(where=f"{series} from {source}", rule=rule, got=series.symbol, fix=fix)


def with_nearest(
    error: UnknownSeriesError, series: Series, source: str, known: Iterable[Series]
) -> UnknownSeriesError:
    """Return the refusal of a series that a source has never heard of, with the nearest name that is known.

    Args:
        error: What the source said.
        series: Which series it refused.
        source: Name of the source.
        known: Series that may have been meant.
    """
    others = [str(one) for one in known if one != series]
    where = str(error.where)
    fix = series_advice(str(series), others, error.fix)
    if not where.startswith(str(series)):
        where = f"{series} from {source}"
    return UnknownSeriesError(where=where, rule=error.rule, got=error.got, fix=fix)
