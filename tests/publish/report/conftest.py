"""Metadata and run records of the shape that `v8.forecaster` writes, small and evaluated for real."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluating import evaluate_arrays, rolled
from module_file import load_module
from pydantic import TypeAdapter

from v8.base.storage import write_text
from v8.forecaster.metadata import ARTIFACT_FORMAT
from v8.forecaster.series_artifact import ForecastSample
from v8.model.evaluation.evaluation import Evaluation
from v8.model.evaluation.leaderboard import TrainingHistory, rank_results, read_result
from v8.profile.profile import load_profile
from v8.publish.report.page import RunPage
from v8.publish.report.series_section import series_body
from v8.runs.run_folder import RUN_FORMAT, RunRecord

Maker = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def make_metadata() -> Maker:
    """Return a maker of one series' metadata; `share` of the actual values's way from naive is forecast."""
    return _metadata


@pytest.fixture(scope="session")
def make_run() -> Maker:
    """Return a maker of the content of a `run.json`."""
    return _run


@pytest.fixture(scope="session")
def write_page() -> Callable[..., None]:
    """Return a writer of a run's page from the contents of its files, as a run writes it."""

    def write(
        path: Path,
        run: dict[str, Any],
        metadata: list[dict[str, Any]],
        histories: Mapping[str, TrainingHistory] | None = None,
        samples: Mapping[str, ForecastSample] | None = None,
    ) -> None:
        results = [*map(read_result, metadata)]
        record = TypeAdapter(RunRecord).validate_python(run)
        bodies = {
            one.series: series_body(
                one, (histories or {}).get(one.series, ()), (samples or {}).get(one.series)
            )
            for one in results
        }
        sample = next(iter((samples or {}).values()), None)
        write_text(path, RunPage(record, rank_results(results), bodies, sample).whole())

    return write


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Open a browser for the pages of a module; see `devtools.Browser`."""
    module = load_module(Path(__file__).parents[2] / "annexes" / "live" / "app" / "devtools.py")
    program = module.find_browser()
    if program is None:
        pytest.skip("no browser: install Chromium or Chrome, or name one in V8_TEST_BROWSER")
    with module.Browser(program, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def visit(browser: Any) -> Callable[..., str]:
    """Return what opens a page, waits until so many charts are drawn, and returns the document."""

    def visited(page: Path, fragment: str = "", *, num_charts: int) -> str:
        browser.look(1_200)
        browser.open("about:blank", "true")  # from where every fragment is another page
        browser.complaints.clear()
        root = "document.documentElement"
        browser.open(f"{page.as_uri()}{fragment}", f"{root}.dataset.charts === '{num_charts}'")
        assert (browser.value(f"{root}.dataset.errors"), browser.complaints) == ("0", [])
        return str(browser.value(f"{root}.outerHTML"))

    return visited


def _metadata(
    series: str = "BTCUSDT-15m",
    *,
    share: float = 0.5,
    horizon_bars: int = 3,
    tasks: tuple[str, ...] = ("ohlc", "bands", "volatility"),
    source: str = "vision",
    best_epoch: int = 4,
    epochs_run: int = 9,
    num_windows: int = 6,
    seed: int = 3,
) -> dict[str, Any]:
    return {
        "format": ARTIFACT_FORMAT,
        "series": series,
        "is_demo_market": source == "demo",
        "candles": {"source": source, "is_publishable": source != "demo", "report": _candle_report()},
        "split": _split(),
        "training": {"best_epoch": best_epoch, "epochs_run": epochs_run, "stopped_by": "early stopping"},
        "seconds": {"features": 0.25, "training": 61.0, "evaluating": 0.75},
        "evaluation": _evaluation(share, horizon_bars, tasks, num_windows, seed).to_json(),
    }


def _evaluation(
    share: float, horizon_bars: int, tasks: tuple[str, ...], num_windows: int, seed: int
) -> Evaluation:
    """Judge `share`: 1 is perfect, 0 is naive; each error is (1 - share) times the naive one."""
    rng = np.random.default_rng(seed)
    closes = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, (num_windows, 20)), axis=1))
    naive = rolled(closes, horizon_bars)
    strayed = {task: values * np.exp(rng.normal(0, 0.02, values.shape)) for task, values in naive.items()}
    return evaluate_arrays(
        actual={task: strayed[task] for task in tasks},
        model={task: naive[task] + share * (strayed[task] - naive[task]) for task in tasks},
        history_close=closes,
        offsets={task: np.full(naive[task].shape[1:], 0.001) for task in tasks},
    )


def _candle_report() -> dict[str, Any]:
    return {
        "num_read": 8_001,
        "num_kept": 8_000,
        "num_unclosed": 1,
        "num_off_grid": 0,
        "time_units": {"ms": 8_001},
        "gaps": [{"after": "2023-12-30T12:00:00+00:00", "num_missing": 28}],
        "relisted_at": None,
    }


def _split() -> dict[str, Any]:
    span = {"rows": [0, 5_600], "first_open": "2024-01-01T00:00:00+00:00", "num_windows": 5_531}
    return {
        **{
            name: {**span, "last_open": "2024-02-01T00:00:00+00:00"}
            for name in ("train", "validation", "test")
        },
        "embargo_bars": 70,
    }


def _run(
    done: tuple[str, ...] = ("BTCUSDT-15m",), failed: dict[str, str] | None = None, *, source: str = "vision"
) -> dict[str, Any]:
    profile = load_profile("aligned")
    states = {name: {"status": "done", "reason": None} for name in done}
    states |= {name: {"status": "failed", "reason": reason} for name, reason in (failed or {}).items()}
    return {
        "format": RUN_FORMAT,
        "profile": profile.model_dump(mode="json"),
        "profile_digest": profile.digest,
        "source": source,
        "is_publishable": source != "demo",
        "command": "python -m v8.run --profile aligned",
        "created_at": "2024-09-06T00:00:00+00:00",
        "versions": {"python": "3.11.9", "keras": "3.12.0"},
        "machine": {"cpu": "some cores", "num_cores": 2, "memory_bytes": 8_000_000_000},
        "series": states,
    }
