"""What a run shows of its finished series: leaderboard, report and timing.

`ReportWriter` follows a run. It writes them after a series has ended, every few seconds at most, in a large
run less often, so that writing takes at most a twentieth of the time (`v8.base.storage`), and at its end.

Of each series the model in use is shown (`v8.runs.serving`). None of it is needed to go on: a file that
cannot be written, and a series whose files are damaged, are reported and left out.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd

from v8.base.errors import ArtifactError, StorageError, V8Error
from v8.base.process import command
from v8.base.storage import Pace, write_json, write_text
from v8.base.wording import LANGUAGES, chosen, language
from v8.forecaster.metadata import METADATA_FILE
from v8.forecaster.series_artifact import (
    FORECASTS_FILE,
    ForecastSample,
    read_sample,
    store_verdicts,
)
from v8.forecaster.standalone import FEATURES_FILE, features_file
from v8.model.evaluation import leaderboard
from v8.model.evaluation.bootstrap import ErrorInterval
from v8.model.evaluation.leaderboard import LeaderboardRow, SeriesResult, Verdicts, verdicts_of
from v8.publish.report import page, series_section
from v8.publish.report.markup import DEMO_WARNING, Html
from v8.publish.report.verdict import headline_intervals
from v8.runs.events import (
    Event,
    GettingReady,
    Note,
    PageWritten,
    RunContext,
    RunObserver,
    RunSummary,
    SeriesOutcome,
)
from v8.runs.run_folder import RunRecord, read_run
from v8.runs.serving import FinishedSeries, read_finished, read_test_losses, served_folder

REPORT_FILE = "report.html"
TIMING_FILE = "timing.json"
PICTURES_FOLDER = "report"

LEAST_S: Final = 5.0
"""Seconds between two writings: after each of forty series they took a twelfth of a run's processor time."""

TIMING_FORMAT = 2  # version of the keys of `timing.json`


@dataclass(frozen=True)
class RunResults:
    """What came of a run, as its outputs have it."""

    rows: Sequence[LeaderboardRow] = ()  # the leaderboard, best first; empty while nothing is finished
    intervals: Mapping[str, ErrorInterval] = field(default_factory=dict)
    """By task, how sure the headline is, see `headline_intervals`; empty before the end."""
    is_evaluated: bool = True  # whether the models of the run are evaluated at all


class ReportWriter(RunObserver):
    """Writes the outputs of a run when one of its series has ended, if they are due, and when all have.

    Args:
        only_at_end: Write them only when all series have ended, and do not announce the page: in folds of a
            back-test, which has a page of its own.
    """

    def __init__(self, *, only_at_end: bool = False) -> None:
        self.results = RunResults()
        """Those of the run that finished last."""
        self._only_at_end = only_at_end
        self._context: RunContext | None = None
        self._outputs: RunOutputs | None = None
        self._is_training = False

    def on_begin(self, context: RunContext) -> None:
        """Prepare to write into the folder of a run."""

        def report_error(error: V8Error) -> None:
            context.notify(Note(str(error)))

        self.results = RunResults()
        self._context = context
        self._outputs = RunOutputs(context.plan.path, report_error)
        self._is_training = False

    def on_event(self, event: Event) -> None:
        """Write the outputs when a series has ended, if it is time; nothing before training begins."""
        if isinstance(event, GettingReady):
            self._is_training = True
        if self._only_at_end or not self._is_training or not isinstance(event, SeriesOutcome):
            return
        if self._context and self._outputs and self._outputs.is_due(len(self._context.plan.series)):
            self._context.save_record()  # the outputs are made from it
            self._outputs.write(is_last=False)
            self._announce_page(self._context)

    def on_finished(self, summary: RunSummary) -> None:
        """Write the outputs, and keep what they show in `results`."""
        if self._context and self._outputs:
            self.results = self._outputs.write()
            if not self._only_at_end:
                self._announce_page(self._context)

    def on_end(self) -> None:
        """Forget the run."""
        self._context = None
        self._outputs = None

    def _announce_page(self, context: RunContext) -> None:
        """Say where the page is once it exists; observers get the same note once."""
        file = context.plan.path.absolute() / REPORT_FILE
        if file.is_file():
            context.notify(PageWritten(f"Report, drawn again as series end: {file.as_uri()}", file))


@dataclass(frozen=True)
class _DrawnSeries:
    """A finished series as the outputs show it."""

    folder: Path  # of the model in use
    written_ns: int  # when its metadata was written, since the epoch; 0 where there is none
    result: SeriesResult | None  # None where its files are damaged
    body: Html | None  # its part of the page; None where that is in a file of its own


