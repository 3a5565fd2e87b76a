"""Candles in, future candles out: what is accepted, what is refused, and the same numbers everywhere."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
from described_models import described_features
from evaluating import evaluate
from float32_steps import assert_same_frames
from renamed_models import name_model
from tiny_profiles import tiny_profile
from typer.testing import CliRunner

from v8.base.errors import ArtifactError, DataError
from v8.base.storage import digest_file
from v8.cli.app import app
from v8.data.features import compute_table
from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.data.market.sources.demo import END_S
from v8.data.windows import prepare_series, table_columns
from v8.forecaster.forecaster import Forecaster, LeftOutWarning, SeenCandlesWarning

BAR_S = 900
COLUMNS = ["open", "high", "low", "close", "bb_upper", "bb_lower", "volatility"]

# Many histories here reach into the train span; that this is told is tested in tests/api.
pytestmark = pytest.mark.filterwarnings("ignore:.*in candles of the training")


@pytest.fixture(scope="module")
def loaded(trained_run: Any) -> Forecaster:
    return Forecaster.load(trained_run.folder)


@pytest.fixture(scope="module")
def raw(trained_run: Any) -> pd.DataFrame:
    """Raw candles as users have them: open times in milliseconds as a column."""
    frame = trained_run.candles.to_frame().reset_index()
    frame["open_time"] = trained_run.candles.open_time_s * 1_000
    return frame


@pytest.mark.tf
def test_a_forecast_covers_the_bars_after_the_newest_candle(loaded: Forecaster, raw: pd.DataFrame) -> None:
    forecast = loaded.predict(raw)
    # The demo market's newest candle opens a bar before its end, 2025-01-01T00:00Z.
    assert [str(time) for time in forecast.index] == [
        "2025-01-01 00:00:00+00:00",
        "2025-01-01 00:15:00+00:00",
        "2025-01-01 00:30:00+00:00",
    ]
    assert forecast.index.name == "open_time"
    assert list(forecast.columns) == COLUMNS
    assert (forecast.dtypes == np.float64).all()
    assert (forecast["low"] <= forecast[["open", "close"]].min(axis=1)).all()
    assert (forecast["high"] >= forecast[["open", "close"]].max(axis=1)).all()
    # Price units: an hour of this market moves a few per cent at most.
    assert np.allclose(forecast["close"], raw["close"].iloc[-1], rtol=0.1)


@pytest.mark.tf
def test_a_band_below_zero_is_refused_and_never_printed(loaded: Forecaster, raw: pd.DataFrame) -> None:
    wild = raw.copy()
    wild.loc[wild.index[-1], ["open", "high", "low", "close"]] *= 7  # less than what is refused as a leap
    # Of nineteen closes at 1 and one at 7 the mean is 1.3 and the deviation 1.34: -1.38 times some 93,800.
    refusal = r"above zero, .* got bb_lower -129[0-9.]+ for the bar at 2024-12-31T23:45:00Z\. "
    with pytest.raises(DataError, match=refusal) as caught:
        loaded.predict(wild)
    assert "--accept-revision" not in caught.value.fix
    # What mends candles of the exchange's API is of no use to a frame.
    with pytest.raises(DataError, match="above zero"):
        loaded.forecast_history(wild, start="2025-01-01T00:00")
    live = check_candles(wild, loaded.series, source="live")
    with pytest.raises(DataError, match=refusal + r"Look for a leap .*, run `.* --accept-revision`\."):
        loaded.predict(live)
    archived = check_candles(wild, loaded.series, source="vision")
    with pytest.raises(DataError, match=refusal + r"Look for a leap [^,]*$"):
        loaded.predict(archived)


@pytest.mark.tf
def test_a_history_leaves_out_the_windows_across_a_leap_and_counts_them(
    loaded: Forecaster, raw: pd.DataFrame, trained_run: Any
) -> None:
    wild = raw.copy()
    wild.loc[wild.index[400:], ["open", "high", "low", "close"]] *= 7
    start = pd.Timestamp(int(trained_run.candles.open_time_s[300]), unit="s", tz="UTC")
    with pytest.warns() as told:
        history = loaded.forecast_history(wild, start=start)
    (said,) = [str(one.message) for one in told if one.category is LeftOutWarning]
    assert [one.filename for one in told] == [__file__, __file__]
    # Issued from the close of bar 299 on, the last of 700: 401 windows.
    match = re.fullmatch(
        r"BTCUSDT-15m: (\d+) of 401 windows, issued from (\S+) to (\S+), .*: bb_lower -\d+\.?\d* .*", said
    )
    assert match, said
    num_left_out = int(match[1])
    issued = history.index.unique("issued_at")
    assert len(issued) == 401 - num_left_out and num_left_out >= loaded.lookback_bars
    first, last = (pd.Timestamp(match[group]) for group in (2, 3))
    assert first == pd.Timestamp(int(trained_run.candles.open_time_s[400]) + 900, unit="s", tz="UTC")
    assert not ((issued >= first) & (issued <= last)).any()
    # Before the leap they are what they are without it.
    with pytest.warns(SeenCandlesWarning, match="candles of the training"):
        whole = loaded.forecast_history(raw, start=start, end=first - pd.Timedelta("15min"))
    same = history[history.index.get_level_values("issued_at") < first]
    pd.testing.assert_frame_equal(same, whole, check_exact=True, check_freq=False)
    prices = history[[name for name in history if "volatility" not in str(name)]]
    assert (prices > 0).all(axis=None)
    with pytest.warns(LeftOutWarning, match="of 401 windows"):
        frame = loaded.forecast_history(wild, start=start, as_frame=True)
    ahead = frame.set_index("usable_from")["close_ahead_1"]
    assert ahead[first:last].isna().all() and ahead[issued].notna().all()


@pytest.mark.tf
def test_the_evaluated_numbers_of_the_run_come_back_to_the_bit(loaded: Forecaster, trained_run: Any) -> None:
    """The run's evaluation is rebuilt from the loaded file: sums of errors differ by any single bit."""
    profile = trained_run.profile
    data = prepare_series(compute_table(trained_run.candles, table_columns(profile)), profile)
    again = evaluate(data, loaded.forecast(data.spans["test"].raw_windows()))
    assert again.to_json() == loaded.metadata["evaluation"]


