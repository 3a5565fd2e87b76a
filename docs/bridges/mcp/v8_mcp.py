"""Forecasts for assistants: a server of the Model Context Protocol, over standard input and output.

    python -m pip install "mcp>=2"
    python docs/bridges/mcp/v8_mcp.py runs/frontier
    python docs/bridges/mcp/v8_mcp.py you/crypto-forecasters --source live --ledger runs/ledger.sqlite
    python docs/bridges/mcp/v8_mcp.py runs/frontier --allow-training

An assistant starts it as a process and calls its tools: `models`, `forecast`, `evaluation`, `live_record`.
They read one place, a run folder or a repository on the Hub, and change nothing. `--allow-training` adds
`train`, `backtest` and `status`, which work in the background (`v8_work`). What a tool returns is what
`predict --format json`, `metadata.json` and `track --format json` hold. Models with a `model.onnx` need no
TensorFlow. The protocol: https://modelcontextprotocol.io.

An assistant may be a stranger's, and so may be what it reads. It gets no path of this machine: a run is
called by its name, as in `v8 app`, and an error is one sentence of four parts that names no file; all of it
is written to standard error, for whoever runs the server. A message that is no valid one is answered, too.
"""

import argparse
import json
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError
from pydantic import ValidationError

from v8.annexes.live import DEFAULT_LEDGER
from v8.annexes.live.app.answers import RequestError, public_error_json
from v8.annexes.live.ledger import Ledger
from v8.annexes.live.record import live_record
from v8.api.issuing import issue_forecast
from v8.base.errors import V8Error, shown
from v8.base.process import quiet_start
from v8.base.version import VERSION
from v8.data.market.series import iso, series_advice
from v8.data.market.sources import CandleSource, open_source
from v8.forecaster.metadata import Metadata, read_metadata
from v8.forecaster.shared_models import AUTO, RUNTIMES, SharedModels
from v8.profile.columns import is_symbol
from v8.publish.hub.places import ModelPlace, open_place

if TYPE_CHECKING:  # it imports what trains, which a server of model.onnx does not have
    from v8_work import Background

INSTRUCTIONS: Final = (
    "Forecasts of crypto candles by small neural networks. Prices are in quote currency, times in UTC, "
    "volatility is a share of the price. The close behaves like a random walk: mostly the range of prices "
    "can be forecast, not the direction. Say how the model compares with the naive forecast, and that "
    "nothing here is financial advice."
)

_RULES: Final = {
    "missing": "is needed",
    "string": "is a text",
    "list": "is a list of texts",
    "int": "is a whole number",
    "bool": "is true or false",
}
"""What an argument has to be, by the first word of the kind of its fault."""

MAX_ID_LETTERS: Final = 256  # of the id of a request
MOST_LOGGED: Final = 2_000  # letters of an error on standard error
_log: Final = logging.getLogger("v8_mcp")

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
                "place": self._place.label,
                "models": [_summary(self._metadata(name)) for name in self._place.series],
            }

    def forecast(self, series: str) -> dict[str, Any]:
        """Forecast the bars after the newest closed candle of a series."""
        with self._lock, quiet_start():
            self._require_timeframe_of(series)
            forecaster = self._place.forecaster_of(series)
            issued = issue_forecast(forecaster, self._source, self._place.label, is_any_age=self._is_any_age)
            return {**issued.to_json(), "notes": [issued.range_line(), *issued.summary_lines()]}

    def evaluation(self, series: str) -> dict[str, Any]:
        """Return the errors of the model of a series on its test span, compared with forecasts without it."""
        with self._lock:
            if series not in self._place.series:
                raise unknown_series(series, self._place.series)
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
            return {"place": self._place.label, "note": "there is no ledger, so no forecast was recorded"}
        folder = Path(self._place.name)
        place = folder if folder.is_dir() else self._place.name
        with self._lock, Ledger.open(self._ledger) as ledger:
            recorded = ledger.series(place)
            if series is not None and series not in recorded:
                raise unknown_series(series, recorded)
            record = live_record(ledger, place, None if series is None else [series])
            return {**record.to_json(), "place": self._place.label}

    def _require_timeframe_of(self, series: str) -> None:
        """Refuse a series that neither has a model here nor others of its timeframe, which forecast it."""
        if series not in self._place.series:
            symbol, _, timeframe = series.rpartition("-")
            timeframes = {name.rpartition("-")[2] for name in self._place.series}
            if timeframe not in timeframes or not is_symbol(symbol):
                raise unknown_series(series, self._place.series)

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


