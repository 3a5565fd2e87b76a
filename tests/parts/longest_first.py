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
    "comparison/test_measurement.py",
    "families/test_published.py",
    "runs/test_workers.py",
    "end_to_end/test_ctrl_c.py",
    "cli/test_scripts.py",
    "end_to_end/test_wheel.py",
    "hub/test_notebook.py",
    "end_to_end/test_ray.py",
    "training/test_jax_backend.py",
    "end_to_end/test_main_job.py",
    "end_to_end/test_without_posix.py",
    "machine/test_precision.py",
    "end_to_end/test_interruption.py",
    "training/test_memory.py",
    "cli/test_fuzz.py",
    "networks/test_serving_quantiles.py",
    "networks/test_stacking.py",
    "test_invocation.py",
    "test_plugins.py",
    "runs/test_execution.py",
    "networks/test_products.py",
    "training/test_fleet.py",
    "training/test_pipeline.py",
    "artifacts/test_paths_and_newcomers.py",
    "training/test_trainer.py",
    "hub/test_update_command.py",
    "ledger/test_quantile_forecasts.py",
    "tracking/test_tracking.py",
    "end_to_end/test_ledger.py",
    "hub/test_injected_texts.py",
    "networks/test_networks.py",
    "hub/test_kept_models.py",
    "training/test_step.py",
    "hub/test_publish.py",
    "hub/test_publish_command.py",
    "properties/test_no_look_ahead.py",
    "runs/test_backtest.py",
    "search/test_search.py",
    "runs/test_trial_record.py",
    "networks/test_portable.py",
    "cli/test_predict.py",
    "runs/test_calibration.py",
    "reports/test_page_in_browser.py",
    "hub/test_stalls.py",
    "machine/test_processes.py",
    "api/test_training.py",
    "reports/test_report_command.py",
    "cli/test_doctor.py",
    "training/test_probe.py",
    "test_tasks.py",
    "market/sources/test_live.py",
    "properties/test_covariates_look_at_the_past.py",
    "app/test_stream.py",
    "runs/test_backtest_folds.py",
    "contracts/test_toy_task.py",
    "runs/test_fleet_engine.py",
    "hub/test_ledger_dataset.py",
    "features/test_ta_package.py",
    "networks/test_serving.py",
    "hub/test_pull.py",
    "app/test_guard.py",
    "app/test_server.py",
    "networks/test_checkpointing.py",
    "runs/test_local.py",
    "ledger/test_record.py",
    "artifacts/test_forecaster.py",
    "app/test_page_in_browser.py",
    "reports/test_comparison.py",
    "hub/test_publish_faults.py",
    "api/test_examples.py",
    "hub/test_strangers_records.py",
)
"""Files below tests/, by what they took on two quiet cores or by what they do there."""

_PLACES = {f"tests/{name}": place for place, name in enumerate(LONGEST)}


def longest_first(item: pytest.Item) -> int:
    """Return the place of a test's file; those of one file stay in their order."""
    return _PLACES.get(item.nodeid.partition("::")[0], len(LONGEST))
