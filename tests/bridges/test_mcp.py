"""The server of the Model Context Protocol, asked by the client of its own package."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import v8_mcp
from ledger_entries import made_entry, made_score
from mcp import Client
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError
from typer.testing import CliRunner
from v8_mcp import ModelAnswers, make_server, refusal_of
from v8_work import Background

from v8.annexes.live.ledger import Ledger
from v8.cli.app import app
from v8.data.market.sources import open_source
from v8.forecaster.forecaster import Forecaster
from v8.publish.hub.places import open_place

SERVER = Path(__file__).parents[2] / "docs/bridges/mcp/v8_mcp.py"
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
    assert "a series that is finished" in result.content[0].text
    assert "Traceback" not in result.content[0].text


def test_wrong_arguments_are_answered_in_our_words(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    answers = ModelAnswers(open_place(tmp_path / "tiny"), open_source("demo"), tmp_path / "none.sqlite")
    server = make_server(answers, Background("demo", None, tmp_path))

    async def ask(client: Client) -> list[str]:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("forecast", {}),
            ("forecast", {"series": 5}),
            ("train", {"series": "BTCUSDT-15m"}),
            ("backtest", {"series": [SERIES], "folds": "many"}),
            ("forcast", {"series": SERIES}),
        ]
        results = [await client.call_tool(name, arguments) for name, arguments in calls]
        assert all(result.is_error for result in results)
        return [result.content[0].text for result in results]

    texts = asked(server, ask)
    assert [text.partition(":")[0] for text in texts] == [
        "forecast, argument series",
        "forecast, argument series",
        "train, argument series",
        "backtest, argument folds",
        "the tool",
    ]
    for text, got in zip(texts, ["none", "5", '"BTCUSDT-15m"', '"many"', "forcast"], strict=True):
        assert f"; got {got}. " in text and "pydantic" not in text


@pytest.mark.tf
def test_no_answer_and_no_error_names_a_file_of_this_machine(trained_run: Any, tmp_path: Path) -> None:
    run = tmp_path / "secret" / "tiny\x1b[31m"
    shutil.copytree(trained_run.path, run)
    source = open_source("files", data_dir=tmp_path / "secret")  # has no candles
    server = make_server(ModelAnswers(open_place(run), source, tmp_path / "secret" / "ledger.sqlite"))

    async def ask(client: Client) -> list[Any]:
        broken = run / SERIES / "model.keras"
        answers = [await client.call_tool("models"), await client.call_tool("live_record")]
        answers += [await client.call_tool("evaluation", {"series": SERIES})]
        answers += [await client.call_tool("forecast", {"series": SERIES})]
        for name in ("ETHUSDT-1h", "../../etc/passwd", "a\x1b[2J", "\ud800", "x" * 10_000, "-15m", ""):
            answers += [await client.call_tool("evaluation", {"series": name})]
            answers += [await client.call_tool("forecast", {"series": name})]
        broken.write_bytes(b"no model")
        answers += [await client.call_tool("forecast", {"series": SERIES})]
        (tmp_path / "secret" / "ledger.sqlite").write_bytes(b"no ledger")
        answers += [
            await client.call_tool("live_record"),
            await client.call_tool("live_record", {"series": "x"}),
        ]
        (run / SERIES / "metadata.json").write_text('{"format": 99}')
        return [*answers, await client.call_tool("models")]

    answers = asked(server, ask)
    texts = [answer.content[0].text for answer in answers]
    assert [answer.is_error for answer in answers[:4]] == [False, False, False, True]
    assert all(answer.is_error for answer in answers[4:])
    assert json.loads(texts[0])["place"] == json.loads(texts[1])["place"] == r"run tiny\x1b[31m"
    for text in texts:
        assert "secret" not in text and str(tmp_path) not in text and "Traceback" not in text
        assert text.encode().isascii() and "\x1b" not in text
    assert max(len(text) for text in texts[3:]) < 800
    assert r"\ud800" in texts[10]


@pytest.mark.tf
def test_a_mistake_in_v8_tells_the_assistant_nothing_and_the_operator_all(
    trained_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*values: Any, **names: Any) -> Any:
        raise OSError(5, "Input/output error", "/home/me/secret")

    monkeypatch.setattr(v8_mcp, "read_metadata", fail)
    server = make_server(answers_of(trained_run, tmp_path / "none.sqlite"))
    result = asked(server, lambda client: client.call_tool("evaluation", {"series": SERIES}))
    assert result.is_error and "secret" not in result.content[0].text
    assert any("secret" in record.getMessage() and record.exc_info for record in caplog.records)


def test_a_message_that_is_none_is_refused_with_the_id_of_its_request() -> None:
    def refused(line: str) -> tuple[Any, int]:
        with pytest.raises(ValidationError) as caught:
            jsonrpc_message_adapter.validate_json(line)
        answer = refusal_of(caught.value)
        assert answer.model_dump_json().isascii()
        return answer.id, answer.error.code

    call = r'{"jsonrpc": "2.0", "id": %s, "method": "tools/call", "params": {"name": "\ud800"}}'
    assert refused(call % 7) == (7, -32700)
    assert refused(call % '"a"') == ("a", -32700)
    assert refused(call % r'"\udfff"') == refused(call % "null") == refused(call % "[7]") == (None, -32700)
    assert refused("nonsense") == refused("[" * 100_000) == (None, -32700)
    assert refused('{"id": 9}') == (9, -32600)
    assert refused("[1]") == refused("1") == (None, -32600)


@pytest.fixture(scope="module")
def onnx_run(trained_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with `model.onnx` beside `model.keras`."""
    run = tmp_path_factory.mktemp("onnx") / "tiny"
    shutil.copytree(trained_run.path, run)
    words = ["export", str(run), "--models", "onnx", "--data-dir", str(trained_run.candles_dir)]
    written = CliRunner().invoke(app, words)
    assert written.exit_code == 0, written.output
    return run