def unknown_series(name: str, available: Sequence[str]) -> RequestError:
    """Return the error for a series without a model, or without a forecast in the ledger."""
    return RequestError(
        where="series",
        rule="needs a series that is finished in this folder or repository, as `models` lists them",
        got=f"{shown(repr(name), 80)}; there are {len(available)}",
        fix=series_advice(shown(name, 80), available, "Choose one of these"),
    )


class Server(MCPServer):
    """Answers every message, also one that is none, and tells errors in sentences of v8."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool by name, as the class above does."""
        names = [tool.name for tool in await self.list_tools()]
        if name not in names:
            raise ToolError(f"the tool: is one of {', '.join(names)}; got {shown(name, 80)}. Choose another.")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(_fault_of_arguments(name, error.__cause__)) from None
            if isinstance(error.__cause__, ToolError):
                raise error.__cause__ from None
            raise

    async def run_stdio_async(self) -> None:
        """Serve standard input and output, as the class above does."""
        server = self._lowlevel_server
        async with stdio_server() as (incoming, outgoing):
            valid = ValidMessages(incoming, outgoing)
            await server.run(valid, outgoing, server.create_initialization_options())


class ValidMessages:
    r"""The valid messages of a stream; others are answered with an error of JSON-RPC.

    The package `mcp` answers none of these, such as one with half a surrogate pair, `"\ud800"`: an assistant
    would wait for ever.

    Args:
        incoming: The messages as they were read, an exception for one that is not valid.
        outgoing: Gets the answers.
    """

    def __init__(self, incoming: Any, outgoing: Any) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def __getattr__(self, name: str) -> Any:
        """All else is as in the stream, such as the context of its last message."""
        return getattr(self._incoming, name)

    async def __aenter__(self) -> Self:
        """Return this stream."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the stream."""
        await self._incoming.aclose()

    def __aiter__(self) -> Self:
        """Return this stream."""
        return self

    async def __anext__(self) -> SessionMessage:
        """Return the next valid message."""
        async for message in self._incoming:
            if isinstance(message, SessionMessage):
                return message
            await self._outgoing.send(SessionMessage(refusal_of(message)))
        raise StopAsyncIteration

    async def receive(self) -> SessionMessage:
        """Return the next valid message."""
        return await anext(self)


def refusal_of(error: Exception) -> JSONRPCError:
    """Return the answer to a message that is not valid; it has the id of the request if that is one."""
    faults = error.errors(include_url=False) if isinstance(error, ValidationError) else []
    is_json = bool(faults) and faults[0]["type"] != "json_invalid"
    number = None
    for fault in faults:
        content = fault["input"]
        if isinstance(content, str):
            with suppress(ValueError, RecursionError):
                content = json.loads(content)
        if isinstance(content, dict) and is_id(content.get("id")):
            number = content["id"]
            break
    code = INVALID_REQUEST if is_json else PARSE_ERROR
    rule = "is a message of JSON-RPC 2.0" if is_json else "is JSON in UTF-8, without half surrogate pairs"
    message = f"the request: {rule}; got another text. Send it again in that form."
    return JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=code, message=message))


def is_id(value: Any) -> bool:
    r"""Return whether a value can be the id of an answer.

    >>> [is_id(value) for value in (7, "a", None, True, "\ud800", [1])]
    [True, True, False, False, False, False]
    """
    if isinstance(value, str):
        return value.isprintable() and len(value) <= MAX_ID_LETTERS
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def make_server(answers: ModelAnswers, background: "Background | None" = None) -> MCPServer:
    """Return a server whose tools ask `answers`, and train in the background if that is allowed."""
    server = Server("v8", instructions=INSTRUCTIONS, version=VERSION, log_level="WARNING")

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
        return _answered(lambda: answers.forecast(series), series)

    @server.tool()
    def evaluation(series: str) -> dict[str, Any]:
        """Show how good the model of a series was on candles that it was not trained on.

        Args:
            series: A name from `models`.
        """
        return _answered(lambda: answers.evaluation(series), series)

    @server.tool(name="live_record")
    def record(series: str | None = None) -> dict[str, Any]:
        """Show how good the forecasts were that were issued before the actual values were known.

        Args:
            series: A name from `models`; all together when left out.
        """
        return _answered(lambda: answers.live_record(series), series or "the live record")

    if background:
        _add_training(server, background)
    return server


