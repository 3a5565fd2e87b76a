#!/usr/bin/env python
"""Time training side by side: stock Keras fit, a plain PyTorch loop, our trainer; and the matmul ceiling.

    python scripts/bench_training.py [--quick] [--json PATH] [--plot PATH.png] [--precisions]
    KERAS_BACKEND=jax python scripts/bench_training.py       # a machine without TensorFlow

Every contender lives in processes of its own, so that its thread settings hold. All start and compile
first; then they take turns, a few seconds each, round after round, while the others wait. The best round
counts, because other programs may load the machine; with --wait-idle a turn also waits for them to end.

What is timed, in windows/s of training (no validation), on demo candles of the profile:

- stock fit: the profile's network in stock Keras layers, `fit` on arrays, threads as Keras chooses.
- PyTorch loop: the same network of nn.LSTM layers and an ordinary training loop, on all threads and on
  one, because two threads of OpenMP wait for each other badly on a busy machine.
- product: our Trainer's `fit` the way `python -m v8 run` uses it: on a CPU one single-threaded process
  a core, all at the same time, their speeds added; on a GPU one process.
- fleet of N: N series in one program in one process (single-threaded on a CPU), batches from tf.data.
- ceiling: single-precision matmuls of the backend, on all threads and in one process a core; the larger
  counts. Percentages come from the formula in v8/models/cost.py.

Times of 100 epochs are extrapolated from the speed, and marked as such.
"""

# ruff: noqa: E402, PLC0415 - the package lies beside this folder, and a child chooses threads before it imports

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from v8.commands.device import choose_workers
from v8.data.dataset import SeriesData, prepare_series, table_columns
from v8.data.splits import split_rows
from v8.features.indicators import warmup_bars
from v8.features.table import compute_table
from v8.machine import describe_machine, num_usable_cores
from v8.market.series import load_universe
from v8.market.sources.demo import DemoSource
from v8.models.cost import TRAINING_TO_FORWARD_FLOP, training_flop_per_window
from v8.profile import Profile, load_profile
from v8.tasks import TASKS

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}
EXTRAPOLATED_EPOCHS = 100
FULL_FLEET = 40
BUSY_PCT = 10.0
"""Use of all cores by others from which a turn had better wait, percent."""


Turn = Callable[[float], dict[str, Any]]


@dataclass
class Contender:
    """Something to time.

    Args:
        name: As the table shows it.
        spec: What its processes measure, see `TURNS`.
        backend: Keras backend.
        num_processes: Processes at work at the same time; their speeds are added.
        is_single_threaded: Keep each process on one thread, as the product's workers are.
        rates: Windows/s (GFLOP/s of a matmul) per round.
    """

    name: str
    spec: dict[str, Any]
    backend: str
    num_processes: int = 1
    is_single_threaded: bool = False
    rates: list[float] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


def main() -> int:
    options = parse(sys.argv[1:])
    if options.child:
        serve(json.loads(options.child))
        return 0
    profile = load_profile(options.profile)
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "profile": profile.name,
        "flop_per_window": training_flop_per_window(profile),
    }
    result |= compete(options, profile)
    if options.precisions is not None:
        result["precisions"] = compare_precisions(options, result["backends"])
    result["machine"]["load_1min_after"] = round(psutil.getloadavg()[0], 2)
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.plot:
        plot(result, options.plot)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--profile", default="aligned", help="whose network is trained")
    parser.add_argument("--bars", type=int, default=1_500, help="demo candles a series")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of one turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    parser.add_argument(
        "--wait-idle", type=float, default=0.0, metavar="S", help="most seconds a turn waits for idle cores"
    )
    parser.add_argument(
        "--processes", type=int, metavar="N", help="that train or multiply side by side; default: one a core"
    )
    parser.add_argument(
        "--backends", nargs="+", choices=sorted(BACKENDS), help="only these; default: all that are installed"
    )
    parser.add_argument("--fleet-sizes", type=int, nargs="*", default=[1, 4, 10, 40], metavar="N")
    parser.add_argument(
        "--precisions",
        nargs="*",
        choices=PRECISIONS,
        help="also compare number formats: speed and final validation loss; without names all three",
    )
    parser.add_argument("--precision-epochs", type=int, default=5, help="epochs of that comparison")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    parser.add_argument("--plot", type=Path, help="also draw the figures into this PNG (matplotlib)")
    parser.add_argument("--quick", action="store_true", help="one short round and small fleets")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.quick:
        options.seconds, options.rounds, options.precision_epochs = 3.0, 1, 1
        options.fleet_sizes = [size for size in options.fleet_sizes if size <= 4]
    return options


