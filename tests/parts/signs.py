"""Signs of life, which commands say on standard error, a line each; and everything that an error shows."""

from __future__ import annotations

import traceback

SIGNS = ("Opening ", "Reading ", "Forecasting", "Looking for ", "Asking for ")


def without_signs(errors: str) -> str:
    """Return what else was said on standard error."""
    return "".join(line for line in errors.splitlines(keepends=True) if not line.startswith(SIGNS))


def everything_said(error: BaseException) -> str:
    """Return all that a traceback, a log or a debugger's one-liner would show, chained errors included."""
    said = ["".join(traceback.format_exception(error))]
    seen: list[BaseException | None] = [error]
    while seen:
        one = seen.pop()
        if one is not None:
            said += [str(one), repr(one), repr(one.args), repr(vars(one))]
            seen += [one.__cause__, one.__context__]
    return "\n".join(said)
