"""The FeatureSet: columns that were checked once, with what follows from their formulas.

To compute a table, one has to know of each column how long its warm-up is, how far back a row reaches and
what it is computed from. All that follows from the names alone, so a forecaster resolves its columns when it
is loaded, and each forecast only computes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from v8.base.storage import digest_json
from v8.profile.indicators import Ancestry, ancestry, check_columns, covariate_inputs, reading_volume


@dataclass(frozen=True)
class FeatureSet:
    """Checked feature columns, in the requested order."""

    ancestry: Mapping[str, Ancestry]  # of each column, by its name
    warmup_bars: int  # first rows of a segment in which a column has no value yet, in bars
    reading_volume: tuple[str, ...]  # the columns that are computed from the volume
    covariate_inputs: tuple[str, ...]  # covariates from which columns are computed, each once
    digest: str  # identifies the columns and their definitions; 64 hex digits

    @classmethod
    def of(cls, columns: Sequence[str]) -> Self:
        """Check columns, and resolve what they are computed from.

        Raises:
            DataError: If a column is unknown, repeated, or of a plug-in and faulty; or if there is none.
        """
        by_name = {name: ancestry(name) for name in check_columns(columns)}
        return cls(
            ancestry=by_name,
            warmup_bars=max(column.warmup_bars for column in by_name.values()),
            reading_volume=tuple(reading_volume(by_name)),
            covariate_inputs=covariate_inputs(by_name),
            digest=digest_json([[name, column.digest] for name, column in by_name.items()]),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, each once."""
        return tuple(self.ancestry)
