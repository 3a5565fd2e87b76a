"""Fleets of networks that differ in their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from v8.model.networks.networks import load, stack


def fleet_of(networks: Sequence[Any], **options: Any) -> Any:
    """Stack networks of one architecture, each with its own weights and dropout seeds."""
    fleet = stack(networks[0], len(networks), **options)
    load(fleet, networks)
    return fleet
