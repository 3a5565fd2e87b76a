"""The one palette of pages and pictures: each colour by its name, on light paper and on dark.

Charts are made in the light colours. A page writes those as names, `$blue` for `--blue` of its style sheet,
so that it follows the reader's setting; no two names share a light colour.
"""

from __future__ import annotations

from typing import Any, Final

COLOURS: Final = {
    "paper": ("#fbfbf9", "#14171a"),
    "card": ("#ffffff", "#1c2024"),
    "ink": ("#1c2024", "#e6e9ec"),
    "soft": ("#5f6873", "#9aa4af"),
    "rule": ("#e1e4e8", "#31373d"),
    "blue": ("#1769aa", "#63b3ed"),
    "orange": ("#c2571a", "#f0955a"),
    "other": ("#8a94a0", "#7d8793"),
    "purple": ("#7a5bb5", "#b79cf0"),
    "loud": ("#8f1d1d", "#b02a2a"),
    "gain": ("#2f9e83", "#4cc3a5"),
    "loss": ("#cf5468", "#ef7f8f"),
    "fan": ("rgba(23, 105, 170, .16)", "rgba(99, 179, 237, .22)"),
    "pale": ("#b9c2cc", "#55606b"),
    "teal": ("#7fb7be", "#5f9ea0"),
    "deep": ("#4f8a8b", "#8fd0c6"),
    "sand": ("#e0b252", "#e3bd6d"),
}
"""By name: the colour on light paper and the one on dark."""

LIGHT: Final = {name: light for name, (light, _) in COLOURS.items()}
DARK: Final = {name: dark for name, (_, dark) in COLOURS.items()}

_STAGES: Final = ("pale", "teal", "deep", "sand", "orange", "blue", "purple", "soft", "loss", "gain")
STAGES: Final = tuple(LIGHT[name] for name in _STAGES)
"""Colours of stages, in the order in which they happen."""

_LINES: Final = ("other", "purple", "loss", "gain", "orange", "soft", "sand")
LINES: Final = tuple(LIGHT[name] for name in _LINES)
"""Colours of lines that stand beside the model's, which alone is blue."""

DASHES: Final = ("dot", "solid", "dash", "dashdot", "longdash", "longdashdot")
"""Dashes of lines, by Plotly's names."""

_NAMES: Final = {colour: f"${name}" for name, colour in LIGHT.items()}


def line_style(place: int) -> dict[str, Any]:
    """Return colour, dash and width of the line at a place, 0 or above: no two places look the same.

    >>> line_style(0), line_style(43)
    ({'color': '#8a94a0', 'dash': 'dot', 'width': 2}, {'color': '#7a5bb5', 'dash': 'solid', 'width': 3})
    """
    # Seven colours and six dashes have no common divisor, so all 42 pairs come before the first comes again.
    pair = {"color": LINES[place % len(LINES)], "dash": DASHES[place % len(DASHES)]}
    return pair | {"width": 2 + place // (len(LINES) * len(DASHES))}


def named(value: Any) -> Any:
    """Return JSON values with every light colour of the palette written as its name.

    >>> named({"color": ["#1769aa", "#123456"]})
    {'color': ['$blue', '#123456']}
    """
    if isinstance(value, dict):
        return {key: named(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [named(each) for each in value]
    return _NAMES.get(value, value) if isinstance(value, str) else value


def variables(colours: dict[str, str]) -> str:
    """Return colours as variables of a style sheet.

    >>> variables({"blue": "#1769aa", "orange": "#c2571a"})
    '--blue: #1769aa; --orange: #c2571a;'
    """
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
