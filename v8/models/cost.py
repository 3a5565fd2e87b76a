"""What a network costs: floating-point operations by formula, without building it."""

from __future__ import annotations

from itertools import pairwise

from v8.profile import NewestRowNetwork, Profile, Seq2SeqNetwork

TRAINING_TO_FORWARD_FLOP = 3
"""A training step costs three forward passes: forward, gradient to inputs, gradient to weights."""


def training_flop_per_window(profile: Profile) -> float:
    """Count the floating-point operations of training on one window, by formula.

    A cell of `u` units over `i` inputs multiplies a (i + u) x 4u matrix per step, two operations per
    entry; training costs three times the forward pass. Element-wise work and heads are left out: they
    are below two per cent. A network without cells counts its dense layers and heads instead.

    >>> from v8.profile import load_profile
    >>> round(training_flop_per_window(load_profile("aligned")) / 1e6)
    127
    """
    if isinstance(profile.network, NewestRowNetwork):
        return TRAINING_TO_FORWARD_FLOP * _dense_newest(profile.network, profile)
    network, width, forward = profile.network, profile.num_features, 0.0
    directions = 2 if isinstance(network, Seq2SeqNetwork) else 1
    for units in network.encoder_units:
        forward += directions * profile.lookback_bars * 8 * units * (width + units)
        width = directions * units
    decoder = network.decoder_units if isinstance(network, Seq2SeqNetwork) else ()
    for units in decoder:
        forward += profile.horizon_bars * 8 * units * (width + units)
        width = units
    return TRAINING_TO_FORWARD_FLOP * forward


def _dense_newest(network: NewestRowNetwork, profile: Profile) -> float:
    widths = (profile.num_features, *network.dense_units)
    heads = 2.0 * widths[-1] * profile.horizon_bars * len(profile.tasks)
    return heads + sum(2.0 * width * units for width, units in pairwise(widths))
