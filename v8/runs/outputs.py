"""What a run shows of its finished series: leaderboard, report and timing, rewritten after each (G13).

A large run writes them as often as takes a twentieth of its time, and at its end (`v8.storage`).

Of each series the model that serves is shown. None of it is needed to go on: a file that cannot be written,
and a series whose files are damaged, are told and left out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from v8.artifacts.metadata import HISTORY_FILE, METADATA_FILE, Metadata, read_metadata, redo_offered
from v8.artifacts.nested_runs import served_folder
from v8.artifacts.run_folder import RunRecord, read_run
from v8.artifacts.series_artifact import FORECASTS_FILE, ForecastSample, read_sample
from v8.errors import ArtifactError, StorageError, V8Error
from v8.evaluation import leaderboard
from v8.evaluation.leaderboard import History, LeaderboardRow, SeriesResult
from v8.invocation import command
from v8.language import language
from v8.reports import page
from v8.reports.markup import DEMO_WARNING, Html
from v8.storage import Pace, write_json, write_text

REPORT_FILE = "report.html"
TIMING_FILE = "timing.json"
PICTURES_FOLDER = "report"

TIMING_FORMAT = 1  # version of the keys of `timing.json`


def read_finished(folder: Path) -> tuple[Metadata, History, ForecastSample | None]:
    """Read and check what is shown of the series that a folder is named after.

    Raises:
        ArtifactError: If one of its files is damaged; the error says how to make the series again.
    """
    with redo_offered(folder):
        metadata = read_metadata(folder, series=folder.name)
        _ = metadata.is_evaluated and metadata.result
        history = leaderboard.read_history(folder / HISTORY_FILE)
        epochs_run = metadata.training.epochs_run
        if len(history) != epochs_run:
            rule = f"must have a row for each of {epochs_run} epochs"
            got = str(len(history))
            raise ArtifactError(where=str(folder / HISTORY_FILE), rule=rule, got=got, fix="Restore it")
        return metadata, history, read_sample(folder / FORECASTS_FILE)


class RunOutputs:
    """The outputs of a run, written again whenever a series has ended.

    A finished series is read and drawn once for each model that serves it; forty of them anew after each cost
    a tenth of a short run.

    Args:
        run: A run folder; nobody else finishes series in it meanwhile.
        tell: Told which series is damaged and which files cannot be written, and why.
        is_anew: Whether files of the page that are up to date are drawn anew, too.
    """

    def __init__(self, run: Path, tell: Callable[[V8Error], object], *, is_anew: bool = False) -> None:
        self._run = run
        self._tell = tell
        self._is_anew = is_anew
        self._shown: dict[str, tuple[SeriesResult, Html] | None] = {}
        """By name, the result of a finished series and its part of the page; None of one that is damaged."""
        self._versions: dict[str, tuple[Path, int]] = {}
        """By name, the folder that was shown, and when its metadata was written, ns since the epoch."""
        self._pace = Pace()
        self.is_due = self._pace.is_due
        """Tells whether it is time to write all outputs of so many series."""

    def write(self) -> list[LeaderboardRow]:
        """Write `leaderboard.csv`, `report.html` and `timing.json` from what is on disk.

        Returns the leaderboard, best first; empty while nothing is finished. Raises `ArtifactError` if the
        run's own record is damaged.
        """
        with self._pace.timed(), language():
            record = read_run(self._run)
            evaluated = record.done if record.is_evaluated else []
            finished = [one for one in (self._read(name, record) for name in evaluated) if one]
            results = [result for result, _ in finished]
            rows = leaderboard.rank_results(results)
            sections = {result.series: part for result, part in finished}
            writers: dict[str, Callable[[Path], None]] = {
                leaderboard.LEADERBOARD_FILE: lambda file: leaderboard.write_leaderboard_csv(file, rows),
                REPORT_FILE: lambda file: write_text(file, page.run_page(record, results, sections)),
                TIMING_FILE: lambda file: write_json(file, _timing(record, results)),
            }
            if not record.is_evaluated:
                del writers[leaderboard.LEADERBOARD_FILE]
            self._write(writers)
            return rows

    def _read(self, name: str, record: RunRecord) -> tuple[SeriesResult, Html] | None:
        served = served_folder(self._run, name)
        file = served / METADATA_FILE
        version = (served, file.stat().st_mtime_ns if file.exists() else 0)
        if self._versions.get(name) != version:
            self._versions[name] = version
            self._shown[name] = None
            try:
                metadata, *others = read_finished(served)
            except ArtifactError as error:
                self._tell(error)
            else:
                self._shown[name] = self._drawn(name, (metadata.result, *others), served, record)
        return self._shown[name]

    def _drawn(self, name: str, parts: Any, served: Path, record: RunRecord) -> tuple[SeriesResult, Html]:
        """Return a result and what the page holds of it; in a large run the rest goes into its file."""
        result: SeriesResult = parts[0]
        if not page.is_in_files(record):
            return result, page.series_section(*parts)

        def write(_: Path) -> None:
            draw = partial(page.series_body, *parts)
            page.write_section(self._run, name, served, draw, is_forced=self._is_anew)

        self._write({page.section_file(name): write})
        return result, page.series_line(result)

    def _write(self, writers: Mapping[str, Callable[[Path], None]]) -> None:
        got: dict[str, str] = {}
        for name, write in writers.items():
            try:
                write(self._run / name)
            except StorageError as error:
                got[name] = error.got
        if got:
            rule = f"{', '.join(got)} could not be written, and no series needs them"
            fix = f"Make room, then draw them again with `{command('report', str(self._run))}`"
            self._tell(StorageError(where=str(self._run), rule=rule, got=next(iter(got.values())), fix=fix))


def _timing(record: RunRecord, results: Iterable[SeriesResult]) -> dict[str, Any]:
    per_series = {result.series: dict(result.seconds) for result in results}
    return {
        "format": TIMING_FORMAT,
        "command": record.command,
        "machine": record.machine,
        "num_series": len(per_series),
        "total_seconds": pd.DataFrame([*per_series.values()]).sum().to_dict(),
        "series": per_series,
    }


def draw_pictures(run: Path, rows: Sequence[LeaderboardRow]) -> list[Path]:
    """Write the PNG files of a run and its leaderboard into its folder `report`, and return them.

    Raises:
        ArtifactError: If the run's own record is damaged.
        StorageError: If a picture cannot be written.
    """
    from v8.reports.pictures import write_pictures  # noqa: PLC0415 - matplotlib is slow to import

    record = read_run(run)
    samples = (read_sample(served_folder(run, row.series) / FORECASTS_FILE) for row in rows)
    title = record.profile_name if record.is_publishable else f"{DEMO_WARNING}\n{record.profile_name}"
    return write_pictures(run / PICTURES_FOLDER, title, rows, next(filter(None, samples), None))
