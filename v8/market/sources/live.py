"""The source `live`: candles up to this moment from the store, from the archive what is final, else the API.

What is missing decides who is asked:

* Nothing, because the store has the last closed candle: nobody, unless its price jumps there.
* Less than 1,000 candles at the end: the API, one request. It begins with the last candles that the store
  has, so that a revision of them is seen.
* More at the end, or older candles than the store has: the archive, up to the last day that is over, and the
  API from there; the API alone, page by page, for a series that the archive lacks. A symbol that is no longer
  traded costs one request, and so does asking for candles from before the first one.

The exchange's time is asked for once per source. `v8.market.store` keeps everything, also what is told twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8 import storage
from v8.errors import DataError
from v8.market.candles import Candles, none_until, require_num_bars
from v8.market.checks import check_candles
from v8.market.series import DAY_S, Series
from v8.market.sources.rest import MOST_ROWS, RestSource, Span
from v8.market.sources.source import require_listed
from v8.market.sources.vision import NotArchivedError, VisionSource, read_archive_address
from v8.market.store import CandleStore, History, Merged, from_api, from_candles

NUM_REASKED: Final = 3  # candles of the store that every request for newer ones asks for again
Found = TypeVar("Found")
_MONTH_LAG_S: Final = 2 * DAY_S  # the archive has the zip of a month two days after its end


@dataclass(frozen=True)
class Want:
    """What is asked for of one series."""

    series: Series
    num_bars: int  # newest candles that open at or before `last_s`
    last_s: int  # latest open time, seconds since the epoch
    newest_s: int  # open time of the last bar that is closed
    now_s: int  # the exchange's time, seconds since the epoch

    @property
    def final_s(self) -> int:
        """Open time of the last bar of yesterday: the archive has no later one."""
        return self.series.last_closed_s(self.now_s // DAY_S * DAY_S)

    def page(self, known: History | None) -> Span | None:
        """Return the span of the one request that gives all that is missing at the end; None if none does."""
        if known is None:
            num_back = self.num_bars + self.bars_after(self.last_s, self.newest_s)
            return self.back_from(self.newest_s, MOST_ROWS) if num_back <= MOST_ROWS else None
        num_missing = self.bars_after(known.last_s, self.newest_s)
        is_met = self.last_s <= known.last_s and not (self.newest_s == known.last_s and known.is_doubted)
        if num_missing > MOST_ROWS - 1 or is_met:
            return None
        return self.back_from(self.newest_s, min(num_missing + NUM_REASKED, MOST_ROWS))

    def back_from(self, last_s: int, num_bars: int) -> Span:
        """Return a span of so many bars that ends at a bar, none of them before 1970."""
        first_s = last_s - min(num_bars - 1, last_s // self.series.bar_s) * self.series.bar_s
        return Span(self.series, first_s, last_s)

    def unconfirmed(self, known: History) -> Span | None:
        """Return the span of months that are over in which only the API said what happened; None without."""
        now = np.datetime64(self.now_s - _MONTH_LAG_S, "s")
        stop_s = int(now.astype("datetime64[M]").astype("datetime64[s]").astype(np.int64))
        return self._span_of(known.open_time_s[~known.is_final], stop_s - self.series.bar_s)

    def revisable(self, known: History) -> Span | None:
        """Return the span of those of the newest candles that only the API told; None without."""
        opens_s = known.open_time_s[-self.num_bars :][~known.is_final[-self.num_bars :]]
        return self._span_of(opens_s, self.newest_s)

    def _span_of(self, opens_s: NDArray[np.int64], last_s: int) -> Span | None:
        opens_s = opens_s[opens_s <= last_s]
        return Span(self.series, int(opens_s[0]), int(opens_s[-1])) if len(opens_s) else None

    def bars_after(self, after_s: int, until_s: int) -> int:
        """Count the bars that open after one up to another."""
        return max(0, (until_s - after_s) // self.series.bar_s)


@dataclass(frozen=True, eq=False)
class Updated:
    """What an update did for one series."""

    series: Series
    found: Merged | DataError  # what is known of it now, or why it could not be brought up to date
    num_added: int = 0  # candles that were not known before
    num_revised: int = 0  # revisions that were not known before
    note: str = ""  # what did not work and was not needed; empty if all did


class LiveSource:
    """Candles of the present from archive and API, that of the environment when None, kept in a store."""

    name: ClassVar = "live"
    is_publishable: ClassVar = True

    def __init__(self, rest: RestSource | None = None) -> None:
        self.rest = rest or RestSource()
        self.now_s = self.rest.now_s
        self.require = self.rest.require
        self.archive = VisionSource(now=self.now_s)
        # A market's place is named by all addresses that it comes from, whatever their order.
        addresses = self.rest.api.addresses
        urls = [sorted(address.url for address in addresses), read_archive_address().url]
        name = f"{addresses[0].folder_name}-{storage.digest_json(urls)[:12]}"
        self.store = CandleStore(storage.home() / "candles" / name)

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the exchange; see `CandleSource`."""
        require_num_bars(num_bars, series)
        want = self._want(series, num_bars, end_s)
        (found,) = self._brought_up([want], [self.store.read(series)])
        if isinstance(found, DataError):
            raise found
        return _served(want, found)

    def kept(self, series: Series, num_bars: int, end_s: int) -> Candles:
        """Return the candles up to a time that the store holds; see `KeepsCandles`."""
        merged = self.store.read(series)
        if merged is None:
            rule = "needs candles that are kept on this machine"
            fix = "Ask the exchange for them"
            raise DataError(where=f"{series} from {self.name}", rule=rule, got="none", fix=fix)
        # Every bar up to then was closed when it was kept.
        closed_s = end_s + series.bar_s
        return _served(Want(series, num_bars, last_s=end_s, newest_s=end_s, now_s=closed_s), merged)

    def bring(self, series: Sequence[Series], num_bars: int) -> None:
        """Bring series up to date, many at once; see `BringsMany`."""
        self._brought_up(self._wants(series, num_bars), [self.store.read(one) for one in series])

    def update(self, series: Sequence[Series], num_bars: int, *, accepts: bool = False) -> list[Updated]:
        """Bring series up to date, many at once, and compare months that are over with the archive.

        Where the user accepts, all of the newest `num_bars` candles that only the API told serve as told now.
        """
        wants = self._wants(series, num_bars)
        before = [self.store.read(one) for one in series]
        known = list(map(partial(_tried, self._accepted), wants, before)) if accepts else before
        brought = self._brought_up(wants, known)
        updated = map(partial(_tried, self._compared), wants, before, brought)
        return [
            Updated(one, found) if isinstance(found, DataError) else found
            for one, found in zip(series, updated, strict=True)
        ]

    def _wants(self, series: Sequence[Series], num_bars: int) -> list[Want | DataError]:
        """Say what is asked for of each series, or why the exchange cannot have it."""
        self.now_s()
        return [_tried(self._want, one, num_bars, None) for one in series]

    def _want(self, series: Series, num_bars: int, end_s: int | None) -> Want:
        require_listed(series, self.name)
        now_s = self.rest.confirmed_now_s(series)
        last_s = series.last_wanted_s(now_s, end_s)
        newest_s = series.last_closed_s(now_s)
        return Want(series, num_bars, last_s, newest_s, now_s)

    def _brought_up(
        self, wants: Sequence[Want | DataError], known: Sequence[Merged | DataError | None]
    ) -> list[Merged | DataError]:
        """Fetch a page of each series at once, then what else is needed; an error stays with its series."""
        asked = zip(wants, known, strict=True)
        pages = self.rest.api.downloader.map(lambda each: _tried(self._page, *each), asked)
        return list(map(partial(_tried, self._completed), wants, known, pages))

    def _page(self, want: Want, known: Merged | None) -> History | None:
        """Fetch a page within the calling thread; None where none is asked for or none is there."""
        span = want.page(known.history if known else None)
        if span is None or not len(rows := self.rest.api.klines(span)):
            return None
        return from_api(span.series, span.first_s, rows)

    def _completed(self, want: Want, known: Merged | None, page: History | None) -> Merged:
        """Add a page to what is known, or what no page holds, and what is older where that is needed."""
        if page:
            known = self._merged(want, known, page)
        elif known and want.last_s > known.history.last_s and want.page(known.history) is None:
            known = self._with_end(want, known)
        if known:
            if known.history.is_whole or known.history.num_until(want.last_s) >= want.num_bars:
                return known
            begin_s = self.rest.api.edge_open_s(want.series, want.newest_s)
            if begin_s is None or begin_s >= known.history.open_time_s[0]:
                return self._merged(want, known, is_whole=True)
        return self._from_archive(want, known, want.num_bars + want.bars_after(want.last_s, want.final_s))

    def _with_end(self, want: Want, known: Merged) -> Merged:
        """Add what follows the store where that is more than a page, or the symbol is no longer traded."""
        end_s = self.rest.api.edge_open_s(want.series, want.newest_s, is_newest=True) or 0
        if end_s <= known.history.last_s:
            return known
        num_bars = (end_s - known.history.last_s) // want.series.bar_s + NUM_REASKED
        if num_bars > MOST_ROWS:
            return self._from_archive(want, known, num_bars, end_s)
        return self._merged(want, known, *self._from_rest(want.back_from(end_s, num_bars)))

    def _from_archive(self, want: Want, known: Merged | None, num_bars: int, end_s: int = 0) -> Merged:
        """Add what is final from the archive, and what lies between that and `end_s` from the API.

        That is when the newest candle of the exchange opens, 0 where it must be asked.
        """
        piece = self._past(want, num_bars)
        is_near = known is None or known.history.touches(piece)
        lasts_s = [piece.last_s, known.history.last_s] if known else [piece.last_s]
        begin_s = max(lasts_s) if is_near else min(lasts_s)
        if is_near and begin_s >= want.last_s:
            return self._merged(want, known, piece)
        end_s = end_s or self.rest.api.edge_open_s(want.series, want.newest_s, is_newest=True) or 0
        num_behind = (end_s - begin_s) // want.series.bar_s
        span = want.back_from(end_s, num_behind + NUM_REASKED)
        rest = self._from_rest(span) if num_behind > 0 else []
        return self._merged(want, known, *([piece, *rest] if is_near else [*rest, piece]))

    def _past(self, want: Want, num_bars: int) -> History:
        """Fetch so many final candles from the archive; where it lacks the series, up to now from the API."""
        try:
            found = self.archive.candles(want.series, num_bars, want.final_s)
            is_final = True
        except NotArchivedError:
            num_bars += (want.newest_s - want.final_s) // want.series.bar_s
            found = self.rest.candles(want.series, num_bars, want.newest_s)
            is_final = False
        return from_candles(found, is_final=is_final, is_whole=len(found) < num_bars)

    def _from_rest(self, span: Span) -> list[History]:
        """Fetch a span in pages; at most one piece."""
        tables = self.rest.api.downloader.map(self.rest.api.klines, span.pages())
        rows = pd.concat(reversed(tables), ignore_index=True)
        return [from_api(span.series, span.first_s, rows)] if len(rows) else []

    def _merged(self, want: Want, known: Merged | None, *pieces: History, **told: bool) -> Merged:
        return self.store.merge(want.series, known, pieces, want.now_s, **told)

    def _accepted(self, want: Want, known: Merged | None) -> Merged | None:
        """Take what the API says now of the newest candles that only the API has told."""
        span = want.revisable(known.history) if known else None
        pieces = self._from_rest(span) if span else []
        return self._merged(want, known, *pieces, accepts=True) if pieces else known

    def _compared(self, want: Want, before: Merged | None, found: Merged) -> Updated:
        """Compare what only the API said with the archive, once their month is over; count what is new."""
        span = want.unconfirmed(found.history)
        note = ""
        if span:
            archived = _tried(self.archive.candles, span.series, span.num_bars, span.last_s)
            if isinstance(archived, DataError):
                note = f"not compared with the archive: {archived}"
            else:
                found = self._merged(want, found, from_candles(archived, is_final=True, is_whole=False))
        num_candles, num_revisions = (len(before.history), len(before.revisions)) if before else (0, 0)
        num_added = len(found.history) - num_candles
        num_revised = len(found.revisions) - num_revisions
        return Updated(want.series, found, num_added, num_revised, note)


def _tried(work: Callable[..., Found], *given: Any) -> Found | DataError:
    """Return what one series' work finds, or why it, or work before it, does not: the others go on."""
    try:
        return next((each for each in given if isinstance(each, DataError)), None) or work(*given)
    except DataError as error:
        return error


def _served(want: Want, merged: Merged) -> Candles:
    """Check what is served as any source's candles, and count what was told in two versions."""
    series = want.series
    frame = merged.history.frame(want.num_bars, want.last_s)
    if frame.empty:
        raise none_until(want.last_s, merged.history.open_time_s[0], f"{series} from {LiveSource.name}")
    found = check_candles(frame, series, source=LiveSource.name, now_s=want.now_s)
    num_revised = int(np.isin(found.open_time_s, merged.revisions["open_time_s"]).sum())
    num_newer = (want.newest_s - want.last_s) // series.bar_s
    return found.noting(num_newer=num_newer, num_revised=num_revised)
