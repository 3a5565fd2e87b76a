"""The order in which test files are given to processes: those that take longest first.

Processes that take a file each at a time end together only if what is left towards the end is short. By
default pytest-xdist gives out the file with most tests first, and so the longest, which are few tests, last.
A file that is missing here, or stands at the wrong place, costs time and nothing else.
"""

from __future__ import annotations

import pytest

LONGEST: tuple[str, ...] = (
    "contracts/test_profiles_train.py",
    "end_to_end/test_ctrl_c.py",
    "end_to_end/test_drill.py",
    "hub/test_update_command.py",
    "end_to_end/test_main_job.py",
    "end_to_end/test_ledger.py",
    "models/test_stacking.py",
    "training/test_trainer.py",
    "engine/test_workers.py",
    "end_to_end/test_ray.py",
    "training/test_step.py",
    "end_to_end/test_interruption.py",
    "training/test_fleet.py",
    "families/test_published.py",
    "engine/test_comparison.py",
    "engine/test_tracking.py",
    "training/test_jax_backend.py",
    "commands/test_doctor.py",
    "commands/test_scripts.py",
    "end_to_end/test_without_posix.py",
    "artifacts/test_forecaster.py",
    "python/test_training.py",
    "engine/test_precision.py",
    "engine/test_fleet_engine.py",
    "engine/test_local.py",
    "training/test_memory.py",
    "hub/test_publish_command.py",
    "contracts/test_toy_family.py",
    "models/test_serving.py",
    "app/test_space.py",
    "app/test_server.py",
    "commands/test_fuzz.py",
    "hub/test_pulled_forecasts.py",
    "hub/test_strangers_runs.py",
    "test_profile.py",
    "hub/test_pull.py",
    "python/test_examples.py",
    "end_to_end/test_secrets.py",
)
"""Files below tests/, by what they took on two quiet cores or by what they do there."""

_PLACES = {f"tests/{name}": place for place, name in enumerate(LONGEST)}


def longest_first(item: pytest.Item) -> int:
    """Return the place of a test's file; those of one file stay in their order."""
    return _PLACES.get(item.nodeid.partition("::")[0], len(LONGEST))
