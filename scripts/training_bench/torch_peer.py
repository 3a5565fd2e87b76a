"""The same network and training loop in plain PyTorch, as an experienced user would write them.

Its layers, initial heads, dropout (one draw a sequence), norms, losses, Adam and clipping are those of the
profile, weight for weight, out of the box: nn.LSTM,
which is oneDNN's on a CPU and cuDNN's on a GPU, the fused Adam, denormal numbers flushed as TensorFlow does.
The second bias that nn.LSTM has in addition to Keras' one stays zero and is not trained. Windows lie on the
device.

torch.compile needs a C++ compiler on a CPU, which many machines lack, so it is measured on request only.

Only the family `bilstm_seq2seq` is implemented here.

Shape legend: B batch, T time (lookback or horizon), F features, D channels, H horizon, C columns of a task.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from training_bench.turn import (
    RefusedError,
    Stretch,
    Turn,
    arrays_of,
    clocked,
    demo_series,
    load_sized_profile,
)
from v8.profile.profile import Profile
from v8.profile.settings import TrainingSettings
from v8.profile.tasks import TASKS

EPSILON_ADAM = 1e-7
EPSILON_NORM = 1e-3
"""Keras' defaults, which are not PyTorch's; Keras adds the first to the root before its correction."""

LOSSES: Mapping[str, Callable[..., torch.Tensor]] = {
    "mae": nn.functional.l1_loss,
    "mse": nn.functional.mse_loss,
    "huber": nn.functional.huber_loss,
}
MATMUL_SIZES: Mapping[str, int] = {"cpu": 1_024, "cuda": 8_192}
AUTOCAST = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Recurrent(nn.Module):  # type: ignore[misc]  # PyTorch is not installed for the checks
    """Layers of LSTMs, each normalised, of whose channels some are dropped: `Layers.recurrent` of v8.

    Args:
        num_inputs: Channels that come in.
        units: Units of each layer per direction.
        dropout: Share of channels dropped.
        is_time_major: Time is the first axis; else the batch is.
        is_bidirectional: Read in both directions.
        is_sequence: Return every step, not only the last.
    """

    def __init__(
        self,
        num_inputs: int,
        units: Sequence[int],
        dropout: float,
        *,
        is_time_major: bool,
        is_bidirectional: bool = False,
        is_sequence: bool = False,
    ) -> None:
        super().__init__()
        self.time_axis = 0 if is_time_major else 1
        self.is_sequence = is_sequence
        directions = 2 if is_bidirectional else 1
        widths = [num_inputs, *(directions * unit for unit in units)]
        options = {"batch_first": not is_time_major, "bidirectional": is_bidirectional}
        self.lstms = nn.ModuleList(
            nn.LSTM(width, each, **options) for width, each in zip(widths, units, strict=False)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width, EPSILON_NORM) for width in widths[1:])
        self.drop = nn.Dropout(dropout)
        for name, bias in self.lstms.named_parameters():
            if "bias_hh" in name:
                nn.init.zeros_(bias).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, T, D), or (T, B, D), to steps of the same order, or to the last one, (B, D)."""
        for number, (lstm, norm) in enumerate(zip(self.lstms, self.norms, strict=True), 1):
            steps, (last, _) = lstm(x)
            if number == len(self.lstms) and not self.is_sequence:
                return self.drop(norm(last.transpose(0, 1).flatten(1)))
            x = norm(steps)
            x = x * self.drop(torch.ones_like(x.narrow(self.time_axis, 0, 1)))
        return x


