"""The one place where any error of one series is caught, so that the others go on (G10)."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import TypeVar

from v8.artifacts.run_folder import ERROR_FILE
from v8.runs.events import Outcome
from v8.errors import DataError, V8Error
from v8.market.series import Series
from v8.redaction import shown

_MOST_TOLD = 300
"""Characters of an error that nobody foresaw; its traceback is kept whole."""

Made = TypeVar("Made")


def isolated(series: Series, work: Callable[[], Made]) -> tuple[Made | None, Outcome]:
    """Do the work of one series; an error becomes its outcome, traceback included.

    Args:
        series: Which series.
        work: What to do.

    Returns:
        What the work returned, None after an error; and how it ended.
    """
    started = time.perf_counter()
    try:
        made = work()
    except Exception as error:  # noqa: BLE001 - this series must not stop the others
        return None, Outcome(
            series,
            reason=_reason(series, error),
            is_data_error=isinstance(error, DataError),
            trace=traceback.format_exc(),
            seconds=time.perf_counter() - started,
        )
    return made, Outcome(series, seconds=time.perf_counter() - started)


def _reason(series: Series, error: Exception) -> str:
    if isinstance(error, V8Error):
        return str(error)
    told = shown(error, _MOST_TOLD) or "no message"
    return f"{series}: unexpected {type(error).__name__}: {told}. {ERROR_FILE} in its folder tells where."
