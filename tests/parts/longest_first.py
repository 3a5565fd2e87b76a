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
    "annexes/comparison/test_measurement.py",
    "profile/families/test_published.py",
    "runs/test_workers.py",
    "end_to_end/test_ctrl_c.py",
    "cli/test_scripts.py",
    "end_to_end/test_wheel.py",
    "publish/hub/test_notebook.py",
    "end_to_end/test_ray.py",
    "model/training/test_jax_backend.py",
    "end_to_end/test_main_job.py",
    "end_to_end/test_without_posix.py",
    "runs/machine/test_precision.py",
    "end_to_end/test_interruption.py",
    "model/training/test_memory.py",
    "cli/test_fuzz.py",
    "model/networks/test_serving_quantiles.py",
    "model/networks/test_stacking.py",
    "base/test_invocation.py",
    "base/test_plugins.py",
    "runs/test_execution.py",
    "model/networks/test_products.py",
    "model/training/test_fleet.py",
    "model/training/test_pipeline.py",
    "forecaster/test_paths_and_newcomers.py",
    "model/training/test_trainer.py",
    "publish/hub/test_update_command.py",
    "annexes/live/ledger/test_quantile_forecasts.py",
    "annexes/tracking/test_tracking.py",
    "end_to_end/test_ledger.py",
    "publish/hub/test_injected_texts.py",
    "model/networks/test_networks.py",
    "publish/hub/test_kept_models.py",
    "model/training/test_step.py",
    "publish/hub/test_publish.py",
    "publish/hub/test_publish_command.py",
    "properties/test_no_look_ahead.py",
    "runs/test_backtest.py",
    "annexes/search/test_search.py",
    "annexes/search/test_trial_record.py",
    "model/networks/test_portable.py",
    "cli/test_predict.py",
    "runs/test_calibration.py",
    "publish/report/test_page_in_browser.py",
    "publish/hub/test_stalls.py",
    "runs/machine/test_processes.py",
    "api/test_training.py",
    "publish/report/test_report_command.py",
    "cli/test_doctor.py",
    "model/training/test_probe.py",
    "profile/test_tasks.py",
    "data/market/sources/test_live.py",
    "properties/test_covariates_look_at_the_past.py",
    "annexes/live/app/test_stream.py",
    "runs/test_backtest_folds.py",
    "contracts/test_toy_task.py",
    "runs/test_fleet_engine.py",
    "publish/hub/test_ledger_dataset.py",
    "profile/test_ta_package.py",
    "model/networks/test_serving.py",
    "publish/hub/test_pull.py",
    "annexes/live/app/test_guard.py",
    "annexes/live/app/test_server.py",
    "model/networks/test_checkpointing.py",
    "runs/test_local.py",
    "annexes/live/ledger/test_record.py",
    "forecaster/test_forecaster.py",
    "annexes/live/app/test_page_in_browser.py",
    "publish/report/test_comparison.py",
    "publish/hub/test_publish_faults.py",
    "api/test_examples.py",
    "publish/hub/test_strangers_records.py",
)
"""Files below tests/, by what they took on two quiet cores or by what they do there."""

_PLACES = {f"tests/{name}": place for place, name in enumerate(LONGEST)}


def longest_first(item: pytest.Item) -> int:
    """Return the place of a test's file; those of one file stay in their order."""
    return _PLACES.get(item.nodeid.partition("::")[0], len(LONGEST))