def _add_training(server: MCPServer, background: "Background") -> None:
    """Add the tools that train."""

    @server.tool()
    def train(series: list[str], profile: str = "frontier", smoke: bool = False) -> dict[str, Any]:
        """Begin to train a model for each series, in the background; ask `status` how far it is.

        Args:
            series: Names such as BTCUSDT-1h: symbol and timeframe.
            profile: What is trained: a name of a shipped profile.
            smoke: Whether to train for a moment only, to see that all works.
        """
        return _answered(lambda: background.train(series, profile, is_smoke=smoke), "train")

    @server.tool()
    def backtest(series: list[str], profile: str = "frontier", folds: int = 6) -> dict[str, Any]:
        """Begin to evaluate a profile over folds of the past, fitted again for each, in the background.

        Args:
            series: Names such as BTCUSDT-1h.
            profile: What is evaluated: a name of a shipped profile.
            folds: Number of folds.
        """
        return _answered(lambda: background.backtest(series, profile, folds), "backtest")

    @server.tool()
    def status() -> dict[str, Any]:
        """Say how far training and back-tests are, and how good the models of finished ones are."""
        return _answered(background.status)


def _fault_of_arguments(tool: str, error: ValidationError) -> str:
    """Return the sentence about the first argument that a tool does not take."""
    fault = error.errors(include_url=False)[0]
    kind = fault["type"].partition("_")[0]
    rule = _RULES.get(kind, "is of the type that the tool's schema names")
    got = "none" if kind == "missing" else shown(json.dumps(fault["input"], default=str), 80)
    name = ".".join(str(part) for part in fault["loc"])
    return f"{tool}, argument {name}: {rule}; got {got}. Its description says what to send."


def _answered(answer: Callable[[], Answer], series: str = "the models") -> Answer:
    """Return an answer; an error becomes one of the tool, of which an assistant may read what anybody may."""
    try:
        return answer()
    except Exception as error:  # noqa: BLE001 - foreign code may raise anything; a traceback is logged
        is_ours = isinstance(error, V8Error)
        _log.warning("%s", shown(error, MOST_LOGGED), exc_info=not is_ours)
        parts = public_error_json(error, shown(series, 80))["error"]
        raise ToolError("{where}: {rule}; got {got}. {fix}.".format(**parts)) from None


def main() -> None:
    """Read the command line and serve until standard input ends."""
    parser = argparse.ArgumentParser(description="Serve forecasts by the Model Context Protocol.")
    parser.add_argument("place", help="folder of a run or of one series, or user/name on the Hub")
    parser.add_argument("--revision", help="branch, tag or commit on the Hub")
    parser.add_argument("--source", default="live", help="where candles come from")
    parser.add_argument("--data-dir", type=Path, help="folder of candle files, for --source files")
    parser.add_argument("--ledger", type=Path, default=DEFAULT_LEDGER, help="database of issued forecasts")
    parser.add_argument("--allow-old", action="store_true", help="forecast from candles of any age")
    parser.add_argument("--allow-training", action="store_true", help="let the assistant train and back-test")
    parser.add_argument("--runtime", choices=RUNTIMES, default=AUTO, help="what computes (default: auto)")
    options = parser.parse_args()
    try:
        models = SharedModels(options.runtime)
        place = open_place(options.place, revision=options.revision, models=models)
        source = open_source(options.source, data_dir=options.data_dir)
    except V8Error as error:
        parser.exit(error.exit_code, f"error: {error}\n")
    background = None
    if options.allow_training:
        from v8_work import Background  # noqa: PLC0415 - see the top

        background = Background(options.source, options.data_dir, Path.cwd())
    make_server(ModelAnswers(place, source, options.ledger, is_any_age=options.allow_old), background).run()


if __name__ == "__main__":
    main()
