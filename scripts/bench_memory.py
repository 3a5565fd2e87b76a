"""What XLA allocates for one training step, with and without `checkpoint_activations`.

    KERAS_BACKEND=jax python scripts/bench_memory.py --profiles aligned v4_transformer --batch 256

JAX tells it for a compiled program without running it; the extra `jax` must be installed. Weights, moments
and windows are arguments and not counted: they are the same both times.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from v8.machine import backend_name
from v8.models.networks import build_network
from v8.models.stacking import stack
from v8.profile import Profile, load_profile
from v8.training.probe import random_batch
from v8.training.step import compiled_step, initial_state


def with_training(profile: Profile, **changes: Any) -> Profile:
    """Return the profile with other training keys."""
    content = profile.model_dump()
    content["training"] |= changes
    return Profile.model_validate(content)


def allocated_bytes(profile: Profile, num_models: int) -> int:
    """Compile one step of a fleet and return the memory that it works in beside its arguments."""
    network = build_network(profile, seed=0, is_taught=True)
    fleet = stack([network] * num_models, are_directions_merged=num_models > 1)
    x_BMTF, y = random_batch(profile, num_models)
    rates, everyone = np.zeros(num_models, np.float32), np.ones(num_models, bool)
    weight_BM = np.ones(x_BMTF.shape[:2], np.float32)
    step: Any = compiled_step(fleet, profile, "float32")
    lowered = step.lower(initial_state(fleet, "float32"), rates, everyone, x_BMTF, y, weight_BM)
    return int(lowered.compile().memory_analysis().temp_size_in_bytes)


def main() -> None:
    """Print a line a profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--profiles", nargs="+", default=["aligned", "v4_transformer"])
    parser.add_argument("--batch", type=int, help="windows a batch; default: the profile's")
    parser.add_argument("--models", type=int, default=1, help="models of one program")
    options = parser.parse_args()
    if backend_name() != "jax":
        parser.error("only JAX tells what XLA allocates: set KERAS_BACKEND=jax")
    for name in options.profiles:
        profile, started = load_profile(name), time.perf_counter()
        size = options.batch or profile.training.batch_size
        plain, less = (
            allocated_bytes(
                with_training(profile, batch_size=size, checkpoint_activations=on), options.models
            )
            for on in (False, True)
        )
        print(
            f"{name}, batch {size}, {options.models} models: {plain / 1e6:.1f} MB, checkpointed "
            f"{less / 1e6:.1f} MB ({less / plain:.0%}); compiled in {time.perf_counter() - started:.0f} s"
        )


if __name__ == "__main__":
    main()
