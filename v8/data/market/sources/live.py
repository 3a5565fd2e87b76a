"""The source `live`: candles up to this moment from the local store, the archive (final ones) and the API.

Which server is asked depends on what the store lacks:

* Nothing, because the store has the last closed candle: no server, unless the price jumps at that candle.
* Fewer than 1,000 candles at the end: the API, in one request. It starts with the last candles of the store,
  so that a revision of them is detected, and earlier if a later one than the archive's is missing: it may
  have come since.
* More candles at the end, or candles older than the store's: the archive up to the last complete day, and the
  API from there on; the API alone, page by page, for a series that the archive lacks. A symbol that is no
  longer traded costs one request, and so does a request for candles from before the first one.

The exchange's time is requested once for each source object. `v8.data.market.store` keeps all candles, and
both versions of those that were revised.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.base import storage
from v8.base.errors import DataError
from v8.data.market.candles import Candles, none_until, require_num_bars
from v8.data.market.checks import check_candles
from v8.data.market.series import DAY_S, Series
from v8.data.market.sources import SPOT, Market, kept_places
from v8.data.market.sources.rest import MOST_ROWS, CandleSpan, RestSource
from v8.data.market.sources.vision import NotArchivedError, VisionSource, read_archive_address
from v8.data.market.store import CandleStore, StoredCandles, StoredSeries, from_api, from_candles

NUM_REASKED: Final = 3  # newest candles of the store that a request for newer ones repeats
_MONTH_LAG_S: Final = 2 * DAY_S  # the archive has the zip of a month two days after its end
T = TypeVar("T")


@dataclass(frozen=True)
class CandleRequest:
    """A request for the newest candles of one series."""

    series: Series
    num_bars: int  # newest candles that open at or before `last_s`
    last_s: int  # latest open time, seconds since the epoch
    newest_s: int  # open time of the last bar that is closed
    now_s: int  # the exchange's time, seconds since the epoch

    @property
    def final_s(self) -> int:
        """Open time of the last bar of yesterday: the archive has no later one."""
        return self.series.last_closed_s(self.now_s // DAY_S * DAY_S)

    def page(self, stored: StoredCandles | None) -> CandleSpan | None:
        """Return the span of one request to the API that completes the end of the stored candles.

        None if nothing is missing there, or if one request is not enough.
        """
        if stored is None:
            num_back = self.num_bars + self.bars_after(self.last_s, self.newest_s)
            return self.back_from(self.newest_s, MOST_ROWS) if num_back <= MOST_ROWS else None
        num_missing = self.bars_after(stored.last_s, self.newest_s)
        has_suspect_end = self.newest_s == stored.last_s and stored.has_suspect_end
        is_complete = self.last_s <= stored.last_s and not has_suspect_end
        if is_complete or num_missing > MOST_ROWS - 1:
            return None
        num_bars = min(num_missing + NUM_REASKED, MOST_ROWS)
        hole_s = stored.first_hole_s(self.newest_s - (MOST_ROWS - 1) * self.series.bar_s)
        if hole_s is not None:
            num_bars = max(num_bars, self.bars_after(hole_s - self.series.bar_s, self.newest_s))
        return self.back_from(self.newest_s, num_bars)

    def back_from(self, last_s: int, num_bars: int) -> CandleSpan:
        """Return a span of so many bars that ends at a bar, without bars from before 1970."""
        num_before = min(num_bars - 1, last_s // self.series.bar_s)
        return CandleSpan(self.series, last_s - num_before * self.series.bar_s, last_s)

    def unconfirmed(self, stored: StoredCandles) -> CandleSpan | None:
        """Return the span of candles from the API whose month the archive has by now; None without any."""
        now = np.datetime64(self.now_s - _MONTH_LAG_S, "s")
        month_start_s = int(now.astype("datetime64[M]").astype("datetime64[s]").astype(np.int64))
        open_time_s = stored.open_time_s[~stored.is_final]
        return self._span_of(open_time_s, month_start_s - self.series.bar_s)

    def revisable(self, stored: StoredCandles) -> CandleSpan | None:
        """Return the span of the candles from the API among the newest `num_bars`; None without any."""
        is_final = stored.is_final[-self.num_bars :]
        open_time_s = stored.open_time_s[-self.num_bars :][~is_final]
        return self._span_of(open_time_s, self.newest_s)

    def _span_of(self, open_time_s: NDArray[np.int64], last_s: int) -> CandleSpan | None:
        open_time_s = open_time_s[open_time_s <= last_s]
        if not len(open_time_s):
            return None
        return CandleSpan(self.series, int(open_time_s[0]), int(open_time_s[-1]))

    def bars_after(self, after_s: int, until_s: int) -> int:
        """Count the bars that open after one time and up to another."""
        return max(0, (until_s - after_s) // self.series.bar_s)


@dataclass(frozen=True, eq=False)
class UpdateResult:
    """The result of an update for one series."""

    series: Series
    result: StoredSeries | DataError  # the stored series, or why it could not be updated
    num_added: int = 0  # candles that were not stored before
    num_revised: int = 0  # revisions that were not listed before
    note: str = ""  # a failure without consequences for the result; empty if there was none


class LiveSource:
    """Candles of the present from archive and API, kept in a store.

    Args:
        rest: The API; that of spot and the environment when None.
    """

    name = "live"
    market: Market = SPOT
    is_publishable: ClassVar = True

    def __init__(self, rest: RestSource | None = None) -> None:
        self.rest = rest or RestSource()
        self.now_s = self.rest.now_s
        self.market = self.rest.market
        self.name = f"live{self.market.source_suffix}"
        self.archive = VisionSource(market=self.market, now=self.now_s)
        # The folder of a market is named by all addresses that it comes from, whatever their order.
        addresses = self.rest.api.addresses
        urls = [sorted(address.url for address in addresses), read_archive_address().url]
        name = f"{addresses[0].folder_name}-{storage.digest_json(urls)[:12]}"
        self.store = CandleStore(storage.home() / "candles" / name)

    def require(self, series: Series) -> None:
        """Refuse a series of which the exchange has no candle; see `ChecksSeries`."""
        self.rest.require(series)

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the exchange; see `CandleSource`."""
        require_num_bars(num_bars, series)
        request = self._request(series, num_bars, end_s)
        (result,) = self._fetched([request], [self.store.read(series)])
        if isinstance(result, DataError):
            raise result
        return self._served(request, result)

    def cache_places(self) -> tuple[str, ...]:
        """List the folders of stores, of this and of other addresses; see `CachesCandles`."""
        return kept_places(self.store.folder)

    def cached(self, series: Series, num_bars: int, end_s: int, place: str | None = None) -> Candles:
        """Return the candles of the store up to a time; see `CachesCandles`."""
        store = CandleStore(self.store.folder.parent / place) if place else self.store
        stored = store.read(series)
        if stored is None:
            raise DataError(
                where=f"{series} from {self.name}",
                rule="needs candles that are kept on this machine",
                got="none",
                fix="Fetch them from the exchange",
            )
        # All bars up to `end_s` were closed when they were stored.
        request = CandleRequest(series, num_bars, last_s=end_s, newest_s=end_s, now_s=end_s + series.bar_s)
        return self._served(request, stored)

    def prefetch(self, series: Sequence[Series], num_bars: int) -> None:
        """Bring many series up to date, their requests in parallel; see `PrefetchesCandles`."""
        self._fetched(self._requests(series, num_bars), [self.store.read(name) for name in series])

    def update(
        self, series: Sequence[Series], num_bars: int, *, accept_revisions: bool = False
    ) -> list[UpdateResult]:
        """Bring many series up to date, and compare candles of complete months with the archive.

        Args:
            series: The series.
            num_bars: Newest candles of each that are wanted.
            accept_revisions: Whether the API's present version replaces the stored one in all of the newest
                `num_bars` candles that are not from the archive.
        """
        requests = self._requests(series, num_bars)
        before = [self.store.read(name) for name in series]
        stored: Sequence[StoredSeries | DataError | None] = before
        if accept_revisions:
            stored = [_unless_error(self._accepted, *pair) for pair in zip(requests, before, strict=True)]
        fetched = self._fetched(requests, stored)
        results = []
        for name, request, former, current in zip(series, requests, before, fetched, strict=True):
            compared = _unless_error(self._compared, request, former, current)
            results.append(UpdateResult(name, compared) if isinstance(compared, DataError) else compared)
        return results

    def _requests(self, series: Sequence[Series], num_bars: int) -> list[CandleRequest | DataError]:
        """Return a request for each series, or the reason why the exchange cannot have it."""
        requests: list[CandleRequest | DataError] = []
        for name in series:
            unlisted = _unless_error(self.market.require_listed, name, self.name)
            if unlisted is None:
                self.now_s()  # if the exchange does not answer at all, the error is raised here
                requests.append(_unless_error(self._request, name, num_bars, None))
            else:
                requests.append(unlisted)
        return requests

    def _request(self, series: Series, num_bars: int, end_s: int | None) -> CandleRequest:
        self.market.require_listed(series, self.name)
        now_s = self.rest.confirmed_now_s(series)
        return CandleRequest(
            series=series,
            num_bars=num_bars,
            last_s=series.last_wanted_s(now_s, end_s),
            newest_s=series.last_closed_s(now_s),
            now_s=now_s,
        )

    def _fetched(
        self,
        requests: Sequence[CandleRequest | DataError],
        stored: Sequence[StoredSeries | DataError | None],
    ) -> list[StoredSeries | DataError]:
        """Complete many series: one page of each in parallel, then what else is needed one after another."""
        pairs = zip(requests, stored, strict=True)
        pages = self.rest.api.downloader.map(lambda pair: _unless_error(self._page, *pair), pairs)
        return [
            _unless_error(self._completed, request, former, page)
            for request, former, page in zip(requests, stored, pages, strict=True)
        ]

    def _page(self, request: CandleRequest, stored: StoredSeries | None) -> StoredCandles | None:
        """Fetch a page within the calling thread; None where none is needed or the API has no candle."""
        span = request.page(stored.candles if stored else None)
        if span is None:
            return None
        rows = self.rest.api.klines(span)
        return from_api(span.series, span.first_s, rows) if len(rows) else None

    def _completed(
        self, request: CandleRequest, stored: StoredSeries | None, page: StoredCandles | None
    ) -> StoredSeries:
        """Add a page to the stored candles, or what is more than a page, and older candles if needed."""
        if page:
            stored = self._merged(request, stored, [page])
        elif stored and request.last_s > stored.candles.last_s and request.page(stored.candles) is None:
            stored = self._with_end(request, stored)
        if stored:
            if stored.candles.has_oldest or stored.candles.num_until(request.last_s) >= request.num_bars:
                return stored
            begin_s = self.rest.api.edge_open_s(request.series, request.newest_s)
            if begin_s is None or begin_s >= stored.candles.open_time_s[0]:
                return self._merged(request, stored, [], has_oldest=True)
        num_bars = request.num_bars + request.bars_after(request.last_s, request.final_s)
        return self._from_archive(request, stored, num_bars)

    def _with_end(self, request: CandleRequest, stored: StoredSeries) -> StoredSeries:
        """Add the candles after the stored ones: more than a page, or those of a symbol that ended."""
        end_s = self._end_s(request)
        if end_s <= stored.candles.last_s:
            return stored
        num_bars = (end_s - stored.candles.last_s) // request.series.bar_s + NUM_REASKED
        if num_bars > MOST_ROWS:
            return self._from_archive(request, stored, num_bars, end_s)
        return self._merged(request, stored, self._from_rest(request.back_from(end_s, num_bars)))

    def _from_archive(
        self, request: CandleRequest, stored: StoredSeries | None, num_bars: int, end_s: int = 0
    ) -> StoredSeries:
        """Add final candles from the archive, and the candles between these and `end_s` from the API.

        `end_s` is the open time of the exchange's newest candle, 0 where it has not been requested yet.
        """
        past = self._past(request, num_bars)
        begin_s = past.last_s
        is_adjacent = True
        if stored:
            is_adjacent = stored.candles.touches(past)
            last_stored_s = stored.candles.last_s
            begin_s = max(past.last_s, last_stored_s) if is_adjacent else min(past.last_s, last_stored_s)
        if is_adjacent and begin_s >= request.last_s:
            return self._merged(request, stored, [past])
        end_s = end_s or self._end_s(request)
        num_after = (end_s - begin_s) // request.series.bar_s
        recent = []
        if num_after > 0:
            recent = self._from_rest(request.back_from(end_s, num_after + NUM_REASKED))
        # Each piece must touch what comes before it: the recent candles may close a gap to the past ones.
        pieces = [past, *recent] if is_adjacent else [*recent, past]
        return self._merged(request, stored, pieces)

    def _end_s(self, request: CandleRequest) -> int:
        """Request the open time of the exchange's newest candle; 0 if it has none."""
        return self.rest.api.edge_open_s(request.series, request.newest_s, is_newest=True) or 0

    def _past(self, request: CandleRequest, num_bars: int) -> StoredCandles:
        """Fetch so many final candles from the archive, or from the API if the archive lacks the series."""
        try:
            candles = self.archive.candles(request.series, num_bars, request.final_s)
            is_final = True
        except NotArchivedError:
            num_bars += (request.newest_s - request.final_s) // request.series.bar_s
            candles = self.rest.candles(request.series, num_bars, request.newest_s)
            is_final = False
        return from_candles(candles, is_final=is_final, has_oldest=len(candles) < num_bars)

    def _from_rest(self, span: CandleSpan) -> list[StoredCandles]:
        """Fetch a span in pages from the API; an empty list if it has no candle there, else one piece."""
        tables = self.rest.api.downloader.map(self.rest.api.klines, span.pages())
        rows = pd.concat(reversed(tables), ignore_index=True)
        return [from_api(span.series, span.first_s, rows)] if len(rows) else []

    def _merged(
        self,
        request: CandleRequest,
        stored: StoredSeries | None,
        pieces: Sequence[StoredCandles],
        *,
        has_oldest: bool = False,
        accept_revisions: bool = False,
    ) -> StoredSeries:
        return self.store.merge(
            request.series,
            stored,
            pieces,
            request.now_s,
            has_oldest=has_oldest,
            accept_revisions=accept_revisions,
        )

    def _accepted(self, request: CandleRequest, stored: StoredSeries | None) -> StoredSeries | None:
        """Replace the newest candles that are not from the archive by the API's present version."""
        span = request.revisable(stored.candles) if stored else None
        pieces = self._from_rest(span) if span else []
        return self._merged(request, stored, pieces, accept_revisions=True) if pieces else stored

    def _compared(
        self, request: CandleRequest, before: StoredSeries | None, current: StoredSeries
    ) -> UpdateResult:
        """Compare candles from the API with the archive, once it has their month, and count what is new."""
        span = request.unconfirmed(current.candles)
        note = ""
        if span:
            try:
                archived = self.archive.candles(span.series, span.num_bars, span.last_s)
            except DataError as error:
                note = f"not compared with the archive: {error}"
            else:
                final = from_candles(archived, is_final=True, has_oldest=False)
                current = self._merged(request, current, [final])
        return UpdateResult(
            series=request.series,
            result=current,
            num_added=len(current.candles) - (len(before.candles) if before else 0),
            num_revised=len(current.revisions) - (len(before.revisions) if before else 0),
            note=note,
        )

    def _served(self, request: CandleRequest, stored: StoredSeries) -> Candles:
        """Check stored candles as those of any source are checked, and count those with two versions."""
        series = request.series
        frame = stored.candles.frame(request.num_bars, request.last_s)
        if frame.empty:
            first_s = stored.candles.open_time_s[0]
            raise none_until(request.last_s, first_s, f"{series} from {self.name}")
        candles = check_candles(frame, series, source=self.name, now_s=request.now_s)
        num_revised = int(np.isin(candles.open_time_s, stored.revisions["open_time_s"]).sum())
        num_newer = (request.newest_s - request.last_s) // series.bar_s
        return candles.with_report(num_newer=num_newer, num_revised=num_revised)


def _unless_error(work: Callable[..., T], *parts: Any) -> T | DataError:
    """Return what `work` makes of some parts, or an error: one of the parts, or the one that it raises.

    So the error of one series takes the place of its result in a list and does not stop the others.
    """
    for part in parts:
        if isinstance(part, DataError):
            return part
    try:
        return work(*parts)
    except DataError as error:
        return error