# The parent: who competes, and taking turns


def compete(options: argparse.Namespace, profile: Profile) -> dict[str, Any]:
    backends = found_backends(options.backends or tuple(BACKENDS))
    has_gpu = bool(gpus_of(backends[0], options))
    contenders = list(line_up(options, backends, has_gpu=has_gpu))
    with ExitStack() as stack:
        crews = start_all(contenders, options, stack)
        for number in range(options.rounds):
            for contender, crew in zip(contenders, crews, strict=True):
                wait_until_idle(options.wait_idle)
                answers = ask_at_once(crew, options.seconds)
                contender.rates.append(sum(answer["rate"] for answer in answers))
                tell(f"round {number + 1} of {options.rounds}: {contender.name} {contender.rates[-1]:,.0f}")
                contender.notes |= {key: value for key, value in answers[0].items() if key != "rate"}
    return {"backends": backends, "has_gpu": has_gpu, **summary(contenders, profile, has_gpu=has_gpu)}


def found_backends(wanted: Sequence[str]) -> list[str]:
    found = [name for name in wanted if find_spec(name)]
    first = os.environ.get("KERAS_BACKEND")
    if not found:
        asked = " or ".join(BACKENDS[name] for name in wanted)
        raise SystemExit(f"error: needs {asked}; got none that is installed. Install one of them.")
    return sorted(found, key=lambda name: name != first) if first in found else found


def gpus_of(backend: str, options: argparse.Namespace) -> list[str]:
    with Child({"kind": "backend"}, backend, options, is_single_threaded=False) as child:
        return list(child.ready["gpus"])


def line_up(options: argparse.Namespace, backends: list[str], *, has_gpu: bool) -> Iterator[Contender]:
    num_workers = options.processes or (1 if has_gpu else num_usable_cores())
    first = backends[0]
    matmul: dict[str, Any] = {"kind": "matmul"}
    yield Contender("matmul, all threads", matmul, first)
    if num_workers > 1:
        yield Contender("matmul, one process a core", matmul, first, num_workers, is_single_threaded=True)
    yield Contender(f"stock fit, {BACKENDS[first]}", {"kind": "stock"}, first)
    if find_spec("torch"):
        yield Contender("PyTorch loop, all threads", {"kind": "torch", "num_threads": None}, first)
        if not has_gpu:
            yield Contender("PyTorch loop, one thread", {"kind": "torch", "num_threads": 1}, first)
    for backend in backends:
        plural = f"{num_workers} processes" if num_workers > 1 else "1 process"
        name = f"product, {BACKENDS[backend]}, {plural}"
        yield Contender(name, {"kind": "product"}, backend, num_workers, is_single_threaded=not has_gpu)
    for size in options.fleet_sizes:
        spec = {"kind": "fleet", "num_models": size}
        yield Contender(f"fleet of {size}, 1 process", spec, first, is_single_threaded=not has_gpu)


class Child:
    """One measuring process and the pipes to it."""

    def __init__(
        self, spec: dict[str, Any], backend: str, options: argparse.Namespace, *, is_single_threaded: bool
    ) -> None:
        common = {"profile": options.profile, "bars": options.bars, "is_single_threaded": is_single_threaded}
        quiet = {
            "KERAS_BACKEND": backend,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            # Contenders wait beside each other, so none may take all of a GPU's memory.
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps(common | spec)],
            env={**os.environ, **quiet},
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


def start_all(
    contenders: list[Contender], options: argparse.Namespace, stack: ExitStack
) -> list[list[Child]]:
    """Start and compile every contender, as many at a time as there are cores."""

    def start(contender: Contender) -> Child:
        tell(f"compiling: {contender.name}")
        is_single = contender.is_single_threaded
        child = Child(contender.spec, contender.backend, options, is_single_threaded=is_single)
        return stack.enter_context(child)

    with ThreadPoolExecutor(num_usable_cores()) as pool:
        started = [[pool.submit(start, each) for _ in range(each.num_processes)] for each in contenders]
        return [[future.result() for future in crew] for crew in started]


