"""Observers: displays, trackers, the report, and whatever else follows a run.

A run calls its observer as Keras calls a callback. A subclass of `RunObserver` overrides what it needs:

    on_begin(context)       the plan is known, and nothing has been read
    on_event(event)         something happened (`v8.runs.events`)
    on_finished(summary)    every series has ended; this process still holds the run folder
    on_end()                the last call, also after an error or Ctrl-C

One observer may follow several runs one after another, as the folds of a back-test; between two of them it
may still get notes.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from v8.runs.events import Event, Note, RunSummary, SeriesOutcome

if TYPE_CHECKING:  # the command line needs trackers, and plans import pandas
    from v8.runs.plan import Plan


def _save_nothing() -> None:
    pass


@dataclass(frozen=True)
class RunContext:
    """What an observer may use of the run that begins."""

    plan: "Plan"  # as far as an earlier call brought it
    source_name: str  # name of the candle source
    notify: Callable[[Event], None]  # passes an event of the observer's own to all observers
    save_record: Callable[[], None] = _save_nothing  # writes `run.json` now


class RunObserver:
    """Follows runs; this one does nothing."""

    def on_begin(self, context: RunContext) -> None:
        """Prepare to follow a run. If this raises, `on_end` is not called."""

    def on_event(self, event: Event) -> None:
        """Take note of an event."""

    def on_finished(self, summary: RunSummary) -> None:
        """Do what is to be done while the folder of the finished run is still held."""

    def on_end(self) -> None:
        """Release what `on_begin` took."""


class EventCallback(RunObserver):
    """Calls a function with every event."""

    def __init__(self, callback: Callable[[Event], object]) -> None:
        self._callback = callback

    def on_event(self, event: Event) -> None:
        """Call the function."""
        self._callback(event)


class ObserverGroup(RunObserver):
    """Several observers, called in their order; they end in the reverse order."""

    def __init__(self, observers: Sequence[RunObserver]) -> None:
        self._observers = tuple(observers)
        self._endings = ExitStack()

    def on_begin(self, context: RunContext) -> None:
        """Begin each observer; where one raises, those before it end."""
        with ExitStack() as endings:
            for observer in self._observers:
                observer.on_begin(context)
                endings.callback(observer.on_end)
            self._endings = endings.pop_all()

    def on_event(self, event: Event) -> None:
        """Pass an event on to each observer."""
        for observer in self._observers:
            observer.on_event(event)

    def on_finished(self, summary: RunSummary) -> None:
        """Pass the end of all series on to each observer."""
        for observer in self._observers:
            observer.on_finished(summary)

    def on_end(self) -> None:
        """End each observer."""
        self._endings.close()


class NoteDeduplicator(RunObserver):
    """Passes everything on, but a note only once, however many series and processes have it to say."""

    def __init__(self, observer: RunObserver) -> None:
        self._observer = observer
        self._texts: set[str | None] = set()

    def on_event(self, event: Event) -> None:
        """Pass an event on, unless it is a note whose text has been passed on."""
        is_repeated = isinstance(event, Note) and event.text in self._texts
        if not is_repeated:
            self._observer.on_event(event)
        if isinstance(event, Note):
            self._texts.add(event.text)
        elif isinstance(event, SeriesOutcome):
            self._texts.add(event.reason)

    def on_finished(self, summary: RunSummary) -> None:
        """Pass it on."""
        self._observer.on_finished(summary)


@contextmanager
def observed(
    observer: RunObserver, plan: "Plan", source_name: str, save_record: Callable[[], None] = _save_nothing
) -> Iterator[RunObserver]:
    """Let an observer follow a run until the block ends; yield the one to call, which gets each note once."""
    deduplicator = NoteDeduplicator(observer)
    observer.on_begin(RunContext(plan, source_name, deduplicator.on_event, save_record))
    try:
        yield deduplicator
    finally:
        observer.on_end()


@contextmanager
def warnings_as_notes(observer: RunObserver) -> Iterator[None]:
    """Turn the warnings of modules that know no observer into notes until the block ends."""
    log = logging.getLogger("v8")
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: observer.on_event(Note(record.getMessage()))  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
