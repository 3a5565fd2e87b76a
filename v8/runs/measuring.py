"""What processes measure that do nothing else (`v8.base.child`): the speeds of `v8.model.training.probe`.

request = MeasurementRequest(profile, [{"measure": "matmul", "seconds": 2}])
(result,) = run_in_children([ChildCall(measure, request)])
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from v8.base.child import report_ready
from v8.base.hardware import has_gpu
from v8.base.invocation import collected_later
from v8.base.starting import light_start
from v8.profile.profile import Profile

Measurement: TypeAlias = dict[str, Any]
"""One measurement to take: its name as "measure", one of those in `measure`, and its options."""


@dataclass(frozen=True)
class MeasurementRequest:
    """Measurements of one profile."""

    profile: Profile  # whose network is measured
    measurements: Sequence[Measurement]  # what to measure, in this order


def measure(request: MeasurementRequest) -> Iterator[Any]:
    """Take the measurements of a request one after another; yields plain values."""
    with collected_later():  # compiling leaves little garbage
        with light_start():
            # Not at the top: who asks for measurements does not start TensorFlow.
            from v8.model.training import probe  # noqa: PLC0415
        has_gpu()  # looking for GPUs counts as part of the start of the process
        report_ready()
        for measurement in request.measurements:
            options = {name: value for name, value in measurement.items() if name != "measure"}
            kind = measurement["measure"]
            if kind == "backend":
                yield probe.describe_backend()
            elif kind == "matmul":
                yield probe.matmul_speed(**options)
            elif kind == "formats":
                yield probe.format_speeds(profile=request.profile, **options)
            else:  # a training step, by layers: "ours" or "stock"
                yield probe.step_speed(kind, profile=request.profile, **options)
