"""The model card: the Hub understands it, its numbers are the evaluation's, and it hides nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from described_models import described_features

from v8.base.wording import number, p_value
from v8.forecaster.metadata import Metadata, read_metadata
from v8.forecaster.standalone import features_file
from v8.model.evaluation.leaderboard import rank_results
from v8.publish.report.card import model_card
from v8.runs.run_folder import read_run

pytestmark = pytest.mark.tf

REPO = "someone/fleet"
GOOD = "BTCUSDT-15m"
BAD = "ETHUSDT-1h"


@pytest.fixture
def run(make_run: Any) -> Path:
    """Make a run of a good and a bad model."""
    return make_run([GOOD, BAD], shares={BAD: make_run.LOSING})


def card_of(run: Path, held_back: dict[str, str] | None = None) -> str:
    return model_card(REPO, read_run(run), metadata_of(run), held_back or {})


def metadata_of(run: Path) -> list[Metadata]:
    return [read_metadata(run / name) for name in (GOOD, BAD)]


def row_of(card: str, start: str) -> list[str]:
    line = next(line for line in card.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_hubs_own_reader_understands_the_card(run: Path) -> None:
    from huggingface_hub import ModelCard

    data = ModelCard(card_of(run)).data
    assert (data.library_name, data.pipeline_tag, data.license) == ("keras", "time-series-forecasting", "mit")
    assert data.model_name == "aligned"
    found = {(result.dataset_type, result.metric_type, result.metric_name) for result in data.eval_results}
    # Two series, three tasks, two metrics each, and one more where another baseline is better than naive.
    of_best = {name for _, kind, name in found if kind == "relative_mae_of_best_baseline"}
    assert of_best == {"Candles: mean absolute error over that of the best baseline, offset"}
    assert len(found) == len(data.eval_results) == 14


def test_the_metrics_are_the_evaluations_numbers_to_the_last_digit(run: Path) -> None:
    from huggingface_hub import ModelCard

    results = ModelCard(card_of(run)).data.eval_results
    for metadata in metadata_of(run):
        evaluation = metadata.evaluation
        values = {
            result.metric_name.partition(":")[0] + " " + result.metric_type: result.metric_value
            for result in results
            if result.dataset_type == metadata.series
        }
        assert values == {
            "Candles relative_mae": evaluation.relative_error("ohlc"),
            "Candles skill_score": evaluation.against("ohlc").skill,
            "Candles relative_mae_of_best_baseline": evaluation.relative_error("ohlc", baseline="offset"),
            "Bollinger bands relative_mae": evaluation.relative_error("bands"),
            "Bollinger bands skill_score": evaluation.against("bands").skill,
            "Volatility relative_mae": evaluation.relative_error("volatility"),
            "Volatility skill_score": evaluation.against("volatility").skill,
        }


def test_the_table_shows_multiple_and_significance_of_every_task_beside_naive_and_the_best(run: Path) -> None:
    row = next(row for row in rank_results(about.result for about in metadata_of(run)) if row.series == GOOD)
    cells = row_of(card_of(run), GOOD)
    # A quarter of the way from naive to the actual values leaves three quarters of the error.
    assert cells[1] == "0.750"
    assert cells[2] == p_value(row.tasks["ohlc"].naive.corrected_p_value) == "< 0.001"
    assert cells[3] == number(row.tasks["ohlc"].best.relative_mae)
    assert cells[4] == p_value(row.tasks["ohlc"].best.corrected_p_value)
    titles = row_of(card_of(run), "series")
    assert titles[1:6] == ["Candles × naive", "p", "Candles × offset", "p", "Bollinger bands × naive"]
    assert len(cells) == len(titles) == 1 + 4 * 2 + 1


def test_a_model_that_loses_is_called_so_beside_its_name(run: Path) -> None:
    card = card_of(run)
    lost = "loses to naive: candles, bollinger bands, volatility; loses to offset: candles"
    assert row_of(card, BAD)[0] == f"{BAD} **{lost}**"
    assert row_of(card, GOOD)[0] == GOOD
    # Of two models one beats naive and one loses to it, both significantly; none is between.
    # The errors are 0.751 and 1.251 times those of offset: 1.001 in the middle.
    expected = (
        "0.1 % higher than the best baseline, naive × a constant (offset) "
        "(significantly lower for 1 of 2 series, significantly higher for 1)."
    )
    assert expected in next(line for line in card.splitlines() if line.startswith("Candles: "))


def test_the_card_shows_the_lines_of_the_files_that_are_there(run: Path) -> None:
    files = ["features.py", f"models/{GOOD}/model.onnx", "forecast.png"]
    card = model_card(REPO, read_run(run), metadata_of(run), {}, files=files)
    blocks = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    for block in blocks:
        compile(block, "card", "exec")
    loader, onnx, exchange, product = blocks
    assert f'snapshot_download("{REPO}", allow_patterns=["features.py", "models/{GOOD}/*"])' in loader
    assert f'InferenceSession(f"{{folder}}/models/{GOOD}/model.onnx")' in onnx
    assert "symbol=BTCUSDT&interval=15m&limit=" in exchange
    assert "v8.load" in product
    assert "](forecast.png)" in card
    assert "](forecast.png)" not in card_of(run)


def test_a_card_without_features_py_says_why(run: Path, make_run: Any) -> None:
    make_run.change(run, GOOD, features=described_features(["ta.adx"]))
    model = read_metadata(run / GOOD)
    card = model_card(REPO, read_run(run), [model], {})
    assert "No `features.py` computes them here: ta.adx is computed by the package ta." in card
    assert features_file(model) == ""


def test_the_front_matter_names_datasets_and_the_models_that_training_began_from(
    run: Path, make_run: Any
) -> None:
    from huggingface_hub import ModelCard

    data = ModelCard(card_of(run)).data
    assert (data.datasets, data.base_model) == (None, None)
    model = read_metadata(run / GOOD)
    candles = dict(model.content["candles"]) | {"dataset": "someone/candles"}
    training = dict(model.content["training"]) | {"started_from": "ab" * 32}
    make_run.change(run, GOOD, candles=candles, training=training)
    data = ModelCard(card_of(run)).data
    assert (data.datasets, data.base_model) == (["someone/candles"], REPO)
    results = {(one.dataset_type, one.dataset_config) for one in data.eval_results}
    assert results == {("someone/candles", GOOD), (BAD, None)}


def test_without_a_test_of_significance_there_is_no_column_for_it(make_run: Any) -> None:
    # Six windows are too few. Half of the way in logs is a little less than half in returns.
    card = card_of(make_run([GOOD, BAD], shares={GOOD: make_run.SHORT, BAD: make_run.SHORT}))
    assert row_of(card, GOOD)[1] == "0.501"
    assert row_of(card, "series")[1:3] == ["Candles × naive", "Candles × offset"]
    assert "p" not in row_of(card, "series")
    assert len(row_of(card, GOOD)) == len(row_of(card, "series"))
    assert "too few windows for a test of significance" in card
    assert "Diebold-Mariano" not in card


def test_a_number_that_does_not_exist_is_a_dash_and_no_metric(make_run: Any) -> None:
    from huggingface_hub import ModelCard

    card = card_of(make_run([GOOD, BAD], shares={BAD: make_run.NAIVE_IS_TRUE}))
    assert row_of(card, BAD)[1] == "–"
    assert row_of(card, BAD)[row_of(card, "series").index("Volatility × naive")] == "–"
    metrics = {(one.dataset_type, one.metric_type) for one in ModelCard(card).data.eval_results}
    assert {series for series, metric in metrics if metric in {"relative_mae", "skill_score"}} == {GOOD}