def wait_until_idle(most_s: float) -> None:
    """Let other programs finish first, for so many seconds at most."""
    end = time.perf_counter() + most_s
    while time.perf_counter() < end and psutil.cpu_percent(interval=1.0) > BUSY_PCT:
        pass


def ask_at_once(crew: list[Child], seconds: float) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(crew)) as pool:
        return list(pool.map(lambda child: child.ask(seconds), crew))


def compare_precisions(options: argparse.Namespace, backends: list[str]) -> list[dict[str, Any]]:
    """Train the same series in each number format, one after another."""
    rows = []
    for precision in options.precisions or PRECISIONS:
        tell(f"precision {precision}")
        wait_until_idle(options.wait_idle)
        spec = {"kind": "quality", "precision": precision, "epochs": options.precision_epochs}
        with Child(spec, backends[0], options, is_single_threaded=True) as child:
            rows.append({"precision": precision, **child.ask(0.0)})
    return rows


def summary(contenders: list[Contender], profile: Profile, *, has_gpu: bool) -> dict[str, Any]:
    rate = {each.name: max(each.rates) for each in contenders}
    ceiling = max(rate[each.name] for each in contenders if each.spec["kind"] == "matmul")
    stock = next(rate[each.name] for each in contenders if each.spec["kind"] == "stock")
    flop = training_flop_per_window(profile)
    rows = [
        {
            **asdict(each),
            "windows_per_s": rate[each.name],
            "times_stock": rate[each.name] / stock,
            "ceiling_pct": 100 * rate[each.name] * flop / (1e9 * ceiling),
        }
        for each in contenders
        if each.spec["kind"] != "matmul"
    ]
    matmul = {each.name: rate[each.name] for each in contenders if each.spec["kind"] == "matmul"}
    return {
        "matmul_gflop_per_s": matmul,
        "ceiling_gflop_per_s": ceiling,
        "ceiling_windows_per_s": 1e9 * ceiling / flop,
        "rows": rows,
        "fleet": fleet_figures(rows, profile) if has_gpu else {},
    }


def fleet_figures(rows: list[dict[str, Any]], profile: Profile) -> dict[str, Any]:
    """Set the largest fleet beside as many single trainings, and extrapolate a whole run."""
    sizes = {row["spec"]["num_models"]: row["windows_per_s"] for row in rows if "num_models" in row["spec"]}
    if 1 not in sizes or len(sizes) == 1:
        return {}
    largest = max(sizes)
    windows = EXTRAPOLATED_EPOCHS * FULL_FLEET * epoch_windows(profile)
    return {
        "num_models": largest,
        "times_one_after_another": sizes[largest] / sizes[1],
        "extrapolated": {
            "what": f"{EXTRAPOLATED_EPOCHS} epochs of {FULL_FLEET} models on {profile.newest_bars} candles",
            "fleet_s": windows / sizes[largest],
            "one_after_another_s": windows / sizes[1],
        },
    }


def epoch_windows(profile: Profile) -> float:
    """Return the train windows of one epoch; a validation window counts a third, it has no gradient."""
    num_rows = profile.newest_bars - warmup_bars(table_columns(profile))
    split = split_rows(num_rows, profile, where=profile.name)
    spans = {name: split.span(name) for name in ("train", "validation")}
    windows = {name: end - first - profile.embargo_bars + 1 for name, (first, end) in spans.items()}
    return windows["train"] + windows["validation"] / TRAINING_TO_FORWARD_FLOP


# The children: one kind of measurement each


def serve(spec: dict[str, Any]) -> None:
    """Get ready, say so, then measure for as many seconds as each line of standard input says."""
    if spec["is_single_threaded"]:
        choose_workers("cpu", "auto")  # the product's own way to make a worker single-threaded
    if spec["kind"] == "backend":
        from v8.training.probe import describe_backend

        answer(asdict(describe_backend()))
        return
    turn = TURNS[spec["kind"]](spec)
    answer({})
    for line in sys.stdin:
        answer(turn(float(line)))


def matmul_turn(spec: dict[str, Any]) -> Turn:
    from v8.training.probe import matmul_speed

    def turn(seconds: float) -> dict[str, Any]:
        speed = matmul_speed(seconds / 2)
        return {"rate": speed.gflop_per_s, "device": speed.device}

    turn(0.2)
    return turn