@pytest.mark.tf
@pytest.mark.process
def test_without_keras_a_model_forecasts_by_onnx_and_every_message_is_answered(
    onnx_run: Path, trained_run: Any
) -> None:
    hidden = "import sys; sys.modules.update(keras=None, tensorflow=None); import runpy; del sys.argv[0]; "
    words = ["-c", f"{hidden}runpy.run_path(sys.argv[0], run_name='__main__')", str(SERVER), str(onnx_run)]
    words += ["--source", "files", "--data-dir", str(trained_run.candles_dir), "--allow-old"]
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    ask = {"name": "forecast", "arguments": {"series": SERIES}}
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        r'{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "\ud800", "arguments": {}}}',
        json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": ask}),
        "nonsense",
    ]
    env = {**os.environ, "PYTHONPATH": str(SERVER.parents[3])}
    with subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=env,
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout
        process.stdin.write("".join(f"{line}\n" for line in lines))
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(4)]
        process.kill()
    by_id = {answer["id"]: answer for answer in answers}
    assert by_id[2]["error"]["code"] == by_id[None]["error"]["code"] == -32700
    result = by_id[3]["result"]
    assert not result.get("isError"), result
    content = json.loads(result["content"][0]["text"])
    assert content["model"]["runtime"] == "onnx" and content["model"]["place"] == "run tiny"
    assert str(onnx_run) not in result["content"][0]["text"]


def call(server: Any, tool: str, **arguments: Any) -> Any:
    return asked(server, lambda client: client.call_tool(tool, arguments))


def training_server(folder: Path) -> Any:
    """Serve no models; what is trained is of the simulated market, in a folder."""
    source = open_source("demo")
    place = open_place("you/models", is_offline=True)
    answers = ModelAnswers(place, source, folder / "none.sqlite")
    return make_server(answers, Background("demo", None, folder))


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("train", {"series": ["BTCUSDT-1h"], "profile": "/etc/passwd"}, "is one of aligned, "),
        ("train", {"series": []}, "names 1 to 40 series"),
        ("backtest", {"series": ["BTCUSDT-1h"], "profile": "fronteer"}, "Did you mean frontier"),
        ("backtest", {"series": ["BTCUSDT-1h"], "folds": 0}, "folds"),
    ],
)
def test_what_an_assistant_may_not_train_is_refused_in_a_sentence(
    tmp_path: Path, tool: str, arguments: dict[str, Any], said: str
) -> None:
    server = training_server(tmp_path)
    result = call(server, tool, **arguments)
    assert result.is_error
    assert said in result.content[0].text and str(tmp_path) not in result.content[0].text
    assert content_of(call(server, "status")) == {"work": []}


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.process
def test_an_assistant_trains_in_the_background_and_asks_how_far_it_is(tmp_path: Path) -> None:
    server = training_server(tmp_path)
    begun = content_of(call(server, "train", series=["BTCUSDT-1h"], profile="range_paths", smoke=True))
    assert begun["state"] == "running"
    assert "at a time" in call(server, "backtest", series=["BTCUSDT-1h"]).content[0].text
    end_s = time.monotonic() + 300
    while (work := content_of(call(server, "status"))["work"][0])["state"] == "running":
        assert time.monotonic() < end_s
        time.sleep(0.5)
    assert (work["state"], work["folder"]) == ("finished", "range_paths-smoke")
    assert work["progress"] and str(tmp_path) not in json.dumps(work)
    assert {row["series"] for row in work["errors"]} == {"BTCUSDT-1h"}
    assert (tmp_path / "runs" / "range_paths-smoke" / "BTCUSDT-1h" / "metadata.json").is_file()
    refused = content_of(call(server, "train", series=["nothing"]))
    assert refused["state"] == "running"
    while (work := content_of(call(server, "status"))["work"][0])["state"] == "running":
        time.sleep(0.5)
    assert work["state"] == "failed" and "Traceback" not in work["error"]
    assert "SYMBOL-TIMEFRAME" in work["error"]
