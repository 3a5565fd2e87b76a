"""Arrays per task: small ones are kept, large ones worked out again."""

from __future__ import annotations

import numpy as np
import pytest

from v8.data.windows.span import LARGEST_KEPT_BYTES, PerTask


def test_what_is_small_is_computed_once_and_what_is_large_each_time() -> None:
    asked: list[str] = []
    num_large = LARGEST_KEPT_BYTES // 8 + 1

    def compute(task: str) -> np.ndarray:
        asked.append(task)
        return np.zeros(num_large if task == "large" else 1)  # untouched zeros take no memory

    arrays = PerTask(["small", "large"], compute)
    for _ in range(2):
        assert {task: len(values) for task, values in arrays.items()} == {"small": 1, "large": num_large}
    assert asked == ["small", "large", "large"]
    assert list(arrays) == ["small", "large"]
    assert "other" not in arrays
    with pytest.raises(KeyError, match="other"):
        arrays["other"]
