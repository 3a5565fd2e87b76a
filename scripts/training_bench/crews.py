"""The processes of the contenders, and their turns: one contender measures while all others wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import psutil

from training_bench.contenders import Contender
from training_bench.turn import RefusedError, load_sized_profile
from v8.base.hardware import num_usable_cores, process_variables
from v8.runs.machine import choose_loops, loops_in_environment

PROGRAM = Path(__file__).resolve().parents[1] / "bench_training.py"
BUSY_PCT = 10.0
"""Use of all cores by others from which a turn had better wait, percent."""
MATMUL_S = 1.0
"""Most seconds of a matmul's turn: it needs no longer."""


TURNS: Final = {
    "matmul": "keras_turns:matmul_turn",
    "stock": "keras_turns:stock_turn",
    "product": "keras_turns:product_turn",
    "fleet": "keras_turns:fleet_turn",
    "torch": "torch_peer:torch_turn",
    "torch_matmul": "torch_peer:matmul_turn",
}
"""Module and function by kind of contender; imported when threads are configured, and only where wanted."""


class Child:
    """One measuring process and the pipes to it.

    Args:
        spec: What it measures.
        backend: Keras backend.
        variables: Of its environment, in addition to this process' own.
    """

    def __init__(self, spec: Mapping[str, Any], backend: str, variables: Mapping[str, str]) -> None:
        quiet = {
            "KERAS_BACKEND": backend,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            # Contenders wait at the same time, so none may take all of a GPU's memory.
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), "--child", json.dumps(spec)],
            env={**os.environ, **quiet, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.ready = self._answer()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()

    def ask(self, seconds: float) -> dict[str, Any]:
        """Let it measure for so long, and wait for what it found."""
        assert self._process.stdin
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        self._process.wait()
        self._errors.seek(0)
        raise SystemExit(f"error: a measuring process ended early:\n{self._errors.read()[-2000:]}")


def compete(
    contenders: Sequence[Contender],
    common: Mapping[str, Any],
    variables: Mapping[str, str],
    *,
    num_rounds: int,
    seconds: float,
    wait_idle_s: float,
) -> None:
    """Start and compile all contenders, then let them take turns; each notes what it reached, or why not.

    Args:
        contenders: Who.
        common: Settings of all processes.
        variables: Of their environment.
        num_rounds: Turns of each.
        seconds: Length of a turn.
        wait_idle_s: Most seconds that a turn waits for other programs to end.
    """
    with ExitStack() as stack:
        crews = _start_all(contenders, common, variables, stack)
        for number in range(1, num_rounds + 1):
            for contender, crew in crews:
                wait_until_idle(wait_idle_s)
                is_matmul = "matmul" in contender.kind
                answers = _ask_at_once(crew, min(seconds, MATMUL_S) if is_matmul else seconds)
                _note(contender, answers)
                print_progress(f"round {number} of {num_rounds}: {contender.name} {contender.rates[-1]:,.0f}")


def _note(contender: Contender, answers: Sequence[dict[str, Any]]) -> None:
    contender.rates.append(sum(answer.pop("rate") for answer in answers))
    if "cpu_s" in answers[0]:
        num_windows = sum(answer.pop("num_windows") for answer in answers)
        contender.cpu_s.append(1_000 * sum(answer.pop("cpu_s") for answer in answers) / num_windows)
    contender.notes |= answers[0]


def _start_all(
    contenders: Sequence[Contender],
    common: Mapping[str, Any],
    variables: Mapping[str, str],
    stack: ExitStack,
) -> list[tuple[Contender, list[Child]]]:
    """Start and compile every contender, as many at a time as there are cores; return those that can."""

    def start(contender: Contender) -> Child:
        print_progress(f"compiling: {contender.name}")
        spec = {**common, **contender.spec, "is_single_threaded": contender.is_single_threaded}
        return stack.enter_context(Child(spec, contender.backend, variables))

    pool = ThreadPoolExecutor(num_usable_cores())
    try:
        started = [
            [pool.submit(start, contender) for _ in range(contender.num_processes)]
            for contender in contenders
        ]
        crews = [[future.result() for future in crew] for crew in started]
    finally:
        pool.shutdown(cancel_futures=True)  # one that fails ends all
    for contender, crew in zip(contenders, crews, strict=True):
        contender.refusal = crew[0].ready.get("refusal", "")
    return [pair for pair in zip(contenders, crews, strict=True) if not pair[0].refusal]


def wait_until_idle(most_s: float) -> None:
    """Let other programs finish first, for so many seconds at most."""
    end = time.perf_counter() + most_s
    while time.perf_counter() < end and psutil.cpu_percent(interval=1.0) > BUSY_PCT:
        pass


def _ask_at_once(crew: Sequence[Child], seconds: float) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(crew)) as pool:
        return list(pool.map(lambda child: child.ask(seconds), crew))


def print_progress(message: str) -> None:
    """Print a line to standard error."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


# From here on: in a measuring process, one contender alone, so that its threads and its library are its own.


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
