"""The interface of candle sources, the registry of all sources, and the function that opens one by name.

A source is a module of this package and an entry of `sources.yaml`, or a module of an annex and an entry of
its `annex.yaml`; a plug-in calls `SOURCES.register`. A source returns the candles that
it has or raises an error. It never falls back to another source, and the demo market opens only under its
own name. `CutOffSource` hides everything after a moment of the past, of any source.

The exchange has spot and derivatives, in one archive and behind several APIs of the same form, a `Market`
each: `SPOT` is here; an annex adds others. A symbol may be traded in several markets at different prices: in
all but spot it has a suffix here, so that series of two markets are never mistaken for each other.
"""

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from v8.base.errors import DataError, ProfileError, UnknownSeriesError
from v8.base.registry import Named, Registry, added_entries, make_entries, read_list
from v8.data.market.series import Series, series_advice

if TYPE_CHECKING:
    import pandas as pd

    from v8.data.market.candles import Candles


class CandleSource(Protocol):
    """Where candles come from."""

    @property
    def name(self) -> str:
        """The name under which the source is opened; it is recorded with candles and results."""

    @property
    def is_publishable(self) -> bool:
        """Whether models trained on these candles may be published; never for the demo market."""

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> "Candles":
        """Return the newest closed candles of a series, at most `num_bars`, fewer if the source has fewer.

        Args:
            series: Symbol and timeframe.
            num_bars: Largest number of candles.
            end_s: Latest open time, seconds since the epoch, UTC; None for no limit.

        Raises:
            DataError: If there is no such candle, or the candles fail their checks.
        """


def candles_of(source: CandleSource, series: Series, num_bars: int, end_s: int | None = None) -> "Candles":
    """Return candles of any source, also of a plug-in; arguments as of `CandleSource.candles`.

    Raises:
        DataError: If it returns anything else than the checked candles of that series.
    """
    from v8.data.market.candles import Candles  # noqa: PLC0415 - sources are listed without pandas

    candles: object = source.candles(series, num_bars, end_s)
    if isinstance(candles, Candles) and candles.series == series:
        return candles
    of_another = f", of {candles.series}" if isinstance(candles, Candles) else ""
    raise DataError(
        where=f"{series} from the source {source.name}",
        rule="its function candles returns the checked candles of the series, as check_candles makes them",
        got=f"a {type(candles).__name__}{of_another}",
        fix="Return check_candles(frame, series, source=name).newest(num_bars, end_s)",
    )


@runtime_checkable
class SeriesLister(Protocol):
    """A source that can list its series; for the others the default universe is used."""

    def series(self) -> tuple[Series, ...]:
        """List the series, at least one."""


@runtime_checkable
class ChecksSeries(Protocol):
    """A source that can check at little cost whether it has a series."""

    def require(self, series: Series) -> None:
        """Raise an error for a series that the source lacks; no candles are fetched."""


@runtime_checkable
class KeepsTime(Protocol):
    """A source that knows the exchange's time, which decides which bars are closed."""

    def now_s(self) -> int:
        """Return the exchange's time, rounded down to whole seconds since the epoch; it is never ahead."""


def present_of(source: object) -> int:
    """Return the exchange's time if the source knows it, else this machine's, in seconds since the epoch."""
    return source.now_s() if isinstance(source, KeepsTime) else int(time.time())


@runtime_checkable
class PrefetchesCandles(Protocol):
    """A source that can fetch the candles of many series in parallel."""

    def prefetch(self, series: Sequence[Series], num_bars: int) -> None:
        """Fetch the newest candles of some series, so that `candles` need not wait for each of them.

        Errors of single series are not raised here but by `candles`.
        """


@runtime_checkable
class CachesCandles(Protocol):
    """A source that keeps fetched candles on this machine."""

    def cache_places(self) -> tuple[str, ...]:
        """List the places where candles of this kind are kept, that of the addresses in use first."""

    def cached(self, series: Series, num_bars: int, end_s: int, place: str | None = None) -> "Candles":
        """Return candles as `CandleSource.candles` does, from this machine alone, without any request.

        They may be incomplete; a caller that needs certain candles compares their digest.

        Args:
            series: As for `candles`; likewise `num_bars` and `end_s`.
            num_bars: See there.
            end_s: See there.
            place: One of `cache_places`: other addresses may have had other candles. The first when None.

        Raises:
            DataError: If none are cached.
        """


