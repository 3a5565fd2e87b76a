"""Which number format trains fastest here: measured once for a machine and a network, then kept.

What a processor claims to multiply fast and what the compiled program reaches differ: with AMX, bfloat16 ran
at 0.35 to 0.5 of float32's speed. So the trainer's own steps are timed, in a process of its own: on a network
of one layer as wide as the profile's first, which compiles in seconds, and where another format than float32
wins there, those two on the whole network.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pydantic import TypeAdapter

from v8.machine.children import Order, ask
from v8.machine.measurements import kept
from v8.profile import Profile

AUTO: Final = "auto"
FORMATS: Final = ("float32", "mixed_bfloat16", "mixed_float16")

GAIN_TO_CHANGE: Final = 1.1
"""A 16-bit format must be so many times as fast as float32 to be worth its rounding."""

MEASURED_S: Final = 0.3
LIMIT_S: Final = 300.0
FLEET_ON_GPU: Final = 16
"""Models of one program where a GPU may compute: alone, a small network shows nothing but launches."""

_SPEEDS: Final = TypeAdapter(dict[str, float])


def choose_precision(profile: Profile, *, may_have_gpu: bool, tell: Callable[[str], None]) -> str:
    """Turn a profile's precision into a Keras dtype policy.

    Args:
        profile: Its setting, and the network that is measured for "auto".
        may_have_gpu: Whether a GPU may be what computes.
        tell: Told what is measured, and what was chosen and why.
    """
    setting = profile.training.precision
    if setting != AUTO:
        return setting
    network = {
        **profile.network.model_dump(mode="json"),
        "shape": [profile.training.batch_size, profile.lookback_bars, profile.num_features],
        "may_have_gpu": may_have_gpu,
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }

    def measure() -> dict[str, float]:
        tell("Measuring which number format this machine trains fastest in, once: about 20 s.")
        return _measured(profile, FLEET_ON_GPU if may_have_gpu else 1)

    speeds = kept(_SPEEDS, "precision", network, measure)
    chosen = fastest(speeds)
    tell(f"Precision: {chosen}; {_why(speeds)} (--precision sets another).")
    return chosen


def fastest(speeds: Mapping[str, float]) -> str:
    """Return the format to train in: float32 unless another one is clearly faster.

    >>> fastest({"float32": 100.0, "mixed_bfloat16": 40.0, "mixed_float16": 109.0})
    'float32'
    >>> fastest({"float32": 100.0, "mixed_bfloat16": 130.0, "mixed_float16": 150.0})
    'mixed_float16'
    >>> fastest({})
    'float32'
    """
    best = max(speeds, key=lambda name: speeds[name], default=FORMATS[0])
    return best if speeds.get(best, 0.0) >= GAIN_TO_CHANGE * speeds.get(FORMATS[0], 0.0) else FORMATS[0]


def _why(speeds: Mapping[str, float]) -> str:
    if not (base := speeds.get(FORMATS[0])):
        return "formats could not be measured"
    others = [f"{name} {speed / base:.2f}" for name, speed in speeds.items() if name != FORMATS[0]]
    return f"measured here, as multiples of float32's speed: {', '.join(others) or 'no other format works'}"


def _measured(profile: Profile, num_models: int) -> dict[str, float]:
    """Compare the formats on a small network; one that wins there has to win on the whole network, too."""
    speeds = _compared(profile, FORMATS, num_models, is_short=True)
    if (best := fastest(speeds)) == FORMATS[0]:
        return speeds
    return _compared(profile, (FORMATS[0], best), num_models, is_short=False)


def _compared(
    profile: Profile, formats: Sequence[str], num_models: int, *, is_short: bool
) -> dict[str, float]:
    options = {"formats": formats, "seconds": MEASURED_S, "num_models": num_models, "is_short": is_short}
    order = Order(profile=profile, measurements=[{"measure": "formats", **options}])
    (answer,) = ask([order], limit_s=LIMIT_S)
    return _SPEEDS.validate_python(answer.measured[0]) if answer.measured else {}
