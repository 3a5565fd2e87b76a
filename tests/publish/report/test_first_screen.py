"""The first screen: a chip for each difference of errors, and a judgement of the range of prices."""

from __future__ import annotations

import re
from typing import Any

import pytest
from evaluating import let_baselines_err

from v8.base.wording import language
from v8.model.baselines.paths import RangeCoverage
from v8.model.evaluation.leaderboard import rank_results, read_result
from v8.publish.report.charts import plotly
from v8.publish.report.figures import verdict_figures
from v8.publish.report.page import _range_verdict, first_screen


def cards(*metadata: dict[str, Any]) -> list[str]:
    for content in metadata:
        let_baselines_err(content, {"last_close": 0.8, "offset": 3.0})
    screen = first_screen(rank_results(map(read_result, metadata)), None)
    return re.findall(r'<section class="card">.*?</section>', screen)


@pytest.mark.parametrize(
    ("name", "lower", "higher", "than_naive"),
    [
        ("en", "lower error", "higher error", "than the naive forecast"),
        ("zh-TW", "誤差較小", "誤差較大", "相較於單純預測（naive）"),
    ],
)
def test_a_figure_says_its_direction_in_a_word(
    make_metadata: Any, name: str, lower: str, higher: str, than_naive: str
) -> None:
    # The best baseline errs 0.8 times as much as naive.
    for share, words in ((0.1, [lower, higher]), (0.5, [lower, lower]), (-0.1, [higher, higher])):
        with language(name):
            for card in cards(make_metadata("AUSDT-1h", share=share, num_windows=240)):
                figures = re.findall(r"<strong[^>]*>([\d.]+ %)<small>(.*?)</small></strong>", card)
                assert [word for _, word in figures] == words
                assert than_naive in card


def test_a_figure_has_no_colour_where_the_significant_series_differ_from_the_median(
    make_metadata: Any,
) -> None:
    # One of three series is significantly better, but the median of their errors is higher.
    metadata = [make_metadata("AUSDT-1h", share=0.5, num_windows=240)]
    metadata += [make_metadata(name, share=-0.001) for name in ("BUSDT-1h", "CUSDT-1h")]
    for card in cards(*metadata):
        assert '<strong class="unclear">0.1 %<small>higher error</small></strong>' in card
        assert "significantly lower for 1 of 3 series, significantly higher for 0" in card


def test_a_figure_has_a_colour_where_most_series_differ_significantly(make_metadata: Any) -> None:
    for num_sure, style, chip in (
        (1, "unclear", "unclear some"),  # a mark that is half filled
        (2, "unclear", "unclear some"),
        (3, "better", "better"),
    ):
        metadata = []
        for number in range(4):
            share, num_windows = (0.5, 240) if number < num_sure else (0.5, 10)
            metadata.append(make_metadata(f"{'ABCD'[number]}USDT-1h", share=share, num_windows=num_windows))
        rows = rank_results(map(read_result, metadata))
        for card in re.findall(r'<section class="card">.*?</section>', first_screen(rows, None)):
            assert re.findall('<strong class="(.*?)"', card)[0] == style
            assert f'<span class="chip {chip}">significant for {num_sure} of 4 series</span>' in card
        # The diamond of a row follows the same rule as the figure.
        naive, _ = verdict_figures(rows)
        symbols = set(plotly(naive)["data"][-1]["marker"]["symbol"])
        assert symbols == {"diamond" if style == "better" else "diamond-open"}


@pytest.mark.parametrize(
    ("num_windows", "num_inside", "words", "style"),
    [
        (49, 10, "too few windows to tell", "unclear"),
        # Of 100 windows two standard errors are 6.
        (100, 83, "too narrow here", "worse"),
        (100, 85, "about as often as stated", "unclear"),
        (100, 95, "about as often as stated", "unclear"),
        (100, 97, "wider than needed here", "unclear"),
    ],
)
def test_a_range_is_judged_by_the_number_of_its_windows(
    num_windows: int, num_inside: int, words: str, style: str
) -> None:
    assert _range_verdict(RangeCoverage(num_windows, num_inside)) == (words, style)