@runtime_checkable
class ReadsFolder(Protocol):
    """A source that reads files of the user."""

    @property
    def folder(self) -> Path:
        """The folder that holds them."""


def folder_of(source: "CandleSource") -> Path | None:
    """Return the absolute path of the folder that a source reads; None if it reads none."""
    if isinstance(source, CutOffSource):
        return folder_of(source.source)
    return source.folder.absolute() if isinstance(source, ReadsFolder) else None


@runtime_checkable
class NamesUnread(Protocol):
    """A source that can say which files of its folder might hold candles but are not read."""

    def unread(self) -> str | None:
        """Return a sentence with their names and the reason; None if there are none."""


@runtime_checkable
class ReadsDataset(Protocol):
    """A source that reads a dataset of the Hugging Face Hub."""

    @property
    def dataset_name(self) -> str:
        """The dataset, `user/name`."""


@dataclass(frozen=True, eq=False)
class SourceTable:
    """A table of covariates of one series."""

    frame: "pd.DataFrame"
    known_until_s: int  # seconds since the epoch; later rows may exist that are not in the table


@runtime_checkable
class OffersTables(Protocol):
    """A source that has tables of covariates besides candles."""

    @property
    def table_names(self) -> tuple[str, ...]:
        """The names that a profile may write under `covariates`, such as `funding`."""

    def table(self, name: str, candles: "Candles") -> SourceTable:
        """Return the rows of a table that the bars of some candles may read, or more of them.

        Args:
            name: One of `table_names`.
            candles: Candles of the series whose table it is.

        Raises:
            DataError: If there is none, or it cannot be read.
        """


def tables_of(source: "CandleSource | None") -> OffersTables | None:
    """Return the source behind its views if it has tables of covariates; else None."""
    if isinstance(source, CutOffSource | CachedCandles):
        return tables_of(source.source)
    return source if isinstance(source, OffersTables) else None


def dataset_of(source: "CandleSource") -> str | None:
    """Return the dataset of the Hub that a source reads, `user/name`; None if it reads none."""
    if isinstance(source, CutOffSource):
        return dataset_of(source.source)
    return source.dataset_name if isinstance(source, ReadsDataset) else None


class CachedCandles:
    """A view of a source that returns only the candles cached on this machine; see `CachesCandles`."""

    def __init__(self, source: CandleSource, place: str | None = None) -> None:
        self.source = source
        self._place = place
        self.name = source.name
        self.is_publishable = source.is_publishable

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> "Candles":
        """Return cached candles up to a time; see `CandleSource`.

        Raises:
            DataError: If none are cached, or the source has no cache.
        """
        if end_s is None or not isinstance(self.source, CachesCandles):
            raise DataError(
                where=f"{series} from {self.name}",
                rule="needs candles that are kept on this machine",
                got="none",
                fix=f"Fetch them from the source {self.name} itself",
            )
        return self.source.cached(series, num_bars, end_s, self._place)


def kept_places(own: Path) -> tuple[str, ...]:
    """List folders beside each other, one for each address that was used; that of those in use first."""
    return (own.name, *sorted(path.name for path in own.parent.glob("*") if path.is_dir() and path != own))


def cached_views(source: CandleSource) -> Iterator[CachedCandles]:
    """Yield views of all that is cached of a source on this machine, whatever addresses it came from."""
    if isinstance(source, CachesCandles):
        for place in source.cache_places():
            yield CachedCandles(source, place)


@dataclass(frozen=True)
class SourceKind(Named):
    """An entry of the registry of sources.

    Args:
        open: Opens the source; the module of the source is imported only then. It raises an error for
            settings that the source cannot work with.
        reads_folder: Whether `open` takes the existing folder of `--data-dir`; else it takes no argument.
        also: What users call it.
        present: The source that has newer candles of the same market, for forecasts; None if it is this one.
        symbol_suffix: End of all symbols that only sources of this market have, such as ".P"; else empty.
    """

    open: Callable[..., CandleSource]
    reads_folder: bool = False
    also: Sequence[str] = ()
    present: str | None = None
    symbol_suffix: str | None = None


