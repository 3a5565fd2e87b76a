"""Companions: what lies beside the candles of a series, or an error that says what lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from v8.base.errors import DataError
from v8.data.features import compute_table
from v8.data.market.candles import Candles
from v8.data.market.companions import Companions
from v8.data.market.series import Series
from v8.data.market.sources import CandleSource, CutOffSource, open_source
from v8.profile.indicators import covariate_inputs
from v8.profile.settings import TableSettings

ETH = Series("ETHUSDT", "15m")
BTC = Series("BTCUSDT", "15m")
NAMES = ("close", "BTCUSDT.close")
DEMO = open_source("demo")
NEWEST_S = int(DEMO.candles(ETH, 1).open_time_s[0])


@pytest.fixture
def files(tmp_path: Path) -> CandleSource:
    """Candles of two coins, of which one lacks the eleventh newest bar and the newest two."""
    DEMO.candles(ETH, 200).to_frame().to_csv(tmp_path / "ETHUSDT-15m.csv")
    frame = DEMO.candles(BTC, 200).to_frame()
    frame.drop(frame.index[[-11, -2, -1]]).to_csv(tmp_path / "BTCUSDT-15m.csv")
    return open_source("files", data_dir=tmp_path)


def test_a_bar_that_another_series_lacks_is_left_out_and_counted(files: CandleSource) -> None:
    candles = Companions(covariate_inputs(NAMES)).candles(files, ETH, 100)
    own = files.candles(ETH, 200)
    other = files.candles(BTC, 200)
    shared = np.intersect1d(own.open_time_s, other.open_time_s)
    # A hundred candles up to the newest that both have, without the one between that is missing.
    assert candles.open_time_s.tolist() == shared[-99:].tolist()
    assert candles.segment.tolist() == [0] * 91 + [1] * 8
    assert candles.report.num_alone == 1
    assert candles.report.lacking == {"BTCUSDT-15m": 3}
    assert "1 without a covariate" in candles.report.summary()
    assert "3 bars lack BTCUSDT-15m" in candles.report.summary()
    assert candles.report.num_read == candles.report.num_kept + sum(candles.report.dropped().values())
    chosen = np.isin(other.open_time_s, candles.open_time_s)
    np.testing.assert_array_equal(candles.covariates["BTCUSDT.close"], other.column("close")[chosen])
    assert candles.report.num_newer == 0


def test_the_same_candles_are_found_again_when_what_lacked_has_come(files: CandleSource) -> None:
    candles = Companions(covariate_inputs(NAMES)).candles(files, ETH, 100)
    frame = DEMO.candles(BTC, 200).to_frame()
    frame.drop(frame.index[-11]).to_csv(Path(files.folder) / "BTCUSDT-15m.csv")  # type: ignore[attr-defined]
    again = Companions(covariate_inputs(NAMES)).candles(files, ETH, 100, int(candles.open_time_s[-1]))
    assert again.digest == candles.digest
    assert len(Companions(covariate_inputs(NAMES)).candles(files, ETH, 100)) == 99


def test_a_forecast_needs_all_beside_the_newest_candle(files: CandleSource) -> None:
    whole = DEMO.candles(ETH, 40)
    rates = TableSettings(file="rates.csv", time="time", columns=("rate",), available_after_s=0, max_age_s=1)
    rows = {"time": [int(at_s) + 900 for at_s in whole.open_time_s if at_s != NEWEST_S - 9_000]}
    covariates = {"rates.csv": rows | {"rate": [0.1] * 39}}
    # Of the table a candle lacks, too, but not at the end: that is no reason.
    with pytest.raises(
        DataError,
        match=r"ETHUSDT-15m: .*got BTCUSDT-15m up to the.*2024-12-31T23:15:00Z.*2024-12-31T23:45:00Z",
    ):
        Companions(covariate_inputs((*NAMES, "csv.rate")), [rates], covariates).newest(files, ETH, 20)
    assert len(Companions(covariate_inputs(NAMES)).newest(DEMO, ETH, 20)) == 20


def test_candles_without_covariates_are_the_source_s_own() -> None:
    companions = Companions(covariate_inputs(("close", "rsi")))
    assert not companions
    own = companions.candles(DEMO, ETH, 30)
    assert own.digest == DEMO.candles(ETH, 30).digest
    assert own.report.lacking == {}
    assert companions.with_neighbours([ETH]) == [ETH]
    assert Companions(covariate_inputs(NAMES)).with_neighbours([ETH, BTC]) == [ETH, BTC]


def test_a_neighbour_that_nobody_has_is_named(tmp_path: Path) -> None:
    DEMO.candles(ETH, 50).to_frame().to_csv(tmp_path / "ETHUSDT-15m.csv")
    with pytest.raises(DataError, match=r"BTCUSDT-15m from files: .*got ETHUSDT-15m.csv"):
        Companions(covariate_inputs(NAMES)).candles(open_source("files", data_dir=tmp_path), ETH, 30)
    with pytest.raises(DataError, match=r"ETHUSDT-15m: .*got those of ETHUSDT-15m alone"):
        Companions(covariate_inputs(NAMES)).joined(DEMO.candles(ETH, 30))


def test_candles_of_another_time_never_meet_and_the_error_tells_both_times() -> None:
    old = DEMO.candles(BTC, 50, NEWEST_S - 100 * 900)
    span = "; BTCUSDT-15m has 2024-12-30T10:30:00Z to 2024-12-30T22:45:00Z"
    expected = f"covariates BTCUSDT-15m; got none of 30, .*{span}"
    with pytest.raises(DataError, match=expected):
        Companions(covariate_inputs(NAMES), in_memory={"BTCUSDT": old}).joined(DEMO.candles(ETH, 30))


def test_what_is_given_and_never_read_is_a_slip_of_the_pen() -> None:
    for given in ({"BTCUSD": []}, {"BTCUSDT-15m": []}, {"funding": []}):
        with pytest.raises(
            DataError, match=f"covariates of the features: BTCUSDT; got '{next(iter(given))}'"
        ):
            Companions(covariate_inputs(NAMES), in_memory=given)
    with pytest.raises(DataError, match=r"covariates: .*got 'BTCUSDT'"):
        Companions(covariate_inputs(("close",)), in_memory={"BTCUSDT": []})


def test_too_short_a_neighbour_is_told_as_what_lacks() -> None:
    names = ("close", "BTCUSDT.range_240")
    short = DEMO.candles(BTC, 50)
    joined = Companions(covariate_inputs(names), in_memory={"BTCUSDT": short}).joined(DEMO.candles(ETH, 300))
    with pytest.raises(
        DataError,
        match=r"features of ETHUSDT-15m: .*got 50 candles, at most 50 .*; 250 bars lack BTCUSDT-15m",
    ):
        compute_table(joined, names)


def test_a_neighbour_without_volumes_cannot_give_what_is_made_of_them() -> None:
    def silent(candles: Candles) -> Candles:
        values = candles.values.copy()
        values[:, -1] = np.nan
        return replace(candles, values=values)

    covariates = {"BTCUSDT": silent(DEMO.candles(BTC, 30))}
    assert len(Companions(covariate_inputs(NAMES), in_memory=covariates).joined(DEMO.candles(ETH, 30))) == 30
    with pytest.raises(DataError, match=r"BTCUSDT-15m: .*got candles without a"):
        Companions(covariate_inputs(("BTCUSDT.volume_norm",)), in_memory=covariates).joined(
            DEMO.candles(ETH, 30)
        )


def test_a_table_that_ends_leaves_bars_without_a_value() -> None:
    table = TableSettings(
        file="rates.csv", time="time", columns=("rate",), available_after_s=0, max_age_s=8 * 3_600
    )
    covariates = {"rates.csv": {"time": [NEWEST_S - 9 * 3_600], "rate": [0.5]}}
    own = DEMO.candles(ETH, 60)
    found = Companions(covariate_inputs(("csv.rate",)), [table], covariates).joined(own)
    # It counts for bars that close from its time until eight hours later: 33 of a quarter of an hour each.
    assert set(found.covariates["csv.rate"].tolist()) == {0.5}
    assert found.open_time_s[[0, -1]].tolist() == [NEWEST_S - 37 * 900, NEWEST_S - 5 * 900]
    assert found.report.lacking == {"rates.csv": 60 - 33}


def test_a_back_test_shows_neighbours_as_far_as_its_series() -> None:
    cut = CutOffSource(DEMO, {str(ETH): NEWEST_S - 10 * 900})
    assert (
        int(Companions(covariate_inputs(NAMES)).candles(cut, ETH, 20).open_time_s[-1]) == NEWEST_S - 10 * 900
    )
    assert int(cut.candles(BTC, 20).open_time_s[-1]) == NEWEST_S - 10 * 900


def test_what_lies_beside_candles_is_part_of_their_digest_and_cut_with_them() -> None:
    candles = Companions(covariate_inputs(NAMES)).candles(DEMO, ETH, 40)
    other = replace(candles, covariates={"BTCUSDT.close": candles.covariates["BTCUSDT.close"] * 2})
    assert len({candles.digest, other.digest, DEMO.candles(ETH, 40).digest}) == 3
    np.testing.assert_array_equal(
        candles.newest(10).covariates["BTCUSDT.close"], candles.covariates["BTCUSDT.close"][-10:]
    )
