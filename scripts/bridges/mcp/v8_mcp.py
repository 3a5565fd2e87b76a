"""Forecasts for assistants: a server of the Model Context Protocol, over standard input and output.

    python -m pip install "mcp>=2"
    python scripts/bridges/mcp/v8_mcp.py runs/frontier
    python scripts/bridges/mcp/v8_mcp.py you/crypto-forecasters --source live --ledger runs/ledger.sqlite

An assistant starts it as a process and calls its tools: `models`, `forecast`, `evaluation`, `live_record`.
They read one place, a run folder or a repository on the Hub, and change nothing. What a tool returns is what
`predict --format json`, `metadata.json` and `track --format json` hold. An error is one sentence that says
how to mend it. The protocol: https://modelcontextprotocol.io.
"""

import argparse
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from v8.artifacts.metadata import Metadata, read_metadata
from v8.artifacts.shared_models import SharedModels
from v8.errors import V8Error
from v8.forecasts.issuing import issue_forecast
from v8.hub.opening import ModelPlace, open_place
from v8.ledger import DEFAULT_LEDGER
from v8.ledger.database import Ledger
from v8.ledger.record import live_record
from v8.machine.starting import quiet_start
from v8.market.series import iso
from v8.market.sources.source import CandleSource, open_source
from v8.version import VERSION

INSTRUCTIONS: Final = (
    "Forecasts of crypto candles by small neural networks. Prices are in quote currency, times in UTC, "
    "volatility is a share of the price. The close behaves like a random walk: mostly the range of prices "
    "can be forecast, not the direction. Say how the model compares with the naive forecast, and that "
    "nothing here is financial advice."
)

Answer = TypeVar("Answer")


class ModelAnswers:
    """Answers the questions about the models of one place, as JSON values.

    Args:
        place: Where the models are.
        source: Where the candles of a forecast come from.
        ledger: The database of issued forecasts; it need not exist.
        is_any_age: Whether candles of any age are forecast, as of a source that is not live.
    """

    def __init__(
        self, place: ModelPlace, source: CandleSource, ledger: Path, *, is_any_age: bool = False
    ) -> None:
        self._place = place
        self._source = source
        self._ledger = ledger
        self._is_any_age = is_any_age
        self._lock = threading.Lock()  # tools are called in threads; models and sources serve one at a time

    def models(self) -> dict[str, Any]:
        """List the series that have a model, with the errors of each."""
        with self._lock:
            self._place.prefetch(self._place.series)
            return {
                "place": self._place.name,
                "models": [_summary(self._metadata(name)) for name in self._place.series],
            }

    def forecast(self, series: str) -> dict[str, Any]:
        """Forecast the bars after the newest closed candle of a series."""
        with self._lock, quiet_start():
            forecaster = self._place.forecaster_of(series)
            issued = issue_forecast(forecaster, self._source, self._place.name, is_any_age=self._is_any_age)
            return {**issued.to_json(), "notes": [issued.range_line(), *issued.summary_lines()]}

    def evaluation(self, series: str) -> dict[str, Any]:
        """Return the errors of the model of a series on its test span, compared with forecasts without it."""
        with self._lock:
            self._place.prefetch([series])
            metadata = self._metadata(series)
        content = _summary(metadata)
        if metadata.is_evaluated:
            test = metadata.split.test
            content["test_span"] = {
                "first_open": test.first_open,
                "last_open": test.last_open,
                "num_windows": test.num_windows,
            }
            content["meaning"] = (
                "relative_mae is the mean absolute error in returns divided by that of the naive forecast, "
                "relative_mae_to_best by that of the best forecast without a network; below 1 is better"
            )
        if metadata.quantiles is not None:
            content["quantiles"] = metadata.quantiles.summary()
        return content

    def live_record(self, series: str | None = None) -> dict[str, Any]:
        """Return the errors of forecasts that were issued before the actual values were known."""
        if not self._ledger.exists():
            return {"place": self._place.name, "note": f"there is no ledger {self._ledger}"}
        folder = Path(self._place.name)
        place = folder if folder.is_dir() else self._place.name
        with self._lock, Ledger.open(self._ledger) as ledger:
            return live_record(ledger, place, None if series is None else [series]).to_json()

    def _metadata(self, series: str) -> Metadata:
        folder, _ = self._place.locate(series)
        return read_metadata(folder, series=series)


def _summary(metadata: Metadata) -> dict[str, Any]:
    """Return what identifies a model, and its errors per task."""
    return {
        "series": metadata.series,
        "profile": metadata.profile.name,
        "horizon_bars": metadata.horizon_bars,
        "bar_s": metadata.bar_s,
        "trained_until": iso(metadata.trained_until_s),
        "is_demo_market": metadata.is_demo_market,
        "errors": metadata.quality,
    }


def make_server(answers: ModelAnswers) -> MCPServer:
    """Return a server whose tools ask `answers`."""
    server = MCPServer("v8", instructions=INSTRUCTIONS, version=VERSION, log_level="WARNING")

    @server.tool()
    def models() -> dict[str, Any]:
        """List the series that have a model here, such as BTCUSDT-15m, with horizon and errors."""
        return _answered(answers.models)

    @server.tool()
    def forecast(series: str) -> dict[str, Any]:
        """Forecast the coming candles of a series in price units, and say what is known of the model.

        Args:
            series: A name from `models`, such as BTCUSDT-15m: symbol and timeframe.
        """
        return _answered(lambda: answers.forecast(series))

    @server.tool()
    def evaluation(series: str) -> dict[str, Any]:
        """Show how good the model of a series was on candles that it was not trained on.

        Args:
            series: A name from `models`.
        """
        return _answered(lambda: answers.evaluation(series))

    @server.tool(name="live_record")
    def record(series: str | None = None) -> dict[str, Any]:
        """Show how good the forecasts were that were issued before the actual values were known.

        Args:
            series: A name from `models`; all together when left out.
        """
        return _answered(lambda: answers.live_record(series))

    return server


def _answered(answer: Callable[[], Answer]) -> Answer:
    """Return an answer; an error of v8 becomes one of the tool, in its sentence."""
    try:
        return answer()
    except V8Error as error:
        raise ToolError(str(error)) from error


def main() -> None:
    """Read the command line and serve until standard input ends."""
    parser = argparse.ArgumentParser(description="Serve forecasts by the Model Context Protocol.")
    parser.add_argument("place", help="folder of a run or of one series, or user/name on the Hub")
    parser.add_argument("--revision", help="branch, tag or commit on the Hub")
    parser.add_argument("--source", default="live", help="where candles come from")
    parser.add_argument("--data-dir", type=Path, help="folder of candle files, for --source files")
    parser.add_argument("--ledger", type=Path, default=DEFAULT_LEDGER, help="database of issued forecasts")
    parser.add_argument("--allow-old", action="store_true", help="forecast from candles of any age")
    options = parser.parse_args()
    try:
        place = open_place(options.place, revision=options.revision, models=SharedModels())
        source = open_source(options.source, data_dir=options.data_dir)
    except V8Error as error:
        parser.exit(error.exit_code, f"error: {error}\n")
    make_server(ModelAnswers(place, source, options.ledger, is_any_age=options.allow_old)).run()


if __name__ == "__main__":
    main()