@pytest.mark.tf
def test_each_forecast_of_a_history_is_the_one_made_at_its_time(loaded: Forecaster, trained_run: Any) -> None:
    history = loaded.forecast_history(trained_run.candles)
    # 700 candles less warm-up and all but one row of the first window: one forecast each.
    num_forecasts = 700 - loaded.warmup_bars - 19
    assert len(history) == 3 * num_forecasts
    assert history.index.names == ["issued_at", "step", "open_time"]
    for back in (0, 1, 63, 64, 200, num_forecasts - 1):
        candles = trained_run.candles.newest(700, end_s=int(trained_run.candles.open_time_s[-1 - back]))
        alone = loaded.predict(candles)
        block = history.xs(alone.index[0], level="issued_at").droplevel("step")
        pd.testing.assert_frame_equal(block, alone, check_exact=True, check_freq=False)


@pytest.mark.tf
def test_a_history_can_be_thinned_and_cut_by_the_time_of_issue(loaded: Forecaster, trained_run: Any) -> None:
    whole = loaded.forecast_history(trained_run.candles)
    part = loaded.forecast_history(
        trained_run.candles, stride=4, start="2024-12-31T12:00", end="2024-12-31T18:00+00:00"
    )
    issued = part.index.get_level_values("issued_at").unique()
    # 12:00 to 18:00 holds 25 forecasts a quarter of an hour apart; every fourth is one an hour.
    assert [time.strftime("%H:%M") for time in issued] == [f"{hour}:00" for hour in range(12, 19)]
    pd.testing.assert_frame_equal(part, whole.loc[part.index], check_exact=True)
    assert list(part.index.get_level_values("step")[:4]) == [1, 2, 3, 1]


@pytest.mark.tf
def test_a_history_as_a_frame_stands_beside_the_candle_at_whose_close_it_was_issued(
    loaded: Forecaster, trained_run: Any
) -> None:
    whole = loaded.forecast_history(trained_run.candles)
    candles = trained_run.candles.to_frame()
    frame = loaded.forecast_history(trained_run.candles, as_frame=True)
    pd.testing.assert_frame_equal(frame[candles.columns], candles, check_exact=True)
    assert (frame["usable_from"] == frame.index + pd.Timedelta("15min")).all()
    for number in (loaded.warmup_bars + 19, 400, 699):
        issued = whole.xs(frame["usable_from"].iloc[number], level="issued_at").droplevel("open_time")
        for step, name in ((1, "close"), (3, "close"), (2, "volatility")):
            assert frame[f"{name}_ahead_{step}"].iloc[number] == issued.loc[step, name]
    # One for each candle behind the warm-up and the first window.
    assert frame["close_ahead_1"].isna().sum() == loaded.warmup_bars + 19
    assert frame.filter(like="_ahead_").shape[1] == 3 * whole.shape[1]