_DESCRIPTIONS: Final = [*read_list("v8.data.market.sources", "sources.yaml"), *added_entries("sources")]

SOURCES: Final = Registry("source", make_entries(SourceKind, _DESCRIPTIONS, "open"))
"""Every source by the name that `--source` takes."""

_OTHER_NAMES: Final = {
    "binance": "vision (its public archive) or live (with the newest candles)",
    **{other: kind.name for kind in SOURCES.values() for other in kind.also},
}
"""What users call the sources."""


def present_source(name: str) -> str:
    """Return the name of the source that has newer candles of the same market, the source itself without one.

    >>> present_source("vision"), present_source("files")
    ('live', 'files')
    """
    kind = SOURCES.get(name)
    return kind.present if kind and kind.present and kind.present in SOURCES else name


def open_source(
    name: str, *, data_dir: Path | None = None, begin: Callable[[], object] = lambda: None
) -> CandleSource:
    """Open a source by its key of `SOURCES`.

    Args:
        name: The key.
        data_dir: The folder of the candle files, for a source that reads one.
        begin: Called after the arguments were checked: importing a source may take a second.

    Raises:
        ProfileError: If there is no such source, or it does not go with `data_dir`.
    """
    if name not in SOURCES and Path(name).is_dir():
        raise ProfileError(
            where=f"param:source {name}",
            rule=f"a source is one of {', '.join(SOURCES)}",
            got="a folder",
            fix=f"Write param:source files param:data_dir {shlex.quote(name)}",
        )
    if name not in SOURCES and name.lower() in _OTHER_NAMES:
        raise ProfileError(
            where=f"param:source {name}",
            rule=f"a source is one of {', '.join(SOURCES)}",
            got=repr(name),
            fix=f"Write param:source {_OTHER_NAMES[name.lower()]}",
        )
    kind = SOURCES.find(name, where=f"param:source {name}")
    if kind.reads_folder and not (data_dir and data_dir.is_dir()):
        raise ProfileError(
            where=f"param:source {kind.name}",
            rule="needs the folder that holds the candle files",
            got="no param:data_dir" if data_dir is None else f"{data_dir}, which is no folder",
            fix="Add param:data_dir FOLDER" if data_dir is None else "Check the path of param:data_dir",
        )
    if data_dir is not None and not kind.reads_folder:
        readers = " or ".join(entry.name for entry in SOURCES.values() if entry.reads_folder)
        raise ProfileError(
            where=f"param:data_dir {data_dir}",
            rule=f"only the source {readers} reads a folder",
            got=f"param:source {name}",
            fix=f"Add param:source {readers} or leave param:data_dir out",
        )
    begin()
    return kind.open(data_dir) if kind.reads_folder else kind.open()


@dataclass(frozen=True)
class OpenedSource:
    """Where the candles of models are read, and what is joined with them."""

    source: CandleSource
    tables: Path | None = None  # folder of the user's tables; that of `V8_TABLES` when None


class CutOffSource:
    """A view of a source that hides all candles after a moment.

    Args:
        source: The source.
        newest_s: Latest visible open time by series, seconds since the epoch, UTC. Other series of the same
            timeframe, such as those of covariates, are visible up to the same time.
    """

    def __init__(self, source: CandleSource, newest_s: Mapping[str, int]) -> None:
        self.source = source
        self._newest_s = newest_s
        self.name = source.name
        self.is_publishable = source.is_publishable

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> "Candles":
        """Return the newest candles up to the moment; see `CandleSource`."""
        last_s = self._newest_s.get(str(series)) or self._newest_of_timeframe_s(series.timeframe)
        if end_s is not None:
            last_s = min(end_s, last_s)
        candles = candles_of(self.source, series, num_bars, last_s)
        # In a back-test later candles always exist, so the report does not count them.
        return candles.with_report(num_newer=0)

    def _newest_of_timeframe_s(self, timeframe: str) -> int:
        return next(last_s for name, last_s in self._newest_s.items() if name.endswith(f"-{timeframe}"))


