"""Training and back-tests for an assistant: one at a time, in a process of its own, in the background.

The process ends with the server. What was trained until then is kept: the same call continues it.
"""

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from v8.annexes.live.app.answers import RequestError, public_error_json, without_paths
from v8.api.arguments import checked_argument
from v8.api.results import BacktestRequest, backtest_for_python, train_for_python
from v8.api.runs import leaderboard
from v8.base.child import run_in_child
from v8.base.errors import PARTS, V8Error
from v8.base.hardware import process_variables
from v8.base.registry import advice
from v8.profile.profile import profile_names
from v8.runs.options import BacktestOptions, NumFolds, RunOptions

MOST_SERIES: Final = 40
MOST_LINES: Final = 10  # of the progress that `status` shows
MOST_ROWS: Final = 200  # of the errors of a finished one
_COLUMNS: Final = (
    *("fold", "series", "task", "relative_mae", "p_value", "best_baseline", "relative_mae_to_best"),
    "verdict",
)


@dataclass
class Work:
    """A run or a back-test that an assistant has begun."""

    kind: str  # "train" or "backtest"
    profile: str
    series: tuple[str, ...]
    folder: str = ""  # its name, without the path
    begun_s: float = field(default_factory=time.monotonic)
    seconds: float | None = None  # how long it took; None while it goes on
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    errors: list[dict[str, Any]] = field(default_factory=list)  # of the models, when it is finished
    failure: str | None = None  # why it failed, in a sentence

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        state = "running" if self.seconds is None else "failed" if self.failure else "finished"
        seconds = time.monotonic() - self.begun_s if self.seconds is None else self.seconds
        content: dict[str, Any] = {
            "what": self.kind,
            "profile": self.profile,
            "series": list(self.series),
            "state": state,
            "seconds": round(seconds, 1),
            "progress": list(self.lines),
        }
        if self.failure:
            content["error"] = self.failure
        if state == "finished":
            content |= {"folder": self.folder, "errors": self.errors}
        return content


class Background:
    """Trains and back-tests, one after another.

    Args:
        source: Name of the source of candles.
        data_dir: Folder of candle files, for a source that reads one.
        folder: Where `runs` and `backtests` are.
    """

    def __init__(self, source: str, data_dir: Path | None, folder: Path) -> None:
        self._source = source
        self._data_dir = data_dir
        self._folder = folder
        self._lock = threading.Lock()
        self._works: list[Work] = []

    def train(self, series: Sequence[str], profile: str, *, is_smoke: bool) -> dict[str, Any]:
        """Begin to train models, and return at once."""
        work = _checked(Work("train", profile, tuple(series)))
        with _errors_public():
            options = RunOptions(
                profile=profile,
                series=work.series,
                source=self._source,
                data_dir=self._data_dir,
                runs=self._folder / "runs",
                smoke=is_smoke,
            )

        def carry_out() -> Path:
            trained = run_in_child(train_for_python, options, where="train", on_message=self._noting(work))
            return Path(trained.path)

        return self._begin(work, carry_out)

    def backtest(self, series: Sequence[str], profile: str, folds: int) -> dict[str, Any]:
        """Begin a back-test, and return at once."""
        work = _checked(Work("backtest", profile, tuple(series)))
        folder = self._folder / "backtests" / profile
        with _errors_public():
            options = BacktestOptions(
                profile=profile,
                series=work.series,
                source=self._source,
                data_dir=self._data_dir,
                folds=checked_argument("backtest", "folds", folds, NumFolds),
                out=folder,
            )

        def carry_out() -> Path:
            with tempfile.TemporaryDirectory(prefix="v8-") as place:
                request = BacktestRequest(options, Path(place) / "forecasts.parquet")
                run_in_child(
                    backtest_for_python,
                    request,
                    where="backtest",
                    environment=process_variables("auto"),
                    on_message=self._noting(work),
                )
            return folder

        return self._begin(work, carry_out)

    def status(self) -> dict[str, Any]:
        """Return all that was begun since the server runs, the newest first."""
        with self._lock:
            return {"work": [work.to_json() for work in reversed(self._works)]}

    def _begin(self, work: Work, carry_out: Callable[[], Path]) -> dict[str, Any]:
        with self._lock:
            if self._works and self._works[-1].seconds is None:
                rule = "one training or back-test goes on at a time"
                fix = "Ask `status` until it is finished"
                raise RequestError(where=work.kind, rule=rule, got="one that goes on", fix=fix)
            self._works.append(work)
        threading.Thread(target=self._finish, args=(work, carry_out), daemon=True).start()
        return work.to_json()

    def _finish(self, work: Work, carry_out: Callable[[], Path]) -> None:
        failure = None
        rows: list[dict[str, Any]] = []
        try:
            with _errors_public():
                path = carry_out()
            work.folder = path.name
            rows = _rows(path)
        except Exception as error:  # noqa: BLE001 - reported by `status`, whatever it is
            parts = public_error_json(error, work.kind)["error"]
            failure = "{where}: {rule}; got {got}. {fix}.".format(**parts)
        with self._lock:
            work.errors = rows
            work.failure = failure
            work.seconds = time.monotonic() - work.begun_s

    def _noting(self, work: Work) -> Callable[[str], None]:
        def note(message: str) -> None:
            with self._lock:
                work.lines.append(without_paths(message))

        return note


@contextmanager
def _errors_public() -> Iterator[None]:
    """Turn errors of options and of candles into those that anybody may read: no path of this machine."""
    try:
        yield
    except V8Error as error:
        where, rule, got, fix = (without_paths(str(getattr(error, part))) for part in PARTS)
        raise RequestError(where=where, rule=rule, got=got, fix=fix) from error


def _checked(work: Work) -> Work:
    """Refuse what an assistant may not name: files of this machine, and more series than a universe has."""
    names = profile_names()
    if work.profile not in names:
        fix = advice(work.profile, names, "Choose one of these")
        rule = f"is one of {', '.join(names)}"
        raise RequestError(where="profile", rule=rule, got="another one", fix=fix)
    if not 1 <= len(work.series) <= MOST_SERIES:
        rule = f"names 1 to {MOST_SERIES} series, such as BTCUSDT-1h"
        got = f"{len(work.series)}"
        raise RequestError(where="series", rule=rule, got=got, fix="Name those that matter")
    return work


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the errors of the models of a folder, as JSON values."""
    table = leaderboard(path)
    columns = [name for name in _COLUMNS if name in table.columns]
    rows = table[columns].head(MOST_ROWS).astype(object)
    return [
        {str(name): value for name, value in row.items()}
        for row in rows.where(rows.notna(), None).to_dict("records")
    ]