def with_hole(candles: Candles, first: int, num_missing: int) -> pd.DataFrame:
    frame = candles.to_frame()
    return frame.drop(frame.index[first : first + num_missing])


@pytest.mark.tf
def test_a_history_leaves_out_windows_across_a_hole(loaded: Forecaster, trained_run: Any) -> None:
    history = loaded.forecast_history(with_hole(trained_run.candles, 350, 2))
    whole = loaded.forecast_history(trained_run.candles)
    before = history[history.index.get_level_values("issued_at") <= trained_run.candles.to_frame().index[350]]
    pd.testing.assert_frame_equal(before, whole.loc[before.index], check_exact=True)
    # Both pieces lose warm-up and first window: 350 and 348 candles remain instead of 700.
    assert len(history) == 3 * (700 - 2 - 2 * (loaded.warmup_bars + 19))


@pytest.mark.tf
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"stride": 0}, "stride .*at least 1 .*; got 0"),
        ({"start": "2026-01-01"}, "start and end; got .* 2024-12-"),
    ],
)
def test_a_back_test_without_a_window_is_refused(
    options: dict[str, Any], match: str, loaded: Forecaster, trained_run: Any
) -> None:
    with pytest.raises(DataError, match=match):
        loaded.forecast_history(trained_run.candles, **options)


@pytest.mark.tf
def test_the_fewest_candles_are_lookback_and_warm_up(loaded: Forecaster, raw: pd.DataFrame) -> None:
    needed = loaded.needed_bars
    assert needed == 20 + loaded.warmup_bars
    enough = loaded.predict(raw.tail(needed))
    # Averages without end have forgotten what lies before, but for one part in a million.
    assert_same_frames(enough, loaded.predict(raw))
    with pytest.raises(
        DataError,
        match=rf"BTCUSDT-15m: .* {needed} unbroken .*"
        rf"\(20 lookback \+ {needed - 20} warm-up\); got {needed - 1}\.",
    ):
        loaded.predict(raw.tail(needed - 1))


@pytest.mark.tf
def test_a_hole_in_the_needed_rows_is_refused_and_placed(loaded: Forecaster, trained_run: Any) -> None:
    # Row 600 of 700 is missing; the next one opens 99 bars before 00:00, at 23:15 two days before.
    with pytest.raises(DataError, match=r"unbroken candles .*; got 99 after .* 2024-12-30T23:15:00Z\."):
        loaded.predict(with_hole(trained_run.candles, 600, 1))


@pytest.mark.tf
def test_the_running_bar_is_not_known_yet(loaded: Forecaster, raw: pd.DataFrame) -> None:
    almost_closed_s = END_S - 1
    cut = loaded.predict(raw.iloc[:-1])
    pd.testing.assert_frame_equal(loaded.predict(raw, now_s=almost_closed_s), cut, check_exact=True)


@pytest.mark.tf
def test_the_age_of_the_newest_candle_is_checked_when_asked_for(
    loaded: Forecaster, raw: pd.DataFrame
) -> None:
    loaded.predict(raw, now_s=END_S + 4 * BAR_S - 1, max_age_bars=3)
    with pytest.raises(
        DataError,
        match=r"at most 3 bars .*; got 4 bars .* 2025-01-01T00:00:00Z and now, 2025-01-01T01:00:00Z",
    ):
        loaded.predict(raw, now_s=END_S + 4 * BAR_S, max_age_bars=3)