def stock_turn(spec: dict[str, Any]) -> Turn:
    import keras

    from v8.training.probe import stock_network

    profile, (data,) = load_profile(spec["profile"]), demo_series(spec, 1)
    x_BTF, y = arrays_of(data)
    network = stock_network(profile, "float32")

    class Clock(keras.callbacks.Callback):
        def __init__(self, seconds: float) -> None:
            super().__init__()
            self.epochs_s: list[float] = []
            self.end = time.perf_counter() + seconds

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.started = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.epochs_s.append(time.perf_counter() - self.started)
            self.model.stop_training = time.perf_counter() > self.end

    def turn(seconds: float) -> dict[str, Any]:
        clock = Clock(seconds)
        size = profile.training.batch_size
        network.fit(x_BTF, y, batch_size=size, epochs=100_000, verbose=0, callbacks=[clock])
        return {"rate": len(x_BTF) / statistics.median(clock.epochs_s), "num_epochs": len(clock.epochs_s)}

    turn(0.0)
    return turn


class EnoughError(Exception):
    """Ends a training whose time is over."""


def product_turn(spec: dict[str, Any]) -> Turn:
    from v8.training.epoch_record import EpochRecord
    from v8.training.trainer import Trainer

    (data,) = demo_series(spec, 1)
    endless = data.profile.with_budget(epochs=100_000)
    endless_data = prepare_series(data.table, endless)
    trainer = Trainer(endless)

    def turn(seconds: float) -> dict[str, Any]:
        records: list[EpochRecord] = []
        end = time.perf_counter() + seconds

        def on_epoch(record: EpochRecord) -> None:
            records.append(record)
            if time.perf_counter() > end:
                raise EnoughError

        with suppress(EnoughError):
            trainer.fit(endless_data, seed=1, on_epoch=on_epoch)
        rate = statistics.median(record.windows_per_s for record in records)
        return {"rate": rate, "num_epochs": len(records), "train_loss": records[-1].train_loss}

    turn(0.0)
    return turn


def fleet_turn(spec: dict[str, Any]) -> Turn:
    from v8.data.windows import FleetWindows
    from v8.training.trainer import Member, Trainer

    num_models = spec["num_models"]
    members = [Member(data, seed) for seed, data in enumerate(demo_series(spec, num_models))]
    trainer = Trainer(members[0].data.profile)
    state = trainer.first_state(members)
    rates = np.full(num_models, trainer.profile.training.learning_rate, np.float32)
    active = np.ones(num_models, bool)

    windows = FleetWindows([member.data for member in members])
    seeds = [member.seed for member in members]
    endless = windows.training_batches(seeds, first_epochs=[1] * num_models, num_epochs=100_000)

    def turn(seconds: float) -> dict[str, Any]:
        nonlocal state
        state = state.with_empty_sums()
        started, due = time.perf_counter(), 1
        for number in count(1):
            state = trainer.train_batch(state, rates, active, next(endless))
            if number < due:
                continue
            np.asarray(state.window_sum)  # wait for the device, seldom: every step would stall it
            elapsed = time.perf_counter() - started
            if elapsed > seconds:
                break
            due = number + max(1, int(number * min(1.0, seconds / 8 / elapsed)))
        num_windows = float(np.asarray(state.window_sum).sum())
        return {"rate": num_windows / (time.perf_counter() - started), "num_steps": number}

    turn(0.0)
    return turn


def quality_turn(spec: dict[str, Any]) -> Turn:
    from v8.training.trainer import Trainer

    (data,) = demo_series(spec, 1)
    data = prepare_series(data.table, data.profile.with_budget(epochs=spec["epochs"]))
    trainer = Trainer(data.profile, precision=spec["precision"])

    def turn(seconds: float) -> dict[str, Any]:
        result = trainer.fit(data, seed=1)
        return {
            "windows_per_s": statistics.median(record.windows_per_s for record in result.history),
            "validation_loss": result.history[-1].validation_loss,
            "untrained_loss": result.untrained_loss,
            "num_epochs": len(result.history),
        }

    return turn


