"""What version 1.0 wrote is still read: a run with a renewal, its ledger, a repository, a back-test.

`tests/data/format_1.zip` was made by commit 967f431 on a simulated market (`run`, `forecast`, `update`,
`track --format json`, `publish` to a Hub on loopback, `predict --repo ... --format json`, `backtest`).
Metadata of format 1 are not read any more: those in it have the current names.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from float32_steps import assert_same_frames
from later_candles import with_future

from v8.annexes.live.promotion.decisions import read_promotions
from v8.api.issuing import error_lines
from v8.base.errors import ArtifactError
from v8.base.former_names import KEYS, VALUES, with_current_names
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import checked_metadata, read_metadata
from v8.forecaster.series_artifact import artifact_readme
from v8.runs.backtest_results import read_results
from v8.runs.finished_series import read_finished
from v8.runs.nested_runs import read_plan
from v8.runs.run_folder import RUN_FORMAT, read_run

REPOSITORY = Path(__file__).parents[2]
SERIES = "BTCUSDT-1h"


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """Unpack the files of version 1.0."""
    with zipfile.ZipFile(REPOSITORY / "tests/data/format_1.zip") as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_metadata_of_format_1_and_its_names_under_the_current_format_are_refused(former: Path) -> None:
    content = json.loads((former / "runs/frontier" / SERIES / "metadata.json").read_text())
    use_metadata(content)
    with pytest.raises(ArtifactError) as refusal:
        checked_metadata(content | {"format": 1})
    assert refusal.value.got == "format 1"
    assert "Train the series again" in refusal.value.fix
    used = 0
    for former_name, name in (*KEYS.items(), *VALUES.items()):
        renamed = with_names({name: former_name}, {**content, "seconds": {}})
        if renamed != {**content, "seconds": {}}:
            used += 1
            with pytest.raises(ArtifactError):
                use_metadata(renamed)
    assert used >= 5


@pytest.mark.parametrize("key", ["judgement", "note"])
def test_keys_that_v8_does_not_write_are_refused(former: Path, key: str) -> None:
    content = json.loads((former / "runs/frontier" / SERIES / "metadata.json").read_text())
    with pytest.raises(ArtifactError) as refusal:
        checked_metadata({**content, key: content.pop("evaluation")})
    assert refusal.value.got == f"the unknown keys {key}"
    for place in (content["features"][0], content["training"], content["tasks"]["ohlc"]):
        place[key] = 1
        with pytest.raises(ArtifactError, match=f"the unknown key '{key}'"):
            checked_metadata(content)
        del place[key]


def use_metadata(content: dict[str, Any]) -> None:
    """Read metadata, and the sections that are read when they are first used."""
    metadata = checked_metadata(content)
    assert metadata.is_evaluated
    assert metadata.quantiles
    assert metadata.value_ranges
    assert metadata.scaling
    assert artifact_readme(metadata)


def with_names(names: dict[str, str], node: Any) -> Any:
    """Rename keys and texts of JSON values at any depth, but for those of the profile."""
    if isinstance(node, dict):
        return {
            names.get(key, key): value if key == "profile" else with_names(names, value)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [with_names(names, value) for value in node]
    return names.get(node, node) if isinstance(node, str) else node


def test_a_forecast_of_format_1_says_that_its_best_baseline_is_that_of_the_series(former: Path) -> None:
    metadata = read_metadata(former / "runs/frontier" / SERIES)
    naive, best = error_lines(metadata)
    assert naive.endswith(").")
    assert best.endswith(
        "); its run stored no best baseline of all series, so this is the best of this series alone."
    )


def test_a_run_of_format_1_is_read_with_its_renewal_and_written_as_format_2(former: Path) -> None:
    run = former / "runs/frontier"
    record = read_run(run)
    assert (record.format, record.is_evaluated, record.done) == (RUN_FORMAT, True, [SERIES])
    (decision,) = read_promotions(run).decisions
    assert decision.evaluated_from is not None
    assert decision.challenger.relative_mae.keys() == {"ohlc", "bands", "volatility"}
    finished = read_finished(run / SERIES)
    assert finished.sample is not None
    assert finished.sample.actual.keys() == {"ohlc", "bands", "volatility"}


def test_a_back_test_of_format_1_gives_the_figures_that_version_1_0_gave(former: Path) -> None:
    results = read_results(former / "backtest", read_plan(former / "backtest"))
    written = json.loads((former / "backtest/backtest.json").read_text())["results"]
    (pool,) = results.pools
    former_task = written["pools"][0]["tasks"]["volatility"]
    task = pool.tasks["volatility"]
    assert task.relative_mae == with_current_names(former_task["multiples"])
    assert task.difference == former_task["difference"]
    # Of so few windows version 1.0 still made a test.
    assert former_task["p_naive"] < 0.05
    assert (task.p_naive, task.p_best) == (None, None)


@pytest.mark.tf
def test_a_published_model_of_format_1_forecasts_what_it_forecast(former: Path) -> None:
    written = json.loads((former / "pulled.json").read_text())
    forecaster = Forecaster.load(former / "runs/frontier" / SERIES)
    assert forecaster.about.model_sha256 == written["model"]["sha256"]
    # The exchange of that trial: 4,000 candles of the simulated market, and 18 hours after them.
    candles = with_future(SERIES, 4000, 18)
    candles.iloc[:, :4] *= 1e6
    forecast = forecaster.predict(check_candles(candles, Series.parse(SERIES), source="live"))
    expected = pd.DataFrame(written["forecast"]).drop(columns="open_time")
    assert_same_frames(forecast[[*expected]].reset_index(drop=True), expected)


def test_no_current_name_is_a_former_one_of_something_else() -> None:
    assert not set(KEYS) & set(KEYS.values())
