"""The process that measures; `v8.runs.machine.processes` starts it and sends it a request.

    echo '{"profile": {...}, "measurements": [{"measure": "matmul", "seconds": 2}]}' \
        | python -m v8.runs.measuring

Speeds are those of `v8.model.training.probe`. `v8.annexes.comparison.measuring` measures whole runs.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from v8.base.hardware import has_gpu
from v8.base.invocation import collected_later
from v8.base.starting import light_start
from v8.runs.machine.processes import MeasurementRequest, handle_request

with light_start():  # they start TensorFlow
    from v8.model.training.probe import describe_backend, format_speeds, matmul_speed, step_speed


MEASURES: Final[Mapping[str, Callable[..., Any]]] = {
    "backend": lambda profile: describe_backend(),
    "matmul": lambda profile, **options: matmul_speed(**options),
    "stock": partial(step_speed, "stock"),
    "ours": partial(step_speed, "ours"),
    "formats": format_speeds,
}
"""The measurements by name; each takes the profile and its options."""


def measure(
    request: MeasurementRequest, measures: Mapping[str, Callable[..., Any]] = MEASURES
) -> Iterator[Any]:
    """Take the measurements of a request one after another; `measures` are those that there are, by name."""
    for measurement in request.measurements:
        options = {name: value for name, value in measurement.items() if name != "measure"}
        yield measures[measurement["measure"]](profile=request.profile, **options)


if __name__ == "__main__":
    has_gpu()  # looking for GPUs counts as part of the start of the process
    with collected_later():  # compiling leaves little garbage
        handle_request(MeasurementRequest, measure)
