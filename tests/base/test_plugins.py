"""Plug-ins: what a file of the user's registers works everywhere, or is refused in a sentence."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from forked import called
from tiny_profiles import tiny_profile

import v8
from v8.base import registry
from v8.base.errors import DataError, ProfileError
from v8.base.process import command, for_children
from v8.data.market.series import Series
from v8.data.market.sources import candles_of, open_source
from v8.model.baselines.baselines import BASELINES, Baseline
from v8.profile.indicators import FEATURES, ancestry
from v8.profile.profile import Profile
from v8.runs.events import run_isolated

pytestmark = pytest.mark.usefixtures("unloaded")
SERIES = ("BTCUSDT-15m", "ETHUSDT-15m")
DOUBLE = """
from v8.profile.formulas import Feature, Formula, Kind
from v8.profile.indicators import FEATURES


def double(close):
    return 2.0 * close


FORMULA = Formula(double, ("close",))
FEATURES.register(Feature("double", "twice the close, quote currency", "a test", Kind.PRICE, FORMULA))
"""


BASELINE_NAMED = """
from v8.model.baselines.baselines import BASELINES, Baseline

BASELINES.register(Baseline("{name}", "nothing", "a test", lambda train, scaling: lambda span: {{}}))
"""


def words_of(profile: Profile, folder: Path) -> list[str | Path]:
    """Write a profile, and return words of a command line that name it and two series of the demo market."""
    file = folder / f"{profile.name}.yaml"
    file.write_text(yaml.safe_dump(profile.model_dump(mode="json")))
    return ["--profile", file, "--source", "demo", *(word for one in SERIES for word in ("--series", one))]


def forecasters(artifact: Path) -> list[str]:
    return list(json.loads((artifact / "metadata.json").read_text())["evaluation"]["tasks"]["ohlc"]["errors"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plugged")


@pytest.fixture(scope="module")
def run(place: Path, halfway: Path) -> Path:
    """A run of two worker processes, evaluated beside the baseline of a plug-in."""
    profile = tiny_profile("dense_newest", training={"epochs": 1})
    process = called(
        "run", *words_of(profile, place), "--workers", "2", "--plugin", halfway, cwd=place, tf=True
    )
    assert process.returncode == 0, process.stderr
    assert f"--source demo --plugin {halfway}" in process.stdout  # the command that forecasts can be pasted
    return place / "runs" / "tiny"


@pytest.mark.nightly
@pytest.mark.process
def test_workers_evaluate_beside_its_baseline_and_the_run_knows_its_digest(run: Path, halfway: Path) -> None:
    for series in SERIES:
        assert forecasters(run / series)[-1] == "halfway"
    digest = registry.digest_bytes(halfway.read_bytes())
    assert json.loads((run / "run.json").read_text())["plugins"] == {"halfway.py": digest}
    assert "The close goes half of the way back." in (run / "report.html").read_text()


@pytest.mark.nightly
@pytest.mark.process
def test_whoever_goes_on_with_the_run_brings_the_same(
    run: Path, place: Path, halfway: Path, tmp_path: Path
) -> None:
    words = ["--profile", place / "tiny.yaml", "--source", "demo", "--series", SERIES[0]]
    process = called("run", *words, cwd=place, tf=True)
    assert process.returncode == 2
    assert " started with, halfway.py (" in process.stderr
    assert "; got none. " in process.stderr
    other = tmp_path / "halfway.py"
    other.write_text(halfway.read_text() + "\n")
    process = called("run", *words, "--plugin", other, cwd=place, tf=True)
    assert process.returncode == 2 and "got halfway.py (" in process.stderr
    process = called("update", run, "--source", "demo", "--dry-run", cwd=place, tf=True)
    assert process.returncode == 2 and "Name the same with --plugin." in process.stderr
    env = {**os.environ, "V8_PLUGINS": str(halfway)}
    process = called("run", *words, cwd=place, env=env, tf=True)
    assert process.returncode == 0 and "1 finished before" in process.stdout


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.process
def test_a_model_of_a_stock_graph_forecasts_without_it(run: Path, place: Path) -> None:
    process = called("predict", run, "--series", SERIES[0], "--source", "demo", cwd=place, tf=True)
    assert process.returncode == 0, process.stderr
    assert called("report", run, cwd=place, tf=True).returncode == 0
    assert v8.Run(run)[SERIES[0]].evaluation["forecaster"].eq("halfway").any()


@pytest.mark.nightly
@pytest.mark.process
def test_a_back_test_and_a_comparison_evaluate_beside_it(run: Path, place: Path, halfway: Path) -> None:
    words = ["--source", "demo", "--series", SERIES[0], "--plugin", halfway]
    process = called(
        *("backtest", "--profile", place / "tiny.yaml", "--folds", "2", "--out", "folds", *words),
        cwd=place,
        tf=True,
    )
    assert process.returncode == 0, process.stderr
    process = called("compare-profiles", place / "tiny.yaml", *words, cwd=place, tf=True)
    assert process.returncode == 0, process.stderr
    for fold in ("folds/fold-1", "folds/fold-2", "comparison/runs/tiny"):
        assert forecasters(place / fold / SERIES[0])[-1] == "halfway"


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.process
def test_python_trains_beside_it_in_two_workers(
    run: Path, place: Path, halfway: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ours = v8.train(*("demo", place / "tiny.yaml"), series=SERIES, workers=2, plugin=halfway, progress=False)
    assert [forecasters(ours.path / name)[-1] for name in SERIES] == ["halfway"] * 2
    assert ours.record.plugins == v8.Run(run).record.plugins == registry.loaded_plugins
    assert f"--plugin {halfway}" in ours.record.command


@pytest.mark.tf
def test_what_a_notebook_registered_itself_is_refused_in_a_sentence() -> None:
    BASELINES.register(Baseline("mine", "nothing", "a test", lambda train, scaling: lambda span: {}))
    with pytest.raises(ProfileError, match=r"got baseline mine, .*: plugin="):
        v8.train("demo", series="BTCUSDT-1h")


@pytest.mark.tf
@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "got nothing registered"),
        ("x = = 1\n", r"must be Python that runs.*got SyntaxError: invalid syntax \(mine.py, line 1\)"),
        ("\nimport nothing_here\n", "got ModuleNotFoundError: .*'nothing_here', line 2"),
        ("raise SystemExit(3)\n", "got SystemExit: 3, line 1"),
        (
            "class Unspeakable(Exception):\n    def __str__(self):\n        1 / 0\nraise Unspeakable\n",
            "got Unspeakable: .*, line 4",
        ),
        (BASELINE_NAMED.format(name="model"), "baseline model: its name"),
        (BASELINE_NAMED.format(name="naive"), "baseline naive: its name"),
        (BASELINE_NAMED.format(name="../x"), r"baseline, its name: .*got '\.\./x'"),
        (BASELINE_NAMED.format(name="x" * 5_000), "baseline, its name: .*got 'x"),
        ("from v8.profile.tasks import TASKS\nTASKS.register(TASKS['ohlc'])\n", "mine.py, task ohlc: "),
        ("x" * (1 << 21), "Python file .*got 2,097,152 bytes"),
    ],
)
def test_a_broken_file_is_one_sentence_and_leaves_nothing(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    known = dict(BASELINES)
    file.write_text(text)
    with pytest.raises(ProfileError, match=words) as caught:
        v8.plugin(file)
    assert f"plug-in {file}" in str(caught.value)
    assert dict(BASELINES) == known and not registry.loaded_plugins and not for_children
    process = called("features", "--plugin", file)
    assert (process.returncode, process.stderr.count("\n"), "Traceback" in process.stderr) == (2, 1, False)


FAILING_BASELINE = """
from v8.model.baselines.baselines import BASELINES, Baseline


