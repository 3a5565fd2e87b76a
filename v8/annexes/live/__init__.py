"""The present: forecasts into a ledger, their page and API, renewal of models.

Here is what commands need before anything heavy is imported: the ledger that is used if no other one is
named, and the limits that a reader sets for a forecast, in browsers and in messages. A limit is passed when
its value rises above it, and again only after it was below.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from v8.base.errors import ProfileError
from v8.base.wording import say
from v8.data.market.series import Series

if TYPE_CHECKING:
    from v8.model.baselines.paths import PriceRange

DEFAULT_LEDGER: Final = Path("runs/ledger.sqlite")
"""The ledger that is used if no other one is named."""


def ledger_words(file: Path) -> tuple[str, ...]:
    """Return the words of a command line that name a ledger; none for the default."""
    return () if file == DEFAULT_LEDGER else ("--ledger", str(file))


VOLATILITY_AHEAD: Final = "volatility"
RANGE_AHEAD: Final = "range"
KINDS: Final = (VOLATILITY_AHEAD, RANGE_AHEAD)
_LIMIT: Final = re.compile(
    rf"(?:(?P<series>[^:\s]+):)?(?P<kind>{'|'.join(KINDS)})>(?P<percent>\d+(?:\.\d+)?)"
)


def title_of(kind: str) -> str:
    """Return the title of what a limit compares, in the language of the page or message."""
    return say("volatility ahead") if kind == VOLATILITY_AHEAD else say("width of the range ahead")


def sentence_of(kind: str, series: str, value: str, limit: str) -> str:
    """Say that a limit is passed; value and limit are in per cent of the price."""
    if kind == VOLATILITY_AHEAD:
        return say(
            "{series}: volatility ahead {value} %, above your limit of {limit} %",
            series=series,
            value=value,
            limit=limit,
        )
    return say(
        "{series}: range ahead {value} % of the price, above your limit of {limit} %",
        series=series,
        value=value,
        limit=limit,
    )


def values_of(
    close: float, volatility: float | None, price_range: "PriceRange | None"
) -> dict[str, float | None]:
    """Return what limits are compared with, as shares of the price; None for what is not forecast.

    Args:
        close: The newest close, in quote currency.
        volatility: Forecast for the last bar ahead, a share.
        price_range: Where the price stays over all bars ahead.
    """
    width = None if price_range is None else (price_range.high - price_range.low) / close
    return {VOLATILITY_AHEAD: volatility, RANGE_AHEAD: width}


@dataclass(frozen=True)
class Limit:
    """A limit for one series, or for every one."""

    kind: str  # one of `KINDS`
    percent: float  # of the price
    series: str | None = None  # None for every series

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `volatility>2` or `BTCUSDT-15m:range>3`.

        >>> Limit.parse("BTCUSDT-15m:range>3.5")
        Limit(kind='range', percent=3.5, series='BTCUSDT-15m')
        """
        parts = _LIMIT.fullmatch(text.replace(" ", ""))
        if not parts:
            raise ProfileError(
                where="param:alert",
                rule=f"is {' or '.join(KINDS)}, above a number of per cent, for all series or for one",
                got=repr(text),
                fix="Write for example 'volatility>2' or 'BTCUSDT-15m:range>3'",
            )
        series = parts["series"] and str(Series.parse(parts["series"]))
        return cls(parts["kind"], float(parts["percent"]), series)

    def __str__(self) -> str:
        series = f"{self.series}:" if self.series else ""
        return f"{series}{self.kind}>{self.percent:g}"

    def is_passed(self, series: str, share: float | None) -> bool | None:
        """Return whether a share of the price is above it; None where the limit does not apply."""
        if share is None or self.series not in (None, series):
            return None
        return 100 * share > self.percent
