"""A measuring process: one contender alone, so that its threads and its library are its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

from training_bench.series import load_sized_profile
from training_bench.turn import RefusedError
from v8.base.hardware import process_variables
from v8.runs.machine import choose_loops, loops_in_environment

TURNS: Final = {
    "matmul": "keras_turns:matmul_turn",
    "stock": "keras_turns:stock_turn",
    "product": "keras_turns:product_turn",
    "fleet": "keras_turns:fleet_turn",
    "quality": "keras_turns:quality_turn",
    "torch": "torch_peer:torch_turn",
    "torch_matmul": "torch_peer:matmul_turn",
}
"""Module and function by kind of contender; imported when threads are configured, and only where wanted."""


def serve(spec: dict[str, Any], orders: Iterable[str] = sys.stdin) -> None:
    """Get ready, say so or what this machine lacks, then measure for as many seconds as each order says.

    Args:
        spec: `kind`, of `TURNS` or "backend"; `is_single_threaded`; and what that kind needs.
        orders: Lines.
    """
    if spec["is_single_threaded"]:
        os.environ.update(process_variables("cpu"))  # the product's own way to make a worker single-threaded
        if spec["kind"] in {"product", "fleet"} and spec["format"] == "float32":
            profile = load_sized_profile(spec)
            loops = choose_loops(profile, on_message=lambda text: print(text, file=sys.stderr))
            with loops_in_environment(loops):
                _take_turns(spec, orders)
            return
    _take_turns(spec, orders)


def _take_turns(spec: dict[str, Any], orders: Iterable[str]) -> None:
    """Do what `serve` says, in a process that has its settings."""
    if spec["kind"] == "backend":
        from v8.model.training.probe import describe_backend  # noqa: PLC0415 - it starts the backend

        answer(describe_backend())
        return
    module, _, function = TURNS[spec["kind"]].partition(":")
    try:
        turn = getattr(import_module(f"training_bench.{module}"), function)(spec)
    except RefusedError as error:
        answer({"refusal": str(error)})
        return
    answer({})
    for line in orders:
        answer(turn(float(line)))


def answer(figures: dict[str, Any]) -> None:
    """Write figures to standard output as one line of JSON."""
    print(json.dumps(figures), flush=True)
