"""The ledger: every forecast issued about the future, scored when the actual values come."""

from pathlib import Path
from typing import Final

DEFAULT_LEDGER: Final = Path("runs/ledger.sqlite")
"""Where a ledger is unless somebody says otherwise."""
