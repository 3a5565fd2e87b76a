"""The order in which test files are given to processes: those that take longest first.

Processes that take a file each at a time end together only if what is left towards the end is short. By
default pytest-xdist gives out the file with most tests first, and so the longest, which are few tests, last.
A file that is missing here, or stands at the wrong place, costs time and nothing else.
"""

from __future__ import annotations

import pytest

LONGEST: tuple[str, ...] = (
    "contracts/test_profiles_train.py",
    "end_to_end/test_drill.py",
    "runs/test_comparison.py",
    "families/test_published.py",
    "runs/test_workers.py",
    "end_to_end/test_ctrl_c.py",
    "cli/test_scripts.py",
    "end_to_end/test_wheel.py",
    "hub/test_notebook.py",
    "end_to_end/test_ledger.py",
    "networks/test_stacking.py",
    "training/test_trainer.py",
    "hub/test_stalls.py",
    "end_to_end/test_ray.py",
    "training/test_step.py",
    "training/test_fleet.py",
    "hub/test_update_command.py",
    "runs/test_tracking.py",
    "training/test_jax_backend.py",
    "cli/test_doctor.py",
    "end_to_end/test_main_job.py",
    "end_to_end/test_without_posix.py",
    "machine/test_precision.py",
    "end_to_end/test_interruption.py",
    "artifacts/test_forecaster.py",
    "runs/test_fleet_engine.py",
    "runs/test_local.py",
    "training/test_memory.py",
    "cli/test_fuzz.py",
    "contracts/test_toy_family.py",
    "networks/test_serving.py",
    "networks/test_portable.py",
    "windows/test_batches.py",
    "cli/test_predict.py",
    "training/test_programs.py",
    "api/test_training.py",
    "networks/test_checkpointing.py",
    "runs/test_calibration.py",
    "app/test_space.py",
    "app/test_server.py",
    "hub/test_publish_command.py",
    "live/test_quantile_forecasts.py",
    "market/sources/test_live.py",
    "hub/test_pulled_forecasts.py",
    "hub/test_strangers_runs.py",
    "test_profile.py",
    "hub/test_pull.py",
    "api/test_forecaster.py",
    "api/test_examples.py",
    "contracts/test_toy_task.py",
    "app/test_app_command.py",
    "app/test_connections.py",
    "hub/test_publish_faults.py",
    "end_to_end/test_secrets.py",
)
"""Files below tests/, by what they took on two quiet cores or by what they do there."""

_PLACES = {f"tests/{name}": place for place, name in enumerate(LONGEST)}


def longest_first(item: pytest.Item) -> int:
    """Return the place of a test's file; those of one file stay in their order."""
    return _PLACES.get(item.nodeid.partition("::")[0], len(LONGEST))
