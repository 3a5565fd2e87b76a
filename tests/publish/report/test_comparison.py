"""A comparison: spreads over repeats, ratios within a repeat, projections, claims, and its three files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from v8.annexes.comparison.page import (
    CLAIM_NOTE,
    advice,
    cautions,
    comparison_csv,
    comparison_files,
    comparison_page,
    cost_table,
    error_table,
    ratio_table,
    require_same_comparison,
    windows_note,
    write_comparison,
)
from v8.annexes.comparison.results import Comparison
from v8.base.errors import ProfileError
from v8.base.storage import require_own

SECONDS = {
    "candles": 0.5,
    "features": 0.25,
    "windows": 0.25,
    "build": 1.0,
    "compile": 20.0,
    "train": 16.0,
    "validate": 4.0,
    "evaluate": 2.0,
    "save": 1.0,
    "features_warm": 0.01,
}


Measurement = dict[str, Any]


def measured(profile: str, repeat: int, times: float = 1.0, **changes: Any) -> Measurement:
    """Two models, the second without compilation; `times` slower than the plain one."""
    first = {stage: seconds * times for stage, seconds in SECONDS.items()}
    models = [
        {
            "series": series,
            "seconds": seconds,
            "epoch_s": 10.0 * times,
            "windows_per_s": 100.0 / times,
            "epochs_run": 2,
            "best_epoch": best_epoch,
            "relative_mae": {"ohlc": multiple, "bands": None},
            "relative_mae_to_best": {"ohlc": multiple * 1.1, "bands": None},
            "best_baseline": {"ohlc": "har", "bands": "naive"},
            "num_windows": 150,
            "num_shared_windows": 150,
        }
        for series, seconds, best_epoch, multiple in (
            ("BTCUSDT-15m", first, 1, 0.9),
            ("BTCUSDT-1h", {**first, "compile": 0.0}, 2, 1.0),
        )
    ]
    plain = {
        "profile": profile,
        "run": f"comparison/runs/{profile}",
        "repeat": repeat,
        "import_s": 5.0,
        "models": models,
        "horizon_bars": 10,
        "num_parameters": 1_000,
        "flop_per_window": 2e8,
        "own_epochs": 100,
        "precision": "float32",
        "device": "CPU:0",
        "fleet_size": 1,
        "peak_process_bytes": 1_500_000_000,
        "peak_device_bytes": 1_500_000_000,
        "matmul_gflop_per_s": 80.0,
        "to_best": {"ohlc": {"num_better": 1, "num_series": 2, "interval": [0.9812, 1.0034]}},
    }
    return {**plain, **changes}


def spread(middle: float, low: float, high: float) -> dict[str, float]:
    return {"median": middle, "low": low, "high": high}


def compared(*measurements: Measurement, **changes: Any) -> Comparison:
    plain = Comparison(
        command="python -m v8 compare-profiles",
        created_at="2026-11-21T00:00:00+00:00",
        source="vision",
        is_demo=False,
        series=("BTCUSDT-15m", "BTCUSDT-1h"),
        num_bars={"stable": 8_000, "aligned": 8_000},
        epochs=2,
        num_repeats=2,
        baseline="aligned",
        num_workers=4,
        download_s={"BTCUSDT-15m": 1.5, "BTCUSDT-1h": 0.5},
        machine={"cpu": "some cores"},
        versions={"keras": "3.12.0"},
        measurements=measurements,
    )
    return replace(plain, **changes)


def test_a_comparison_is_replaced_by_the_same_one_only(tmp_path: Path) -> None:
    comparison = compared(measured("stable", 1, 3.0), measured("aligned", 1, 1.0))
    require_same_comparison(tmp_path, comparison)  # none is there
    write_comparison(tmp_path, comparison)
    for file in comparison_files(tmp_path):
        require_own("--out", file, is_overwriting=False)
    require_same_comparison(tmp_path, replace(comparison, measurements=(), command="another"))
    for changes in ({"series": ("BTCUSDT-15m",)}, {"epochs": None}, {"num_bars": {"aligned": 8_000}}):
        (key,) = changes
        with pytest.raises(ProfileError, match=f"another {key}[.] .* --overwrite"):
            require_same_comparison(tmp_path, replace(comparison, **changes))


# The machine is twice as slow during the second repeat, for both.
DRIFTING = compared(
    measured("stable", 1, 3.0),
    measured("aligned", 1, 1.0),
    measured("aligned", 2, 2.0),
    measured("stable", 2, 6.0),
)


def test_figures_are_the_median_over_repeats_with_both_ends() -> None:
    figures = DRIFTING.figures["stable"]
    # All stages but compile: 0.5 + 0.25 + 0.25 + 1 + 16 + 4 + 2 + 1 = 25 s, times 3 and 6.
    assert figures["model_s"] == spread(112.5, 75.0, 150.0)
    assert figures["train_s"] == spread(72.0, 48.0, 96.0)
    assert figures["compile_s"] == spread(90.0, 60.0, 120.0)  # only the first model compiled
    assert figures["epochs_to_best"] == spread(1.5, 1.5, 1.5)
    assert figures["ohlc_relative_mae"]["median"] == pytest.approx(0.95)
    assert "bands_multiple" not in figures  # no number in any model
    assert "volatility_multiple" not in figures


def test_a_machine_that_slows_down_does_not_change_the_ratios() -> None:
    ratios = DRIFTING.ratios["stable"]
    assert ratios["model_s"] == spread(3.0, 3.0, 3.0)
    assert ratios["windows_per_s"]["median"] == pytest.approx(1 / 3)
    assert ratios["import_s"] == spread(1.0, 1.0, 1.0)
    assert DRIFTING.ratios["aligned"]["epoch_s"] == spread(1.0, 1.0, 1.0)


def test_forty_models_are_projected_from_the_speed_of_an_epoch() -> None:
    comparison = compared(measured("aligned", 1))
    # Per model 25 s of which 2 epochs of 10 s: 5 s are fixed. 100 epochs: 1,005 s. Ten rounds of four
    # workers: 10,050 s. Once: 5 s of imports and 20 s of compilation.
    assert comparison.figures["aligned"]["projected_40_s"]["median"] == pytest.approx(10_075.0)


def test_on_a_gpu_forty_models_share_one_process() -> None:
    comparison = compared(measured("aligned", 1, device="GPU:0"))
    assert comparison.figures["aligned"]["projected_40_s"]["median"] == pytest.approx(25 + 40 * 1_005.0)


@pytest.mark.parametrize(("fleet_size", "share_pct"), [(1, 25.0), (2, 50.0)])
def test_the_ceiling_counts_all_models_of_a_fleet(fleet_size: int, share_pct: float) -> None:
    # 100 windows/s a model times 0.2 GFLOP are 20 of 80 GFLOP/s.
    comparison = compared(measured("aligned", 1, fleet_size=fleet_size))
    assert comparison.figures["aligned"]["ceiling_pct"]["median"] == pytest.approx(share_pct)


def test_tables_show_spreads_only_where_there_is_one() -> None:
    rows = {row[0]: row[1:] for row in cost_table(DRIFTING).rows}
    assert rows["train"] == ["1 min 12 s (48 s to 1 min 36 s)", "24 s (16 s to 32 s)"]
    assert rows["import, once a process"] == ["5.00 s", "5.00 s"]
    assert rows["features, cold"] == ["1.12 s (750 ms to 1.50 s)", "375 ms (250 ms to 500 ms)"]
    assert rows["training windows per second"] == ["25 (17 to 33)", "75 (50 to 100)"]
    assert rows["epochs to best"] == ["1.5", "1.5"]
    assert rows["parameters"] == ["1,000", "1,000"]
    ratios = {row[0]: row[1:] for row in ratio_table(DRIFTING).rows}
    assert ratios["train"] == ["× 3.00", "× 1.00"]
    assert cost_table(DRIFTING).columns == ["", "stable", "aligned"]


def test_claims_stand_beside_the_projection_and_are_marked() -> None:
    *_, projected, forty, one = error_table(DRIFTING).rows
    assert projected[0].startswith("40 models ")
    assert (forty[0], one[0]) == ("40 models, claimed", "one model, claimed")
    assert forty[1:] == ["40 min 0 s to 1 h 0 min", "20 min 0 s to 30 min 0 s"]
    assert one[1:] == ["1 min 0 s to 1 min 30 s", "30 s to 45 s"]
    mine = error_table(compared(measured("mine", 1), num_bars={"mine": 900}))
    assert not any("claimed" in row[0] for row in mine.rows)
    assert CLAIM_NOTE in comparison_page(DRIFTING) and "no measurement" in CLAIM_NOTE
    assert CLAIM_NOTE not in comparison_page(compared(measured("mine", 1), num_bars={"mine": 900}))


def worth(profile: str, times: float, *multiples: float, **changes: Any) -> Measurement:
    """A measurement of two series with these multiples of naive's error."""
    plain = measured(profile, 1, times, **changes)
    models = [
        {**model, "relative_mae": {"ohlc": multiple, "bands": multiple}}
        for model, multiple in zip(plain["models"], multiples, strict=True)
    ]
    return {**plain, "models": models}