@pytest.mark.tf
@pytest.mark.parametrize(
    ("key", "value", "got"),
    [
        ("symbol", "ETHUSDT", "symbol ETHUSDT"),
        ("timeframe", "1h", "timeframe 1h"),
        ("series", "BTCUSDT-1h", "series BTCUSDT-1h"),
    ],
)
def test_a_frame_that_names_another_series_is_refused(
    key: str, value: str, got: str, loaded: Forecaster, raw: pd.DataFrame
) -> None:
    in_attrs = raw.copy()
    in_attrs.attrs[key] = value
    for frame in (raw.assign(**{key: value}), in_attrs):
        with pytest.raises(DataError, match=rf"BTCUSDT-15m: .*; got {got}\."):
            loaded.predict(frame)


@pytest.mark.tf
def test_checked_candles_of_another_series_are_refused(loaded: Forecaster) -> None:
    with pytest.raises(DataError, match=r"BTCUSDT-15m: .*; got ETHUSDT-15m"):
        loaded.predict(open_source("demo").candles(Series("ETHUSDT", "15m"), 30))


@pytest.mark.tf
def test_a_frame_without_times_is_refused_and_one_without_an_unused_volume_is_not(
    loaded: Forecaster, raw: pd.DataFrame
) -> None:
    with pytest.raises(DataError, match=r"column open_time \(or .*; got none among open, high"):
        loaded.predict(raw.drop(columns="open_time"))
    without = loaded.predict(raw.drop(columns="volume"))
    pd.testing.assert_frame_equal(without, loaded.predict(raw))


@pytest.mark.tf
@pytest.mark.parametrize("shape", [(20, 12), (1, 19, 12)])
def test_windows_of_another_shape_are_refused(shape: tuple[int, ...], loaded: Forecaster) -> None:
    with pytest.raises(DataError, match=r"windows have the shape \(N, 20 bars, 12 features\)"):
        loaded.forecast(np.ones(shape, np.float32))


@pytest.mark.tf
def test_a_model_that_is_not_the_recorded_one_is_refused(tmp_path: Path, trained_run: Any) -> None:
    folder = tmp_path / "bad"
    shutil.copytree(trained_run.folder, folder)
    (folder / "model.keras").write_bytes(b"another")
    with pytest.raises(ArtifactError, match=r"model\.keras: .* sha256 .*got a file with sha256"):
        Forecaster.load(folder)
    (folder / "model.keras").unlink()
    with pytest.raises(ArtifactError, match="got no such file"):
        Forecaster.load(folder)


ONE_TASK = {"columns": ["open"], "unit": "quote currency"}
ASTROLOGY = described_features(["close"])[0] | {"name": "astrology"}


def changed_copy(folder: Path, target: Path, **changes: Any) -> Path:
    shutil.copytree(folder, target)
    metadata = json.loads((target / "metadata.json").read_text())
    (target / "metadata.json").write_text(json.dumps(metadata | changes))
    return target


@pytest.mark.tf
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"lookback_bars": 21}, r"metadata\.json says: \(21, 12\) .*; got \(20, 12\)"),
        ({"horizon_bars": 4}, r"model\.keras: .* metadata\.json says"),
        ({"tasks": {"ohlc": ONE_TASK}}, r"model\.keras: .* metadata\.json says"),
        ({"series": "../x"}, r"metadata\.json, key series: "),
        ({"features": "close"}, r"metadata\.json, key features: .*; got 'close'"),
        ({"features": [ASTROLOGY]}, r"key features: .* a plug-in .*; got astrology, "),
        ({"lookback_bars": None}, r"metadata\.json, key lookback_bars: must be as v8 wrote it; got None"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(
    changes: dict[str, Any], match: str, tmp_path: Path, trained_run: Any
) -> None:
    with pytest.raises(ArtifactError, match=match):
        Forecaster.load(changed_copy(trained_run.folder, tmp_path / "bad", **changes))


@pytest.mark.tf
def test_a_feature_that_is_computed_otherwise_now_is_refused(tmp_path: Path, trained_run: Any) -> None:
    features = json.loads((trained_run.folder / "metadata.json").read_text())["features"]
    rsi = next(feature for feature in features if feature["name"] == "rsi")
    rsi["digest"] = "0" * 64
    with pytest.raises(ArtifactError, match=r"feature rsi: this v8 computes it as .*got another formula"):
        Forecaster.load(changed_copy(trained_run.folder, tmp_path / "bad", features=features))


@pytest.mark.tf
def test_the_tables_that_metadata_tell_of_are_needed_beside_the_candles(
    tmp_path: Path, trained_run: Any, loaded: Forecaster, raw: pd.DataFrame
) -> None:
    table = {"file": "rates.csv", "time": "time", "columns": ["rate"], "available_after_s": 0, "max_age_s": 1}
    profile = loaded.metadata["profile"] | {"covariates": [table]}
    copy = Forecaster.load(changed_copy(trained_run.folder, tmp_path / "copy", profile=profile))
    assert copy.companions()
    assert not loaded.companions()
    with pytest.raises(DataError, match=r"rates\.csv: .*columns time, rate"):
        copy.predict(raw, covariates={"rates.csv": pd.DataFrame({"time": [1_700_000_000]})})


TINY = tiny_profile().model_dump(mode="json")


@pytest.mark.tf
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"bar_s": 60}, r"a contradiction in bar_s\."),
        ({"series": "BTCUSDT-1h"}, r"a contradiction in bar_s\."),
        ({"profile": TINY | {"lookback_bars": 7}}, r"a contradiction in profile\.lookback_bars"),
        ({"profile": TINY | {"features": ["close"]}}, r"a contradiction in profile\.features\."),
        ({"profile": TINY | {"name": "../x"}}, r"key profile\.name: must be as v8 wrote it"),
        ({"profile": "tiny"}, r"key profile: "),
    ],
)
def test_metadata_that_contradict_themselves_are_refused(
    changes: dict[str, Any], match: str, tmp_path: Path, trained_run: Any
) -> None:
    with pytest.raises(ArtifactError, match=match):
        Forecaster.load(changed_copy(trained_run.folder, tmp_path / "bad", **changes))


