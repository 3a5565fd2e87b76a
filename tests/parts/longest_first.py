"""The order in which test files are given to processes: those that take longest first, but `LATE` at the end.

Processes that take a file each at a time end together only if what is left towards the end is short. By
default pytest-xdist gives out the file with most tests first, and so the longest, which are few tests, last.
A file that is missing here, or stands at the wrong place, costs time and nothing else.

CI has 25 minutes, in which a slow machine does not come to the end of all tests. So those of `LATE` have a
time after which none begins any more (`--late-until`); the summary names each that did not.
"""

from __future__ import annotations

import pytest

LONGEST: tuple[str, ...] = (
    "end_to_end/test_ctrl_c.py",
    "end_to_end/test_main_job.py",
    "models/test_stacking.py",
    "training/test_trainer.py",
    "engine/test_workers.py",
    "end_to_end/test_ray.py",
    "training/test_step.py",
    "end_to_end/test_interruption.py",
    "training/test_fleet.py",
    "artifacts/test_forecaster.py",
    "python/test_training.py",
    "engine/test_fleet_engine.py",
    "engine/test_local.py",
    "hub/test_publish_command.py",
    "models/test_serving.py",
    "app/test_server.py",
    "hub/test_strangers_runs.py",
    "test_profile.py",
    "hub/test_pull.py",
    "end_to_end/test_secrets.py",
)
"""Files below tests/, by what they took on two quiet cores or by what they do there."""

LATE: tuple[str, ...] = (
    "contracts/test_profiles_train.py",
    "end_to_end/test_drill.py",
    "families/test_published.py",
    "hub/test_update_command.py",
    "training/test_jax_backend.py",
    "hub/test_notebook.py",
    "commands/test_scripts.py",
    "training/test_memory.py",
    "commands/test_predict.py",
    "commands/test_doctor.py",
    "engine/test_comparison.py",
    "end_to_end/test_without_posix.py",
    "engine/test_precision.py",
    "models/test_portable.py",
    "end_to_end/test_ledger.py",
    "training/test_programs.py",
    "commands/test_fuzz.py",
    "python/test_examples.py",
    "contracts/test_toy_family.py",
    "engine/test_tracking.py",
    "engine/test_light_start.py",
    "app/test_space.py",
    "hub/test_strangers_records.py",
    "hub/test_pulled_forecasts.py",
    "hub/test_watched_repository.py",
    "contracts/test_toy_task.py",
)
"""Files whose tests start TensorFlow again and again, or compile whole networks, to try on a larger scale
what others try on a smaller: a third of all time. They come last, the most telling first."""

_PLACES = {f"tests/{name}": place for place, name in enumerate((*LONGEST, "", *LATE))}


def longest_first(item: pytest.Item) -> int:
    """Return the place of a test's file; those of one file stay in their order."""
    return _PLACES.get(_file_of(item), len(LONGEST))


def is_late(item: pytest.Item) -> bool:
    """Whether a test may be left out where time is short."""
    return _PLACES.get(_file_of(item), 0) > len(LONGEST)


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