def advised(*measurements: Measurement, **changes: Any) -> list[str]:
    names = [one["profile"] for one in measurements]
    return advice(compared(*measurements, num_bars=dict.fromkeys(names, 8_000), **{"epochs": None} | changes))


def test_the_profile_to_take_stands_with_its_worth_and_its_cost() -> None:
    # Medians of 0.84 and 0.86, and of 0.9 and 1.0; 10,075 s as above, and 5 + 2 x 10,070.
    told = advised(worth("stable", 2.0, 0.84, 0.86), worth("aligned", 1.0, 0.9, 1.0))
    assert [re.findall("stable|aligned|[0-9.]+ %|[0-9]+ h [0-9]+ min", line) for line in told] == [
        ["stable", "15.0 %", "5 h 35 min"],
        ["aligned", "5.0 %", "2 h 47 min"],
    ]


def test_an_error_that_is_hardly_larger_and_costs_less_is_the_one_to_take() -> None:
    slow = worth("stable", 2.0, 0.84, 0.86)
    fast = worth("aligned", 1.0, 0.845, 0.864)
    take, smallest = advised(slow, fast)
    assert take.startswith("Take aligned: 14.5 % lower") and "stable: 15.0 %" in smallest
    assert advised(slow, worth("aligned", 1.0, 0.845, 0.866))[0].startswith("Take stable: ")


