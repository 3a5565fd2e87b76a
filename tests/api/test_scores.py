"""The board: models, frames, runs and baselines beside naive and the best baseline; saved, read, added to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from tiny_profiles import tiny_profile

import v8
from v8.base.errors import ArgumentError, ArtifactError
from v8.data.features import compute_table
from v8.data.market.series import iso
from v8.data.windows import SeriesData, prepare_series, table_columns
from v8.model.baselines.baselines import BASELINES, Baseline, reference_baseline
from v8.model.evaluation.evaluation import evaluate_test_span
from v8.profile.profile import Profile
from v8.profile.tasks import TASKS

pytestmark = pytest.mark.tf

SERIES = "BTCUSDT-15m"


class Halfway:
    """Forecasts half of the way from zero, which is near the naive forecast, to the targets."""

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def predict(self, dataset: Any, verbose: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        batches = [targets for _, targets in dataset.as_numpy_iterator()]
        return {task: self.share * np.concatenate([each[task] for each in batches]) for task in batches[0]}


@pytest.fixture(scope="module")
def profile() -> Profile:
    return tiny_profile()


@pytest.fixture(scope="module")
def data(trained_run: Any, profile: Profile) -> SeriesData:
    return prepare_series(compute_table(trained_run.candles, table_columns(profile)), profile)


def frame_of(data: SeriesData, **methods: np.ndarray[Any, Any]) -> pd.DataFrame:
    """Lay out closes of every window of the test span, shape (N, H), as Nixtla does."""
    span = data.spans["test"]
    opens_s = span.table.open_time_s[span.anchors].astype(np.int64)
    steps = np.arange(1, span.horizon_bars + 1)
    ds = opens_s[:, None] + steps * span.table.series.bar_s
    keys = {
        "unique_id": SERIES,
        "ds": pd.to_datetime(ds.ravel(), unit="s"),
        "cutoff": pd.to_datetime(np.repeat(opens_s, len(steps)), unit="s"),
    }
    return pd.DataFrame(keys | {name: values.ravel() for name, values in methods.items()})


@pytest.mark.parametrize("scaling", ["anchored", "ranged", "standard"])
def test_outputs_become_prices_whatever_the_scaling(scaling: str, trained_run: Any) -> None:
    features = (*tiny_profile().features, *(["recent_range"] if scaling == "ranged" else []))
    profile = tiny_profile(scaling=scaling, features=features)
    table = v8.evaluate(Halfway(1.0), trained_run.candles, profile, series=SERIES).table
    mine = table[table["method"] == "model"]
    assert mine["task"].tolist() == list(profile.tasks)
    assert (mine["relative_mae"] < 1e-3).all()  # targets are in single precision


def test_a_model_has_the_numbers_of_an_evaluation(
    trained_run: Any, profile: Profile, data: SeriesData
) -> None:
    board = v8.evaluate(Halfway(), trained_run.candles, profile, series=SERIES)
    table = board.table.set_index(["task", "method"])
    span = data.spans["test"]
    forecasts = {
        task: data.scaling.unscale_targets(span, task, 0.5 * data.scaling.scale_targets(span, task))
        for task in profile.tasks
    }
    evaluation, _ = evaluate_test_span(data, forecasts)
    for task in profile.tasks:
        row = table.loc[task, "model"]
        assert row["num_windows"] == evaluation.num_windows
        for baseline, ending in (("naive", ""), (evaluation.best_baseline(task), "_to_best")):
            expected = evaluation.relative_error(task, baseline=baseline)
            assert row[f"relative_mae{ending}"] == pytest.approx(expected, rel=1e-4)
            assert table.loc[task, baseline][f"relative_mae{ending}"] == 1.0
    assert table.index.get_level_values("task").unique().tolist() == list(profile.tasks)


def test_frames_and_models_stand_on_one_table_on_the_windows_that_all_have(
    trained_run: Any, profile: Profile, data: SeriesData
) -> None:
    span = data.spans["test"]
    close = span.actual["ohlc"][:, :, 3]
    naive = np.repeat(span.last_close[:, None], span.horizon_bars, axis=1)
    frame = frame_of(data, perfect=close, still=naive, **{"still-lo-90": 0 * naive})
    frame = frame[frame["cutoff"] >= frame["cutoff"].iloc[10 * span.horizon_bars]]
    frame.loc[frame.index[-1], "still"] = np.nan  # its last window is not whole
    methods = {"mine": Halfway(), "frame": frame}
    table = v8.evaluate(methods, trained_run.candles, profile, series=SERIES).table
    assert set(table["method"]) == {"mine", "perfect", "still", "naive", reference_baseline("ohlc")}
    assert set(table["task"]) == {"close"}
    assert set(table["num_windows"]) == {len(span) - 11} and set(table["num_steps"]) == {span.horizon_bars}
    by_method = table.set_index("method")
    assert by_method.loc["perfect", "mae"] == 0.0 and table["method"].iloc[0] == "perfect"
    assert by_method.loc["still", "relative_mae"] == pytest.approx(1.0)
    # As `v8.export` lays them out, with a column for what is forecast: of one only that one is evaluated.
    table = v8.evaluate(frame.assign(column="close"), trained_run.candles, profile, series=SERIES).table
    assert set(table["task"]) == {"close"}
    # Fewer steps, where a method has no more.
    short = frame[frame["ds"] - frame["cutoff"] <= pd.Timedelta(minutes=15)][["ds", "cutoff", "perfect"]]
    assert set(v8.evaluate(short, trained_run.candles, profile, series=SERIES).table["num_steps"]) == {1}


def test_what_is_no_forecast_is_refused(trained_run: Any, profile: Profile, data: SeriesData) -> None:
    raw = trained_run.candles.to_frame().reset_index()

    def refused(forecasts: Any, **options: Any) -> str:
        with pytest.raises(ArgumentError) as error:
            v8.evaluate(forecasts, **{"candles": raw, "profile": profile, "series": SERIES} | options)
        return str(error.value)

    frame = frame_of(data, mine=np.ones((len(data.spans["test"]), data.spans["test"].horizon_bars)))
    assert "got [1.0]" in refused([1.0])
    assert "an empty mapping" in refused({})
    assert "got the columns" in refused(frame[["ds", "mine"]])
    for by_series in (frame, trained_run.path):
        assert "candles without a name" in refused(by_series, series=None)
    assert "0 windows of mine" in refused(frame.assign(unique_id="ETHUSDT-15m"))
    assert f"with {SERIES}" in refused(trained_run.path, candles={"ETHUSDT-15m": raw}, series=None)
    assert str(trained_run.path) in refused(v8.load(trained_run.path, SERIES))
    for late in ("7min", "-10h"):  # no opening of a bar; not after the cutoff
        assert "ds 2" in refused(frame.assign(ds=frame["ds"] + pd.Timedelta(late)))
    assert "several for" in refused(pd.concat([frame, frame]))
    assert "such as 'x'" in refused(frame.assign(mine="x"))
    assert "got a median of 1 " in refused(frame)
    assert "takes (None, 5, 3)" in refused(SimpleNamespace(predict=print, input_shape=(None, 5, 3)))
    assert "Did you mean frontier" in refused("fronteer")
    of_volatility = frame.assign(column="volatility").rename(columns={"mine": "theirs"})
    assert "got close, volatility" in refused({"close": frame, "volatility": of_volatility})
    assert "got other numbers" in refused(Halfway(np.nan))
    assert "got 'closed'" in refused(frame, column="closed")
    assert "mine several times" in refused({"mine": Halfway(), "theirs": frame.assign(other=1.0)})
    assert "got 'nobody'" in refused("nobody")
    assert "got 'other'" in refused(Halfway(), about={"other": {}})
    assert "got {'license': 'mit'}" in refused(Halfway(), about={"model": {"license": "mit"}})
    days = [{"trained_until": until} for until in ("NaT", "June", "2025", 2024, "2024-13-01")]
    for fact in ({"could_know_candles": "no"}, {"licence": 1}, {"kind": None}, *days):
        assert f"got {next(iter(fact.values()))!r}" in refused(Halfway(), about={"model": fact})
    assert "got ETHUSDT-15m" in refused(Halfway(), candles={SERIES: raw}, series="ETHUSDT-15m")
    for name in ("naive", reference_baseline("ohlc"), reference_baseline("volatility")):
        assert f"called {name}" in refused({name: Halfway()})
    assert "called naive" in refused({"naive": frame}) and "called naive" in refused({"naive": "ewma"})

    class Narrow(Halfway):
        def predict(self, dataset: Any, verbose: int = 0) -> Any:
            return {task: values[:, :1] for task, values in super().predict(dataset).items()}

    assert " output ohlc of shape" in refused(Narrow())

    class Unnamed(Halfway):
        def predict(self, dataset: Any, verbose: int = 0) -> Any:
            return {"prices": super().predict(dataset)["ohlc"]}

    assert "the outputs prices" in refused(Unnamed())

    class Misfit(Halfway):
        def predict(self, dataset: Any, verbose: int = 0) -> Any:
            raise ValueError("expected shape=(None, 5, 3)")

    assert "got expected shape=(None, 5, 3)" in refused(Misfit())


def runs_board(trained_run: Any, profile: Profile) -> v8.Board:
    """Put a run, a run of the same profile under another name, a model and a baseline on one board."""
    methods = {"run": trained_run.path, "again": v8.Run(trained_run.path), "mine": Halfway(), "ewma": "ewma"}
    about = {"mine": {"kind": "half of the truth", "licence": "mit", "trained_until": "2100-01-01"}}
    return v8.evaluate(methods, trained_run.candles, profile, series=SERIES, about=about)


def test_runs_models_and_baselines_stand_on_one_board(trained_run: Any) -> None:
    profile = trained_run.profile
    board = runs_board(trained_run, profile)
    table = board.table.set_index(["task", "method"])
    metadata = v8.Run(trained_run.path)[SERIES].about
    for task in profile.tasks:
        expected = metadata.evaluation.relative_error(task)
        assert table.loc[(task, "run"), "relative_mae"] == pytest.approx(expected, rel=1e-4)
        assert table.loc[(task, "again"), "relative_mae"] == table.loc[(task, "run"), "relative_mae"]
        assert table.loc[(task, "run"), "num_windows"] == metadata.evaluation.num_windows
        ewma = metadata.evaluation.relative_error(task, forecaster="ewma")
        assert table.loc[(task, "ewma"), "relative_mae"] == pytest.approx(ewma)
        assert table.loc[(task, "ewma"), "win_rate"] == float(ewma < 1.0)
    methods = board.methods
    assert methods["could_know_candles"].to_dict() | {"run": "no", "mine": "yes", "ewma": "no"} == (
        methods["could_know_candles"].to_dict()
    )
    assert methods.loc["mine", "licence"] == "mit"
    assert methods.loc["run", "trained_until"] == iso(metadata.trained_until_s)


def test_a_saved_board_is_computed_again_and_added_to_without_candles(
    trained_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = runs_board(trained_run, trained_run.profile)
    files = board.save(tmp_path / "board")
    assert {file.name for file in files} == {file.name for file in (tmp_path / "board").iterdir()}
    again = v8.Board.load(tmp_path / "board")
    pd.testing.assert_frame_equal(again.table, board.table)
    pd.testing.assert_frame_equal(again.scores, board.scores)
    pd.testing.assert_frame_equal(again.methods, board.methods)
    # Its best baselines are its own: those of another version of v8 may be others.
    monkeypatch.setattr("v8.api.scores.reference_baseline", lambda task: "drift")
    pd.testing.assert_frame_equal(v8.Board.load(tmp_path / "board").table, board.table)
    monkeypatch.undo()
    # The numbers by pandas alone, as the card of the data set says.
    rows = board.forecasts
    of_task = rows[rows["column"].isin(TASKS["bands"].columns)]
    errors = (of_task["run"] - of_task["y"]).abs() / of_task["scale"]
    by_hand = errors.mean() / ((of_task["naive"] - of_task["y"]).abs() / of_task["scale"]).mean()
    table = board.table.set_index(["task", "method"])
    assert table.loc[("bands", "run"), "relative_mae"] == pytest.approx(by_hand, rel=1e-12)
    # A copy of a method under another name has its numbers.
    theirs = rows[["unique_id", "ds", "cutoff", "column", "run"]]
    more = again.add("theirs", theirs, about={"could_know_candles": False}).table
    of_both = more[more["method"].isin(["run", "theirs"])].groupby("task")["relative_mae"]
    assert (of_both.nunique() == 1).all() and (of_both.size() == 2).all()
    fewer = again.add("theirs", theirs.iloc[:-1])
    assert fewer.table["num_windows"].min() == board.table["num_windows"].min() - 1
    # Closes as log returns: of another size than prices.
    returns = theirs.assign(run=np.log(theirs["run"] / theirs["run"].median()))
    lacking = theirs.drop(columns="column")
    for name, frame in (("run", theirs), ("new", lacking), ("new", theirs.iloc[:0]), ("new", returns)):
        with pytest.raises(ArgumentError):
            again.add(name, frame)
    # A card with the head that the Hub reads, and a page; nothing else is replaced.
    head, *_ = (tmp_path / "board" / "README.md").read_text("utf-8").removeprefix("---").split("---")
    names = [config["data_files"] for config in yaml.safe_load(head)["configs"]]
    assert all((tmp_path / "board" / name).is_file() for name in names)
    assert "<h1>" in (tmp_path / "board" / "board.html").read_text("utf-8")
    board.save(tmp_path / "board")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ArgumentError):
        board.save(tmp_path / "mine")
    with pytest.raises(ArtifactError):
        v8.Board.load(tmp_path / "mine")


def test_what_one_method_lacks_is_left_out_for_all(trained_run: Any, profile: Profile) -> None:
    candles = {name: trained_run.candles.to_frame().reset_index() for name in (SERIES, "ETHUSDT-15m")}
    board = v8.evaluate({"both": Halfway(), "ewma": "ewma"}, candles, profile, column="close")
    assert set(board.table["num_series"]) == {2} and set(board.scores["unique_id"]) == {*candles}
    one = {"both": Halfway(), "one": {SERIES: Halfway(0.4)}}
    board = v8.evaluate(one, candles, profile, column="close")
    assert set(board.table["num_series"]) == {1} and set(board.scores["unique_id"]) == {SERIES}
    # A run forecasts only what is newer than its training, here nothing: all candles are shifted back.
    early = trained_run.candles.to_frame().reset_index()
    early["open_time"] -= pd.Timedelta(days=3650)
    with pytest.raises(ArgumentError) as error:
        v8.evaluate({"run": trained_run.path}, early, profile, series=SERIES)
    assert "0 windows of run" in error.value.got


@pytest.mark.usefixtures("unloaded")
def test_until_when_a_plug_in_was_trained_is_unknown_until_somebody_says(
    trained_run: Any, profile: Profile
) -> None:
    fits = []

    def fit(train: Any, scaling: Any) -> Any:
        fits.append(train)
        return lambda span: {"ohlc": 1.001 * span.naive["ohlc"]}

    BASELINES.register(Baseline("foreign", "A model of others.", "a toy of this test", fit))
    methods = {"theirs": "foreign", "again": "foreign", "ewma": "ewma"}
    board = v8.evaluate(methods, trained_run.candles, profile)
    assert set(board.table.loc[board.table["method"] == "theirs", "task"]) == {"ohlc"} and len(fits) == 1
    assert board.methods.loc["theirs", ["trained_until", "could_know_candles"]].tolist() == ["", "unknown"]
    about = {"theirs": {"trained_until": "2000-01-01", "licence": "apache-2.0"}}
    evaluated = v8.evaluate({"theirs": "foreign"}, trained_run.candles, profile, about=about)
    assert evaluated.methods.loc["theirs"].tolist()[1:] == ["2000-01-01T00:00:00Z", "apache-2.0", "no"]
