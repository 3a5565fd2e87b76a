"""Making features of the outputs of the package: named by a profile, examined once a process, then computed.

Its version is part of a feature's digest: a model that was trained with another one refuses to forecast.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Final

from v8.columns import OPEN_TIME
from v8.features.feature import Feature, Formula, Past
from v8.features.ta_package.blocks import block_bars_of, in_blocks
from v8.features.ta_package.examination import Findings, examine
from v8.features.ta_package.outputs import (
    FILLING,
    HOME,
    PREFIX,
    RefusedError,
    Wish,
    package_version,
    read_wish,
)

_WAY: Final = 1
"""Raised whenever blocks are computed otherwise."""


def is_package_name(name: str) -> bool:
    """Tell whether a name is meant for the package."""
    return name.startswith(PREFIX)


def one_way(name: str) -> str:
    """Return the one way to write a name; a name that cannot be read stays as it is.

    >>> one_way("ta.adx(window=14)"), one_way("ta.stoch( smooth_window=5,window=10 )"), one_way("close")
    ('ta.adx', 'ta.stoch(window=10, smooth_window=5)', 'close')
    """
    try:
        return read_wish(name).text if is_package_name(name) else name
    except RefusedError:
        return name


def with_filling(name: str) -> str:
    """Write a name so that the package puts its last value where it has none, as in a flat market.

    >>> with_filling("ta.stoch(window=10)")
    'ta.stoch(window=10, fillna=true)'
    """
    wish = read_wish(name)
    return Wish(wish.output, {**wish.parameters, FILLING: True}).text


@cache
def package_feature(name: str) -> Feature:
    """Return the feature of a name.

    Raises:
        RefusedError: If there is none, or it is not written in the one way, or the output must not be one.
    """
    wish = read_wish(name)
    if wish.text != name:
        raise RefusedError(f"{name!r} is written {wish.text}")
    findings = examine(wish)
    return Feature(name, findings.kind, _sentence(wish, findings), _formula(wish, findings), HOME)


def _formula(wish: Wish, findings: Findings) -> Formula:
    context_bars, block_bars = findings.context_bars, block_bars_of(findings.context_bars)
    blocks = {"context_bars": context_bars, "block_bars": block_bars}
    return Formula(
        partial(in_blocks, wish.output),
        (OPEN_TIME, *wish.output.inputs),
        {**wish.parameters, **blocks},
        warmup_bars=context_bars + block_bars - 1,
        version=f"ta {package_version()}, {_WAY}",
        past=Past.WINDOW,
    )


def _sentence(wish: Wish, findings: Findings) -> str:
    name, indicator = wish.output.name, wish.output.indicator.__name__
    block_bars = block_bars_of(findings.context_bars)
    return (
        f"{name}() of {indicator} in ta {package_version()}, {wish.told_parameters}, from "
        f"{findings.context_bars} bars before its block of {block_bars} on, blocks counted from the epoch, "
        f"{findings.unit}"
    )