def test_what_was_not_trained_out_or_looks_elsewhere_is_not_advised() -> None:
    pair = worth("stable", 2.0, 0.84, 0.86), worth("aligned", 1.0, 0.9, 1.0, horizon_bars=1)
    short, fastest = advised(*pair, epochs=2)
    # So short a training says nothing of errors, and the sentence about the fastest one names none.
    assert fastest == "The fastest is aligned: 40 models take about 2 h 47 min."
    assert short.startswith("No profile is recommended: so short")
    rule = (
        "Where one is recommended, medians that are at most 0.5 points apart count as equal, and it is the "
        "fastest of those with the lowest."
    )
    uneven = advised(*pair)
    assert uneven[0].startswith("No profile is recommended: they") and uneven[1:] == [rule, fastest]
    worse = advised(worth("stable", 2.0, 1.0, 1.02), worth("aligned", 1.0, 1.01, 1.0))
    reason = "No profile is recommended: none has a lower error than the naive forecast."
    assert worse[:2] == [reason, rule]
    models = [{**one, "relative_mae": {"ohlc": None}} for one in pair[0]["models"]]
    nothing = {**pair[0], "models": models}
    assert advised(nothing) == []


def evaluated(profile: str, times: float, num_windows: int, num_shared: int) -> Measurement:
    """A measurement of two series with so many windows each, of which all profiles share some."""
    plain = worth(profile, times, 0.84, 0.86)
    changes = {"num_windows": num_windows, "num_shared_windows": num_shared}
    return {**plain, "models": [{**model, **changes} for model in plain["models"]]}


def test_profiles_that_look_differently_far_back_are_compared_on_the_windows_that_they_share(
    tmp_path: Path,
) -> None:
    long = evaluated("stable", 2.0, 24, 20)
    short = evaluated("aligned", 1.0, 150, 20)
    uneven = compared(long, short, epochs=None)
    (windows,) = windows_note(uneven)
    assert re.search("the 40 windows .* 48 for stable, 300 for aligned", windows)
    assert advice(uneven)[0].startswith("Take aligned: 15.0 % lower")
    page = comparison_page(uneven)
    assert page.index("Take aligned: ") < page.index(windows) < page.index("<table")
    assert page.count(windows) == 1  # no sentence stands twice
    # Which one, and in how many series: the first card.
    card = page[page.index('<section class="card">') : page.index("</section>")]
    assert "aligned, recommended" in card and "15.0 %" in card and "Smallest error in " in card
    assert '"diamond"' in page
    assert error_table(uneven).rows[:2] == [
        ["test windows of all series", "48", "300"],
        ["windows that all share", "40", "40"],
    ]
    write_comparison(tmp_path, uneven)
    content = json.loads((tmp_path / "compare.json").read_text("utf-8"))
    assert (content["num_windows"], content["num_shared_windows"]) == ({"stable": 48, "aligned": 300}, 40)