def torch_turn(spec: dict[str, Any]) -> Turn:
    import torch

    profile, (data,) = load_profile(spec["profile"]), demo_series(spec, 1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if spec["num_threads"]:
        torch.set_num_threads(spec["num_threads"])
    network = torch_network(profile).to(device)
    optimiser = torch.optim.Adam(network.parameters(), profile.training.learning_rate)
    x_BTF, y = arrays_of(data)
    x_BTF = torch.from_numpy(x_BTF).to(device)
    y = {task: torch.from_numpy(values).to(device) for task, values in y.items()}
    losses = {
        "mae": torch.nn.functional.l1_loss,
        "mse": torch.nn.functional.mse_loss,
        "huber": torch.nn.functional.huber_loss,
    }

    def epoch() -> float:
        started = time.perf_counter()
        for rows in torch.randperm(len(x_BTF), device=device).split(profile.training.batch_size):
            optimiser.zero_grad()
            forecast = network(x_BTF[rows])
            parts = [
                task.weight * losses[task.loss](forecast[name], y[name][rows])
                for name, task in profile.tasks.items()
            ]
            loss = sum(parts)
            loss.backward()
            if profile.training.clip_norm:
                torch.nn.utils.clip_grad_norm_(network.parameters(), profile.training.clip_norm)
            optimiser.step()
        loss.item()
        return time.perf_counter() - started

    def turn(seconds: float) -> dict[str, Any]:
        end, epochs_s = time.perf_counter() + seconds, [epoch()]
        while time.perf_counter() < end:
            epochs_s.append(epoch())
        rate = len(x_BTF) / statistics.median(epochs_s)
        return {"rate": rate, "num_epochs": len(epochs_s), "device": device, "version": torch.__version__}

    turn(0.0)
    return turn


def torch_network(profile: Profile) -> Any:
    """Build the profile's network of nn.LSTM layers, as `v8.models.networks` does of Keras layers."""
    from torch import nn

    settings = profile.network
    is_seq2seq = settings.family == "bilstm_seq2seq"

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.norms = nn.ModuleList(), nn.ModuleList()
            width, directions = profile.num_features, 2 if is_seq2seq else 1
            for units in settings.encoder_units:
                self.encoder.append(nn.LSTM(width, units, batch_first=True, bidirectional=is_seq2seq))
                width = directions * units
                self.norms.append(nn.LayerNorm(width))
            self.decoder, self.decoder_norms = nn.ModuleList(), nn.ModuleList()
            for units in settings.decoder_units if is_seq2seq else ():
                self.decoder.append(nn.LSTM(width, units, batch_first=True))
                self.decoder_norms.append(nn.LayerNorm(units))
                width = units
            self.dense = nn.ModuleList()
            for units in () if is_seq2seq else settings.dense_units:
                self.dense.append(nn.Linear(width, units))
                width = units
            steps = 1 if is_seq2seq else profile.horizon_bars
            self.heads = nn.ModuleDict(
                {name: nn.Linear(width, steps * len(TASKS[name].columns)) for name in profile.tasks}
            )
            self.drop = nn.Dropout(settings.dropout)

        def forward(self, x: Any) -> dict[str, Any]:
            for number, (layer, norm) in enumerate(zip(self.encoder, self.norms, strict=True), 1):
                x, (last, _) = layer(x)
                if number == len(self.encoder):
                    x = norm(last.transpose(0, 1).flatten(1))
                    x = self.drop(x)
                else:
                    x = self.dropped(norm(x))
            if is_seq2seq:
                x = x[:, None].expand(-1, profile.horizon_bars, -1)
            for layer, norm in zip(self.decoder, self.decoder_norms, strict=True):
                x = self.dropped(norm(layer(x)[0]))
            for layer in self.dense:
                x = layer(x).relu()
            shape = (len(x), profile.horizon_bars, -1)
            return {name: head(x).reshape(shape) for name, head in self.heads.items()}

        def dropped(self, x: Any) -> Any:
            return x * self.drop(x.new_ones(x.shape[0], 1, x.shape[2]))  # one draw a sequence

    return Network()


TURNS: dict[str, Callable[[dict[str, Any]], Turn]] = {
    "matmul": matmul_turn,
    "stock": stock_turn,
    "torch": torch_turn,
    "product": product_turn,
    "fleet": fleet_turn,
    "quality": quality_turn,
}


def demo_series(spec: dict[str, Any], num_series: int) -> list[SeriesData]:
    profile, source = load_profile(spec["profile"]), DemoSource()
    universe = load_universe()
    chosen = [universe[number % len(universe)] for number in range(num_series)]
    candles = [source.candles(series, spec["bars"]) for series in chosen]
    return [prepare_series(compute_table(each, table_columns(profile)), profile) for each in candles]


def arrays_of(data: SeriesData) -> tuple[Any, dict[str, Any]]:
    """Copy all train windows out of the tables, which is what `fit` on arrays needs."""
    rows = data.anchors["train"]
    x_BTF = data.inputs_NF[rows[:, None] + np.arange(1 - data.profile.lookback_bars, 1)]
    close = data.profile.features.index("close")
    x_BTF = x_BTF - x_BTF[:, -1:, close : close + 1] * data.scaling.anchored_mask()
    return x_BTF, {task: target[rows] for task, target in data.targets_NHC.items()}


def answer(figures: dict[str, Any]) -> None:
    print(json.dumps(figures), flush=True)


# What is shown


def machine() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return {
        **describe_machine(),
        "python": platform.python_version(),
        "load_1min_before": round(psutil.getloadavg()[0], 2),
        **{name: found(name) for name in ("keras", "tensorflow", "jax", "torch", "numpy")},
        "commit": commit.stdout.strip() if commit.returncode == 0 else "unknown",
    }


def found(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def show(result: dict[str, Any]) -> None:
    print(f"\nprofile {result['profile']}, {result['flop_per_window'] / 1e6:,.0f} MFLOP a training window")
    print(f"{'':<34}{'windows/s':>10}{'rounds':>16}{'x stock':>9}{'of ceiling':>12}")
    for row in result["rows"]:
        rounds = f"{min(row['rates']):,.0f}-{max(row['rates']):,.0f}"
        print(
            f"{row['name']:<34}{row['windows_per_s']:>10,.0f}{rounds:>16}"
            f"{row['times_stock']:>9.2f}{row['ceiling_pct']:>10.0f} %"
        )
    for name, gflop_per_s in result["matmul_gflop_per_s"].items():
        print(f"{name:<34}{gflop_per_s:>10,.0f} GFLOP/s, float32")
    print(f"{'ceiling':<34}{result['ceiling_windows_per_s']:>10,.0f} windows/s at that matmul rate")
    show_fleet(result["fleet"])
    for row in result.get("precisions", []):
        print(
            f"{row['precision']:<34}{row['windows_per_s']:>10,.0f} windows/s in one thread, validation loss "
            f"{row['untrained_loss']:.5f} untrained, {row['validation_loss']:.5f} after "
            f"{row['num_epochs']} epochs"
        )
    print(json.dumps(result["machine"]))


def show_fleet(fleet: dict[str, Any]) -> None:
    if not fleet:
        return
    guess = fleet["extrapolated"]
    times = fleet["times_one_after_another"]
    print(f"a fleet of {fleet['num_models']} is {times:.1f} times as fast as its models one after another")
    print(
        f"extrapolated, not measured: {guess['what']}: {guess['fleet_s']:,.0f} s as a fleet, "
        f"{guess['one_after_another_s']:,.0f} s one after another"
    )


def plot(result: dict[str, Any], path: Path) -> None:
    if not find_spec("matplotlib"):
        tell("no plot: matplotlib is not installed")
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = result["rows"][::-1]
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(rows) + 1.5), layout="constrained")
    colours = ["tab:blue" if row["spec"]["kind"] in {"product", "fleet"} else "tab:gray" for row in rows]
    rates = [row["windows_per_s"] for row in rows]
    bars = axes.barh([row["name"] for row in rows], rates, color=colours)
    axes.bar_label(
        bars, [f"{row['windows_per_s']:,.0f}  (x{row['times_stock']:.2f})" for row in rows], padding=4
    )
    ceiling = result["ceiling_windows_per_s"]
    axes.axvline(ceiling, color="tab:red", linestyle="--", label=f"float32 matmul ceiling, {ceiling:,.0f}")
    axes.legend(loc="lower right")
    axes.set_xlim(0, max([ceiling, *rates]) * 1.15)
    axes.set_xlabel("training windows per second")
    axes.set_title(f"Profile {result['profile']} on {result['machine']['cpu']}")
    figure.savefig(path, dpi=150)


def tell(what: str) -> None:
    sys.stderr.write(what + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
