"""Small bars in tables: well-formed SVG as long as the numbers say."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from v8.views.markup import share_bar, split_bar


def test_a_share_bar_is_as_long_as_its_share() -> None:
    assert ET.fromstring(share_bar(0.25)).find("rect").get("width") == "24.0"


def test_spans_lie_in_time_order_with_the_embargo_between_them() -> None:
    # 100 rows on 1,000 units: ten units a row; what no span covers stays red.
    root = ET.fromstring(split_bar({"train": (0, 60), "validation": (65, 75), "test": (80, 100)}))
    parts = [(part.get("class"), part.get("x"), part.get("width"), part[0].text) for part in root]
    assert parts == [
        ("embargo", "0.0", "1000.0", "embargo"),
        ("split0", "0.0", "600.0", "train: rows 0 to 59"),
        ("split1", "650.0", "100.0", "validation: rows 65 to 74"),
        ("split2", "800.0", "200.0", "test: rows 80 to 99"),
    ]


def test_a_split_without_rows_is_an_empty_bar() -> None:
    assert len(ET.fromstring(split_bar({}))) == 1


def test_a_hostile_span_stays_text() -> None:
    bar = split_bar({"<script>": (0, 1)})
    assert "<script>" not in bar
    assert ET.fromstring(bar)[1][0].text == "<script>: rows 0 to 0"