class RunOutputs:
    """The outputs of a run.

    A finished series is read and drawn once for each model that serves it; reading forty of them again after
    each series took a tenth of a short run.

    Args:
        run: A run folder; nobody else finishes series in it meanwhile.
        report_error: Gets which series is damaged and which files cannot be written, and why.
        redraws_all: Whether files of the page that are up to date are drawn again, too.
    """

    def __init__(
        self, run: Path, report_error: Callable[[V8Error], object], *, redraws_all: bool = False
    ) -> None:
        self._run = run
        self._report_error = report_error
        self._redraws_all = redraws_all
        self._drawn: dict[str, _DrawnSeries] = {}
        self._features_code = ""  # the text of `features.py`; empty until a series is drawn
        self._pace = Pace(least_s=LEAST_S)

    def is_due(self, num_series: int) -> bool:
        """Say whether it is time to write the outputs of so many series, or of as many as were drawn."""
        return self._pace.is_due(max(num_series, len(self._drawn)))

    def write(self, *, is_last: bool = True) -> RunResults:
        """Write `leaderboard.csv`, `report.html`, `timing.json` and `features.py` from what is on disk.

        With `is_last` the verdicts are stored with each series, too, and the page can be read in its other
        languages.

        Returns what they show. Raises `ArtifactError` if the run's own record is damaged.
        """
        with self._pace.timed(), language():
            record = read_run(self._run)
            results: list[SeriesResult] = []
            bodies: dict[str, Html | None] = {}
            for name in record.done if record.is_evaluated else []:
                drawn = self._draw_series(name, record)
                if drawn.result is not None:
                    results.append(drawn.result)
                    bodies[drawn.result.series] = drawn.body
            if record.is_evaluated and record.done and not results:
                return RunResults([], {}, record.is_evaluated)  # what is there is better than nothing
            verdicts = verdicts_of({result.series: result.evaluation for result in results})
            rows = leaderboard.rank_results(results, verdicts)
            if is_last:
                self._store(verdicts)
            intervals: dict[str, ErrorInterval] = {}
            if is_last:
                intervals = headline_intervals(rows, read_test_losses(self._run, bodies))
            run_page = page.RunPage(record, rows, bodies, self._first_sample(record, rows), intervals)
            files = _language_files(record)
            writers: dict[str, Callable[[Path], None]] = {}
            if record.is_evaluated:
                writers[leaderboard.LEADERBOARD_FILE] = lambda file: leaderboard.write_leaderboard_csv(
                    file, rows
                )
            for name, relative in files.items():
                if is_last:
                    writers[relative] = partial(self._write_in_language, name, record, rows, intervals)
                else:  # until the end the page is in one language: an older file would not fit to it
                    with suppress(OSError):
                        (self._run / relative).unlink(missing_ok=True)
            writers[REPORT_FILE] = lambda file: write_text(file, run_page.whole(files))
            writers[TIMING_FILE] = lambda file: write_json(file, _timing(record, results))
            if self._features_code:
                writers[FEATURES_FILE] = lambda file: write_text(file, self._features_code)
            self._write_files(writers)
            return RunResults(rows, intervals, record.is_evaluated)

    def _first_sample(self, record: RunRecord, rows: Iterable[LeaderboardRow]) -> ForecastSample | None:
        """Return the stored forecasts of the first series of a run that has some."""
        series_of_rows = {row.series for row in rows}
        with suppress(ArtifactError):  # its series was drawn before the file was damaged
            return first_sample(self._drawn[name].folder for name in record.series if name in series_of_rows)
        return None

    def _write_in_language(
        self,
        name: str,
        record: RunRecord,
        rows: Sequence[LeaderboardRow],
        intervals: Mapping[str, ErrorInterval],
        file: Path,
    ) -> None:
        """Write the content of the page in another language, which the page loads if a browser prefers it."""
        languages = [chosen(), name]
        with language(name):
            bodies: dict[str, Html | None] = {}
            for row in rows:
                finished = read_finished(self._drawn[row.series].folder)
                bodies[row.series] = series_section.series_body(
                    finished.metadata.result, finished.history, finished.sample
                )
            translated = page.RunPage(record, rows, bodies, self._first_sample(record, rows), intervals)
            write_text(file, translated.in_language(languages))

    def _draw_series(self, name: str, record: RunRecord) -> _DrawnSeries:
        """Read and draw a finished series, unless it was and has not changed since."""
        folder = served_folder(self._run, name)
        file = folder / METADATA_FILE
        written_ns = file.stat().st_mtime_ns if file.exists() else 0
        drawn = self._drawn.get(name)
        if drawn is not None and (drawn.folder, drawn.written_ns) == (folder, written_ns):
            return drawn
        try:
            finished = read_finished(folder)
        except ArtifactError as error:
            self._drawn[name] = _DrawnSeries(folder, written_ns, None, None)
            self._report_error(error)
        else:
            body = self._draw_body(name, finished, folder, record)
            self._features_code = self._features_code or features_file(finished.metadata)
            self._drawn[name] = _DrawnSeries(folder, written_ns, finished.metadata.result, body)
        return self._drawn[name]

    def _store(self, verdicts: Mapping[str, Verdicts]) -> None:
        """Store the verdicts on each series with it; what is drawn of it stays up to date."""
        for name, by_task in verdicts.items():
            drawn = self._drawn[name]
            try:
                is_new = store_verdicts(drawn.folder, by_task)
            except ArtifactError as error:
                self._report_error(error)
                continue
            except StorageError:  # a disk that is read-only: whoever reads the series computes them again
                continue
            if is_new:
                written_ns = (drawn.folder / METADATA_FILE).stat().st_mtime_ns
                self._drawn[name] = replace(drawn, written_ns=written_ns)

    def _draw_body(self, name: str, finished: FinishedSeries, folder: Path, record: RunRecord) -> Html | None:
        """Return the body of a series' section; in a large run it goes into a file of its own."""
        result = finished.metadata.result
        if not page.is_in_files(record):
            return series_section.series_body(result, finished.history, finished.sample)
        draw = partial(series_section.series_body, result, finished.history, finished.sample)

        def write_section(file: Path) -> None:
            series_section.write_section(self._run, name, folder, draw, is_forced=self._redraws_all)

        self._write_files({series_section.section_file(name): write_section})
        return None

    def _write_files(self, writers: Mapping[str, Callable[[Path], None]]) -> None:
        """Write files of the run by their names; one error names all that cannot be written."""
        unwritten: list[str] = []
        got = ""
        for name, write in writers.items():
            try:
                write(self._run / name)
            except StorageError as error:
                unwritten.append(name)
                got = got or error.got  # the first is enough
        if unwritten:
            rule = f"{', '.join(unwritten)} could not be written, and no series needs them"
            again = command("report", str(self._run))
            fix = f"Free some space, or allow writing there, then draw them again with `{again}`"
            self._report_error(StorageError(where=str(self._run), rule=rule, got=got, fix=fix))