class Head(nn.Module):  # type: ignore[misc]  # PyTorch is not installed for the checks
    """A task's last layer: a zero kernel that reads each step, and a bias of its own for each step.

    Args:
        num_inputs: Channels that come in.
        shape: Horizon and columns.
        is_time_major: Time is the first axis of what comes in.
    """

    def __init__(self, num_inputs: int, shape: tuple[int, int], *, is_time_major: bool) -> None:
        super().__init__()
        self.is_time_major = is_time_major
        self.kernel = nn.Parameter(torch.zeros(num_inputs, shape[1]))
        self.bias = nn.Parameter(torch.zeros(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map steps, (B, H, D) or (H, B, D), to (B, H, C)."""
        y = x @ self.kernel
        return (y.transpose(0, 1) if self.is_time_major else y) + self.bias


class Seq2Seq(nn.Module):  # type: ignore[misc]  # PyTorch is not installed for the checks
    """Family `bilstm_seq2seq`: windows (B, T, F) to each task's (B, H, C)."""

    def __init__(self, profile: Profile, *, is_time_major: bool) -> None:
        super().__init__()
        settings: Any = profile.network
        self.time_axis = 0 if is_time_major else 1
        self.horizon_bars = profile.horizon_bars
        both: dict[str, Any] = {"dropout": settings.dropout, "is_time_major": is_time_major}
        features = len(profile.features)
        units = settings.encoder_units
        self.encoder = Recurrent(features, units, **both, is_bidirectional=True)
        self.decoder = Recurrent(2 * units[-1], settings.decoder_units, **both, is_sequence=True)
        self.heads = nn.ModuleDict()
        for name in profile.tasks:
            shape = (profile.horizon_bars, len(TASKS[name].columns))
            self.heads[name] = Head(settings.decoder_units[-1], shape, is_time_major=is_time_major)

    def forward(self, x_BTF: torch.Tensor) -> dict[str, torch.Tensor]:
        """Forecast, scaled."""
        summary_BD = self.encoder(x_BTF if self.time_axis else x_BTF.transpose(0, 1))
        repeated = summary_BD.unsqueeze(self.time_axis)
        sizes = [-1, -1, -1]
        sizes[self.time_axis] = self.horizon_bars
        x = self.decoder(repeated.expand(sizes))
        return {name: head(x) for name, head in self.heads.items()}


def adam(network: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return Keras' Adam, or its AdamW, of what is trained, in one kernel a step."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    options: dict[str, Any] = {"lr": settings.learning_rate, "eps": EPSILON_ADAM, "fused": True}
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(trained, weight_decay=settings.weight_decay, **options)
    return torch.optim.Adam(trained, **options)


def total_loss(profile: Profile, forecast: Mapping[str, Any], actual: Mapping[str, Any]) -> torch.Tensor:
    """Add up the tasks' mean losses by their weights."""
    parts = [
        task.weight * LOSSES[task.loss](forecast[name].float(), actual[name])
        for name, task in profile.tasks.items()
    ]
    return torch.stack(parts).sum()


def bound_gradients(network: nn.Module, settings: TrainingSettings) -> None:
    """Clip the gradients as the profile says."""
    if not settings.clip_norm:
        return
    if settings.gradient_clip == "value":
        nn.utils.clip_grad_value_(network.parameters(), settings.clip_norm)
    else:
        nn.utils.clip_grad_norm_(network.parameters(), settings.clip_norm)


def found_device() -> str:
    """Return the device that PyTorch computes on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def set_threads(num_threads: int | None) -> None:
    """Set what holds for the whole process."""
    if num_threads:
        torch.set_num_threads(num_threads)
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as TensorFlow and JAX do; nothing on a CPU


def matmul_turn(spec: dict[str, Any]) -> Turn:
    """Multiply large square matrices in the `format` of `spec`; the rate is GFLOP/s."""
    device = found_device()
    set_threads(1 if spec["is_single_threaded"] else None)
    size = MATMUL_SIZES[device]
    matrices = torch.randn(2, size, size, device=device).to(getattr(torch, spec["format"]))

    def product() -> float:
        return float((matrices[0] @ matrices[1])[0, 0])  # waits for the device

    def turn(seconds: float) -> dict[str, Any]:
        end = time.perf_counter() + seconds
        taken_s = [clocked(product).seconds]
        while time.perf_counter() < end:
            taken_s.append(clocked(product).seconds)
        return {"rate": 2e-9 * size**3 / statistics.median(taken_s), "device": device}

    turn(0.2)
    return turn


def torch_turn(spec: dict[str, Any]) -> Turn:
    """Train on one series, epoch after epoch.

    Args:
        spec: `format`, one of `AUTOCAST`; `is_time_major`; `num_threads`, None as PyTorch chooses;
            `is_compiled`, by torch.compile.

    Raises:
        RefusedError: If oneDNN has no LSTM of that format for this processor, as with AVX2 alone. PyTorch's
            own loop would do it there, 13 times as slowly as float32, which nobody would wait for.
    """
    profile = load_sized_profile(spec)
    (data,) = demo_series(profile, spec["bars"], 1)
    device = found_device()
    set_threads(spec["num_threads"])
    network = Seq2Seq(profile, is_time_major=spec["is_time_major"]).to(device)
    optimiser = adam(network, profile.training)
    half = AUTOCAST[spec["format"]]
    forecast_of = torch.compile(network) if spec["is_compiled"] else network
    inputs, targets = arrays_of(data)
    x_BTF = torch.from_numpy(inputs).to(device)
    y = {task: torch.from_numpy(values).to(device) for task, values in targets.items()}

    def autocast() -> AbstractContextManager[Any]:
        return torch.autocast(device, half) if half else nullcontext()

    def epoch() -> int:
        for rows in torch.randperm(len(x_BTF), device=device).split(profile.training.batch_size):
            optimiser.zero_grad()
            with autocast():
                actual = {task: values[rows] for task, values in y.items()}
                loss = total_loss(profile, forecast_of(x_BTF[rows]), actual)
            loss.backward()
            bound_gradients(network, profile.training)
            optimiser.step()
        loss.item()  # waits for the device
        return len(x_BTF)

    def turn(seconds: float) -> dict[str, Any]:
        end = time.perf_counter() + seconds
        stretches: list[Stretch] = [clocked(epoch)]
        while time.perf_counter() < end:
            stretches.append(clocked(epoch))
        facts = {"num_epochs": len(stretches), "device": device, "version": torch.__version__}
        if device == "cuda":
            facts["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
        return Stretch.summary(stretches) | facts

    try:
        turn(0.0)
    except RuntimeError as error:
        if half and device == "cpu" and "could not create a primitive" in str(error):
            raise RefusedError(f"PyTorch's oneDNN has no LSTM in {spec['format']} for it") from None
        raise
    return turn