OTHER = {"series": "ETHUSDT-1h", "bar_s": 3_600}


@pytest.mark.tf
def test_a_model_under_another_name_is_refused_whatever_its_metadata_say(
    tmp_path: Path, trained_run: Any
) -> None:
    renamed = changed_copy(trained_run.folder, tmp_path / "ETHUSDT-1h", **OTHER)
    expected = r"model\.keras: .* model of ETHUSDT-1h, .* got .* BTCUSDT-15m\."
    with pytest.raises(ArtifactError, match=expected):
        Forecaster.load(renamed)


@pytest.mark.tf
def test_a_model_from_before_files_named_their_series_is_still_one(tmp_path: Path, trained_run: Any) -> None:
    folder = changed_copy(trained_run.folder, tmp_path / "old")
    name_model(folder, None)
    old, new = (Forecaster.load(each).predict(trained_run.candles) for each in (folder, trained_run.folder))
    pd.testing.assert_frame_equal(old, new)


def poisoned(trained_run: Any, folder: Path, value: float) -> Path:
    """Copy an artefact with one number among its weights replaced, and a digest that fits."""
    shutil.copytree(trained_run.folder, folder)
    model = keras.saving.load_model(folder / "model.keras", compile=False)
    kernels = [weights for weights in model.trainable_variables if len(weights.shape) == 2]
    kernels[0].assign(np.full(kernels[0].shape, value, np.float32))
    model.save(folder / "model.keras")
    content = json.loads((folder / "metadata.json").read_text())
    content["model_sha256"] = digest_file(folder / "model.keras")
    (folder / "metadata.json").write_text(json.dumps(content))
    return folder


@pytest.mark.tf
def test_a_forecast_that_is_no_number_is_refused(tmp_path: Path, trained_run: Any) -> None:
    poisonous = Forecaster.load(poisoned(trained_run, tmp_path / "bad", np.inf))
    with pytest.raises(ArtifactError, match=r"model\.keras: must forecast finite numbers"):
        poisonous.predict(trained_run.candles)
    with pytest.raises(ArtifactError, match=r"model\.keras: must forecast finite numbers"):
        poisonous.forecast_history(trained_run.candles, stride=50)


@pytest.mark.tf
def test_no_command_prints_a_forecast_that_is_no_number(tmp_path: Path, trained_run: Any) -> None:
    folder = poisoned(trained_run, tmp_path / "bad", np.nan)
    words = ["predict", str(folder), "--source", "files", "--data-dir", str(trained_run.candles_dir)]
    for form in ("table", "csv", "json"):
        result = CliRunner().invoke(app, [*words, "--allow-old", "--format", form])
        assert (result.exit_code, result.stdout) == (3, "")
        assert "must forecast finite numbers" in result.stderr.splitlines()[-1]
