"""The cost of training a network in floating-point operations, by formula, without building it."""

from v8.profile.profile import Profile

TRAINING_TO_FORWARD_FLOP = 3
"""A training step costs three forward passes: forward, gradient of inputs, gradient of weights."""


def training_flop_per_window(profile: Profile) -> float:
    """Count the floating-point operations of training on one window, as the network's family counts them.

    >>> from v8.profile.profile import load_profile
    >>> round(training_flop_per_window(load_profile("aligned")) / 1e6)
    127
    """
    return TRAINING_TO_FORWARD_FLOP * profile.family.forward_flop(profile.network, profile.shape)


def ceiling_pct(windows_per_s: float, flop_per_window: float, gflop_per_s: float) -> float:
    """Return how many per cent of a matmul rate of the same cores or device a training speed reaches.

    Args:
        windows_per_s: Training speed.
        flop_per_window: Floating-point operations of training on one window.
        gflop_per_s: The matmul rate, single precision; 16-bit arithmetic may exceed 100 % of it.
    """
    return 100 * windows_per_s * flop_per_window / (1e9 * gflop_per_s)