def test_profiles_that_share_no_window_of_a_series_are_compared_on_the_others() -> None:
    def without_second(profile: str, times: float) -> Measurement:
        plain = evaluated(profile, times, 150, 150)
        none = {"num_shared_windows": 0, "relative_mae": {"ohlc": None, "bands": None}, "best_baseline": {}}
        none["relative_mae_to_best"] = none["relative_mae"]
        return {**plain, "models": [plain["models"][0], {**plain["models"][1], **none}]}

    pair = (without_second("stable", 2.0), without_second("aligned", 1.0))
    some = compared(*pair, epochs=None)
    assert advice(some)[0].startswith("Take aligned: 16.0 % lower")  # that of BTCUSDT-15m
    assert '"BTCUSDT-15m: 16.00 % lower"' in comparison_page(some)
    no_models = [{**each, "models": [each["models"][1]] * 2} for each in pair]
    nothing = compared(*no_models, epochs=None)
    assert re.search("not compared: .* 300 for stable, 300 for aligned", *windows_note(nothing))
    assert advice(nothing) == []


def test_unequal_horizons_and_single_repeats_are_warned_of() -> None:
    assert cautions(DRIFTING) == []
    uneven = compared(measured("stable", 1, horizon_bars=1), measured("aligned", 1), num_repeats=1)
    horizon, repeat = cautions(uneven)
    assert "stable 1, aligned 10" in horizon
    assert "--repeat 3" in repeat
    assert "Near bars are easier" in comparison_page(uneven)


def test_the_files_hold_the_same_figures(tmp_path: Path) -> None:
    write_comparison(tmp_path / "out", DRIFTING)
    files = comparison_files(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in files)
    content = json.loads((tmp_path / "out" / "compare.json").read_text("utf-8"))
    assert content["figures"]["stable"]["model_s"] == {"median": 112.5, "low": 75.0, "high": 150.0}
    assert content["ratios"]["stable"]["model_s"]["median"] == 3.0
    assert content["claims"]["stable"]["model_s"] == [60, 90]
    assert "Projected, not measured" in content["assumption"]
    assert content["measurements"] == [*DRIFTING.measurements]
    lines = list(csv.DictReader((tmp_path / "out" / "compare.csv").read_text("utf-8").splitlines()))
    for line in lines:
        figure = content["figures"][line["profile"]][line["figure"]]
        assert [float(line[end]) for end in ("median", "low", "high")] == [*figure.values()]
        ratio = content["ratios"][line["profile"]].get(line["figure"])
        assert (line["ratio_median"] == "") == (ratio is None)
    assert len(lines) == sum(len(figures) for figures in content["figures"].values())


def test_a_profile_that_failed_is_named_with_its_reason_on_the_page() -> None:
    hostile = "needs 70 bars <script>alert(1)</script>"
    page = comparison_page(compared(measured("aligned", 1), failures={"stable": hostile}))
    assert "needs 70 bars &lt;script&gt;" in page
    assert "<h2>Failed</h2>" in page
    assert "<h2>Failed</h2>" not in comparison_page(DRIFTING)


def test_a_comparison_of_which_nothing_is_left_still_has_its_files(tmp_path: Path) -> None:
    nothing = compared(failures={"stable": "no", "aligned": "no"})
    write_comparison(tmp_path, nothing)
    assert "Where these numbers come from" in (tmp_path / "compare.html").read_text("utf-8")
    assert len(comparison_csv(nothing).splitlines()) == 1


def test_g9_a_simulated_market_is_announced() -> None:
    assert "Simulated market" in comparison_page(replace(DRIFTING, is_demo=True))
    assert "Simulated market" not in comparison_page(DRIFTING)


@pytest.mark.process
def test_the_page_draws_its_charts_in_a_browser(tmp_path: Path, visit: Callable[..., str]) -> None:
    write_comparison(tmp_path, DRIFTING)
    assert "1 min 12 s (48 s to 1 min 36 s)" in visit(tmp_path / "compare.html", num_charts=1)
