"""The ledger: every forecast issued about the future, scored when the actual values are known."""

from pathlib import Path
from typing import Final

DEFAULT_LEDGER: Final = Path("runs/ledger.sqlite")
"""The ledger that is used if no other one is named."""
