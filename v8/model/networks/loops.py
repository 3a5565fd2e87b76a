"""The forms in which loops over time are compiled; apart from Keras, so that any module can import them."""

from typing import Literal

Loops = Literal[
    "stepwise",
    "whole",
    "whole_of_16",
    "gpu",
    "gpu_trips_of_4",
    "gpu_trips_of_10",
    "gpu_trips_of_60",
    "gpu_command_buffers",
    "gpu_unrolled_command_buffers",
    "gpu_small_command_buffers",
    "gpu_double_buffering",
]
"""A form, as `run.json` stores it.

On a CPU `stepwise` runs each operation of a time step as one task; the others are fused loops, one kernel for
the whole loop, and differ in the tiles of its matrix products (`v8.runs.machine.choices.FLAGS`). On a GPU:
how kernels are launched (`v8.runs.machine.choices.GPU_LOOPS`)."""