class AdvisedSeriesError(UnknownSeriesError):
    """The source does not have a series; it knows all that it has, and suggests one of these."""


def with_nearest(
    error: UnknownSeriesError, series: Series, source: str, candidates: Iterable[Series]
) -> UnknownSeriesError:
    """Return the error for an unknown series with a suggestion: the candidate with the most similar name.

    Args:
        error: The error of the source.
        series: The series that the source does not know.
        source: Name of the source.
        candidates: Series that may have been meant.
    """
    if isinstance(error, AdvisedSeriesError):
        return error
    others = [str(candidate) for candidate in candidates if candidate != series]
    fix = series_advice(str(series), others, error.fix)
    location = str(error.where)
    if not location.startswith(str(series)):
        location = f"{series} from {source}"
    return UnknownSeriesError(where=location, rule=error.rule, got=error.got, fix=fix)


@dataclass(frozen=True, kw_only=True)
class Market:
    """A market of the exchange."""

    source_suffix: str  # of the sources of this market: "" or "-um"
    archive_folder: str  # folder of the archive that holds `monthly` and `daily`
    api_folder: str  # path of its API on each host
    hosts_variable: str  # environment variable that names the hosts of its API, comma-separated
    default_hosts: str  # the exchange's own, comma-separated
    near_weight: int  # request weight in a minute from which the API gets a pause
    symbol_suffix: str = ""  # of symbols here; the exchange writes them without it
    symbols: tuple[str, ...] = ()  # of the exchange, without suffix, that a similar one may stand for

    def symbol_of(self, series: Series) -> str:
        """Return the symbol of a series as the exchange writes it."""
        return series.symbol.removesuffix(self.symbol_suffix)

    def require_listed(self, series: Series, source: str) -> None:
        """Refuse a symbol that this market cannot have, before any request is sent."""
        symbol = self.symbol_of(series)
        if symbol.isalnum() and series.symbol == f"{symbol}{self.symbol_suffix}":
            return
        location = f"{series} from {source}"
        example = f"BTCUSDT{self.symbol_suffix}"
        rule = f"the exchange's symbols are letters and digits, such as {example}"
        if self.symbol_suffix:
            rule = f"its symbols are the exchange's, and end with {self.symbol_suffix}, such as {example}"
        others = [
            kind.name
            for kind in SOURCES.values()
            if kind.symbol_suffix and series.symbol.endswith(kind.symbol_suffix)
        ]
        if others:
            fitting = [name for name in others if name.startswith(source)]
            raise AdvisedSeriesError(
                where=location,
                rule=rule,
                got=series.symbol,
                fix=f"Write param:source {(fitting or others)[0]}",
            )
        if self.symbol_suffix and series.symbol.isalnum():
            raise AdvisedSeriesError(
                where=location,
                rule=rule,
                got=series.symbol,
                fix=f"Write {series.symbol}{self.symbol_suffix}-{series.timeframe}",
            )
        raise UnknownSeriesError(
            where=location,
            rule=rule,
            got=series.symbol,
            fix="Write it as the exchange does, or give files of your own with param:source files",
        )

    def advice(self, series: Series, otherwise: str) -> str:
        """Suggest the symbol of the same coin that this market has, for a series that it lacks."""
        symbol = self.symbol_of(series)
        coin = symbol.removesuffix("USDT")
        similar = [known for known in self.symbols if coin in known and known != symbol]
        if not coin or not similar:
            return otherwise
        return f"Did you mean {similar[0]}{self.symbol_suffix}-{series.timeframe}"


SPOT: Final = Market(
    source_suffix="",
    archive_folder="data/spot",
    api_folder="api/v3",
    hosts_variable="V8_REST_URL",
    # The exchange's main host, and the one that serves market data only, to everyone.
    default_hosts="https://api.binance.com,https://data-api.binance.vision",
    near_weight=5_400,  # of the 6,000 that a minute allows; the rest is left for others at the address
)