def _language_files(record: RunRecord) -> dict[str, str]:
    """Return the files of the page's content in other languages than the current one, by language.

    None where a language was asked for, and in a run whose sections are in files of their own, which would
    double their number.
    """
    if os.environ.get("V8_LANG") or page.is_in_files(record) or not record.is_evaluated:
        return {}
    return {name: f"{PICTURES_FOLDER}/{name}.js" for name in LANGUAGES if name != chosen()}


def _timing(record: RunRecord, results: Iterable[SeriesResult]) -> dict[str, Any]:
    per_series = {result.series: dict(result.seconds) for result in results}
    return {
        "format": TIMING_FORMAT,
        "command": record.command,
        "machine": record.machine,
        "num_series": len(per_series),
        "total_seconds": pd.DataFrame(list(per_series.values())).sum().to_dict(),
        "series": per_series,
    }


def draw_pictures(run: Path, rows: Sequence[LeaderboardRow]) -> list[Path]:
    """Write the PNG files of a run and its leaderboard into its folder `report`, and return them.

    Raises:
        ArtifactError: If the run's own record is damaged.
        StorageError: If a picture cannot be written.
    """
    from v8.publish.report.pictures import write_pictures  # noqa: PLC0415 - matplotlib is slow to import

    record = read_run(run)
    title = record.profile_name if record.is_publishable else f"{DEMO_WARNING}\n{record.profile_name}"
    sample = first_sample(served_folder(run, row.series) for row in rows)
    return write_pictures(run / PICTURES_FOLDER, title, rows, sample)


def first_sample(folders: Iterable[Path]) -> ForecastSample | None:
    """Return the stored forecasts of the first of some folders of models that has any."""
    for folder in folders:
        sample = read_sample(folder / FORECASTS_FILE)
        if sample is not None:
            return sample
    return None