def fit(train, scaling):
    return 1 / 0


BASELINES.register(Baseline("failing", "nothing", "a test", fit))
"""


@pytest.mark.tf
def test_the_reason_why_a_series_fails_names_the_line_of_the_plug_in(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FAILING_BASELINE)
    v8.plugin(file)
    _, outcome = run_isolated(Series.parse(SERIES[0]), lambda: BASELINES["failing"].fit(None, None))
    assert "ZeroDivisionError in mine.py, line 6: division by zero" in str(outcome.reason)


FRAME_SOURCE = """
import pandas as pd
from v8.data.market.sources import SOURCES, SourceKind


class Frames:
    name = "frames_of_mine"
    is_publishable = False

    def candles(self, series, num_bars, end_s=None):
        return pd.DataFrame({"open": [1.0]})


SOURCES.register(SourceKind("frames_of_mine", "frames", "a test", Frames))
"""


@pytest.mark.tf
@pytest.mark.process
def test_a_source_that_returns_no_candles_is_an_error_of_data(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FRAME_SOURCE)
    v8.plugin(file)
    with pytest.raises(DataError) as refused:
        candles_of(open_source("frames_of_mine"), Series.parse(SERIES[0]), 10)
    assert refused.value.got == "a DataFrame"
    process = called("data", "--plugin", file, "--source", "frames_of_mine", "--series", SERIES[0])
    assert (process.returncode, "Traceback" in process.stderr) == (3, False)
    assert "got a DataFrame" in " ".join(process.stdout.split())


@pytest.mark.tf
def test_a_plug_in_does_not_lower_the_recursion_limit_of_v8(halfway: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    limit = sys.getrecursionlimit()
    file.write_text(f"import sys\nsys.setrecursionlimit({limit - 100})\n{halfway.read_text()}")
    v8.plugin(file)
    assert sys.getrecursionlimit() == limit and "halfway" in BASELINES


@pytest.mark.tf
def test_what_failed_half_way_is_taken_back(halfway: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(halfway.read_text() + "\n1 / 0\n")
    with pytest.raises(ProfileError, match=r"ZeroDivisionError: division by zero, line \d+"):
        v8.plugin(file)
    assert "halfway" not in BASELINES


@pytest.mark.tf
def test_each_is_loaded_once_and_a_changed_one_not_over_it(halfway: Path, tmp_path: Path) -> None:
    mine = shutil.copy(halfway, tmp_path / "halfway.py")
    v8.plugin(halfway)
    v8.plugin(mine)  # the same content under the same name
    Path(mine).write_text(halfway.read_text() + "# changed\n")
    with pytest.raises(ProfileError, match=r"got another halfway\.py, "):
        v8.plugin(mine)
    assert [*registry.loaded_plugins] == ["halfway.py"] and list(BASELINES)[-1] == "halfway"


@pytest.mark.tf
def test_commands_that_are_printed_name_it_once(halfway: Path) -> None:
    v8.plugin(halfway)
    assert command("predict", "runs/a") == f"python -m v8 predict runs/a --plugin {halfway}"
    assert command("run", f"--plugin={halfway}") == f"python -m v8 run --plugin={halfway}"
    assert command("run", "--plugin", str(halfway)) == f"python -m v8 run --plugin {halfway}"
    assert command() == "python -m v8"


@pytest.mark.tf
def test_a_feature_is_another_one_when_its_file_changes(tmp_path: Path) -> None:
    for name, text in (("a", DOUBLE), ("b", DOUBLE.replace("double", "triple"))):
        (tmp_path / f"{name}.py").write_text(text)
        v8.plugin(tmp_path / f"{name}.py")
        function = FEATURES[{"a": "double", "b": "triple"}[name]].formula.function
        assert registry.digest_of(function) == {"plugin": registry.loaded_plugins[f"{name}.py"]}
    ours = ancestry("double").digest
    assert registry.digest_of(v8.plugin) == {} and ours != ancestry("triple").digest
    sys.modules["v8_plugin_a"].__digest__ = "0" * 64
    ancestry.cache_clear()
    assert ancestry("double").digest != ours
    ancestry.cache_clear()


def test_an_installed_package_brings_one_by_its_entry_point(
    halfway: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(halfway, tmp_path / "halfway_package.py")
    about = tmp_path / "halfway_package-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: halfway-package\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text("[v8.plugins]\nhalfway = halfway_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry._installed.cache_clear()
    try:
        registry.load_plugins()
        assert [*registry.loaded_plugins] == ["halfway_package==1.2"] and "halfway" in BASELINES
    finally:
        monkeypatch.undo()
        registry._installed.cache_clear()
