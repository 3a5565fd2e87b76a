"""Signs of life: what commands say on standard error before and while they work, a line each."""

from __future__ import annotations

SIGNS = ("Opening ", "Reading ", "Forecasting", "Looking for ", "Asking for ")


def without_signs(errors: str) -> str:
    """Return what else was said on standard error."""
    return "".join(line for line in errors.splitlines(keepends=True) if not line.startswith(SIGNS))
