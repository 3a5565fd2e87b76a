"""The table of baselines: what is refused, what is added up, and who may teach a pooled model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from local_server import LocalServer

from v8.base.errors import DataError
from v8.data.market.series import Series
from v8.model.baselines.baselines import BASELINES

SCRIPT = Path(__file__).parents[3] / "scripts" / "bench_baselines.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = spec_from_file_location("bench_baselines", SCRIPT)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def profile_file(make_profile, tmp_path: Path) -> Path:
    file = tmp_path / "short.yaml"
    file.write_text(json.dumps(make_profile().model_dump(mode="json")))  # JSON is YAML
    return file


def call(*words: str | Path, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, words)],
        env={**os.environ, "V8_HOME": str(home), **env},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture
def empty_archive(tmp_path: Path) -> Iterator[str]:
    """Serve an archive that holds nothing; its address."""
    (tmp_path / "archive").mkdir()
    with LocalServer(partial(Silent, directory=tmp_path / "archive")) as server:
        yield server.url


@pytest.mark.process
def test_without_market_data_one_sentence_says_what_is_missing(
    profile_file: Path, tmp_path: Path, empty_archive: str
) -> None:
    words = ["--profile", profile_file, "--series", "BTCUSDT-15m"]
    done = call(*words, home=tmp_path, V8_VISION_URL=empty_archive)
    assert done.returncode == DataError.exit_code
    assert done.stderr.splitlines()[-1].startswith(
        "error: BTCUSDT-15m from vision: needs a zip in the archive"
    )
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.process
def test_the_table_and_the_json_hold_every_baseline_as_a_relative_mae(
    profile_file: Path, tmp_path: Path
) -> None:
    words = ["--profile", profile_file, "--source", "demo", "--series", "BTCUSDT-15m", "ETHUSDT-15m"]
    done = call(*words, "--json", "figures.json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "figures.json").read_text())
    group = told["timeframes"]["15m"]
    assert (group["num_series"], told["span"], told["source"]) == (2, "test", "demo")
    installed = [name for name, one in BASELINES.items() if one.is_installed()]
    for figure in ("ohlc", "bands", "volatility", "close"):
        multiples = group["multiples_of_naive"][figure]
        assert multiples["naive"] == {"median": 1.0, "mean": 1.0}
        assert [name for name in multiples if name != "model"] == installed
        each = [one["mean_absolute_errors"][figure] for one in told["series"].values()]
        ratios = [errors["har"] / errors["naive"] for errors in each]
        assert multiples["har"]["mean"] == pytest.approx(np.mean(ratios), rel=1e-12)
    assert group["multiples_of_naive"]["close"]["har"]["median"] == 1.0  # it leaves the close where it was
    assert f"har {group['multiples_of_naive']['bands']['har']['median']:.4f}"[4:] in done.stdout
    assert "model" not in done.stdout


@pytest.mark.process
def test_models_are_not_measured_on_the_span_that_chose_their_weights(tmp_path: Path) -> None:
    done = call("--run", "runs/one", "--span", "validation", home=tmp_path)
    assert done.returncode == 2
    assert "error: --run runs/one: models are measured on the test span" in done.stderr


def test_nobody_teaches_a_pooled_model_what_happened_in_the_evaluated_span(bench: ModuleType) -> None:
    # Bars of the evaluated span from 100 on: the first two were taught before, the third lived through it,
    # the fourth has another timeframe.
    spans = [
        _span("BTCUSDT-1h", evaluated_from_s=100, trained_until_s=80),
        _span("ETHUSDT-1h", evaluated_from_s=150, trained_until_s=99),
        _span("ADAUSDT-1h", evaluated_from_s=300, trained_until_s=100),
        _span("BTCUSDT-15m", evaluated_from_s=100, trained_until_s=80),
    ]
    assert [bench.teachers(span, spans) for span in spans] == [(0, 1), (0, 1, 2), (0, 1, 2), (3,)]


def test_a_contest_counts_series_and_corrects_for_their_number(bench: ModuleType) -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.1, 400)
    better, worse = noise - 1.0, noise + 1.0  # ten standard deviations of one window apart
    spans = [_evaluated(change) for change in (better, better, worse, noise - noise.mean() - 1e-6)]
    assert bench.contest(spans, "bands", "har") == {
        "num_series": 4,
        "num_better": 3,
        "num_significantly_better": 2,
        "num_significantly_worse": 1,
    }


@pytest.mark.process
@pytest.mark.skipif(find_spec("lightgbm") is None, reason="optional: pip install lightgbm")
def test_a_pooled_model_stands_beside_the_others(profile_file: Path, tmp_path: Path) -> None:
    words = ["--profile", profile_file, "--source", "demo", "--series", "BTCUSDT-15m", "ETHUSDT-15m"]
    done = call(*words, "--pooled", "--json", "figures.json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    group = json.loads((tmp_path / "figures.json").read_text())["timeframes"]["15m"]
    assert 0.5 < group["multiples_of_naive"]["bands"]["lightgbm_pooled"]["median"] < 1.5
    assert "lightgbm pooled" in done.stdout


def _span(name: str, *, evaluated_from_s: int, trained_until_s: int) -> SimpleNamespace:
    return SimpleNamespace(
        series=Series.parse(name), evaluated_from_s=evaluated_from_s, trained_until_s=trained_until_s
    )


def _evaluated(change: np.ndarray) -> SimpleNamespace:
    """A span of 400 windows on which the model errs by so much more than HAR."""
    return SimpleNamespace(
        losses={"bands": {"model": 5.0 + change, "har": np.full(400, 5.0)}},
        span=SimpleNamespace(horizon_bars=3, bar_numbers=None),
    )
