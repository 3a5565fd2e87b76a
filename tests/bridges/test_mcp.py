"""The server of the Model Context Protocol, asked by the client of its own package."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledger_entries import made_entry, made_score
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from v8_mcp import ModelAnswers, make_server

from v8.artifacts.forecaster import Forecaster
from v8.hub.opening import open_place
from v8.ledger.database import Ledger
from v8.market.sources.source import open_source

SERVER = Path(__file__).parents[2] / "scripts/bridges/mcp/v8_mcp.py"
SERIES = "BTCUSDT-15m"


def answers_of(trained_run: Any, ledger: Path) -> ModelAnswers:
    source = open_source("files", data_dir=trained_run.candles_dir)
    return ModelAnswers(open_place(trained_run.path), source, ledger, is_any_age=True)


def asked(server: Any, ask: Callable[[Client], Awaitable[Any]]) -> Any:
    async def talk() -> Any:
        async with Client(server) as client:
            return await ask(client)

    return asyncio.run(talk())


def content_of(result: Any) -> dict[str, Any]:
    assert not result.is_error, result.content
    content: dict[str, Any] = json.loads(result.content[0].text)
    return content


@pytest.mark.tf
def test_a_client_gets_the_forecast_of_the_product(trained_run: Any, tmp_path: Path) -> None:
    server = make_server(answers_of(trained_run, tmp_path / "none.sqlite"))
    answer = content_of(asked(server, lambda client: client.call_tool("forecast", {"series": SERIES})))
    source = open_source("files", data_dir=trained_run.candles_dir)
    forecaster = Forecaster.load(trained_run.folder)
    ours = forecaster.predict(source.candles(trained_run.series, forecaster.needed_bars))
    assert [row["close"] for row in answer["forecast"]] == ours["close"].tolist()
    assert len(answer["forecast"]) == 3
    assert any("has seen candles until" in note for note in answer["notes"])


@pytest.mark.tf
def test_it_answers_with_models_evaluation_and_live_record(trained_run: Any, tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite"
    server = make_server(answers_of(trained_run, file))

    async def ask(client: Client) -> Any:
        tools = await client.list_tools()
        found = [await client.call_tool("models"), await client.call_tool("evaluation", {"series": SERIES})]
        return [tool.name for tool in tools.tools], found, await client.call_tool("live_record")

    names, (models, evaluation), record = asked(server, ask)
    assert names == ["models", "forecast", "evaluation", "live_record"]
    (model,) = content_of(models)["models"]
    assert (model["series"], model["profile"], model["horizon_bars"]) == (SERIES, "tiny", 3)
    errors = content_of(evaluation)["errors"]["ohlc"]
    metadata = Forecaster.load(trained_run.folder).about
    assert errors["relative_mae"] == metadata.quality["ohlc"]["relative_mae"]
    assert content_of(evaluation)["test_span"]["num_windows"] == metadata.split.test.num_windows
    assert "there is no ledger" in content_of(record)["note"]


def test_the_live_record_is_that_of_the_ledger(tmp_path: Path) -> None:
    run = tmp_path / "tiny"
    run.mkdir()
    entry = made_entry()
    with Ledger.open_to_write(tmp_path / "ledger.sqlite") as ledger:
        ledger.add(entry)
        (number,) = ledger.pending(entry.issuer.place, SERIES)
        ledger.add_score(number, made_score(np.ones((3, 2)).tolist(), entry))
    answers = ModelAnswers(open_place(run), open_source("demo"), tmp_path / "ledger.sqlite")
    (series,) = answers.live_record()["series"]
    assert (series["series"], series["num_issued"]) == (SERIES, 1)


@pytest.mark.tf
def test_an_error_is_one_sentence_that_says_how_to_mend_it(trained_run: Any, tmp_path: Path) -> None:
    server = make_server(answers_of(trained_run, tmp_path / "none.sqlite"))
    result = asked(server, lambda client: client.call_tool("evaluation", {"series": "ETHUSDT-15m"}))
    assert result.is_error
    assert "needs a series that is finished in this folder" in result.content[0].text
    assert "Traceback" not in result.content[0].text


@pytest.mark.tf
@pytest.mark.process
def test_the_program_speaks_over_standard_input_and_output(trained_run: Any) -> None:
    words = [
        str(SERVER),
        str(trained_run.path),
        "--source",
        "files",
        "--data-dir",
        str(trained_run.candles_dir),
    ]
    transport = stdio_client(StdioServerParameters(command=sys.executable, args=words))
    result = asked(transport, lambda client: client.call_tool("models"))
    assert [model["series"] for model in content_of(result)["models"]] == [SERIES]
