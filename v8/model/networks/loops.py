"""The forms in which loops over time are compiled, and the time steps in one trip of a loop on a GPU.

Apart from Keras, so that a module that only chooses among them can import them.
"""

import os
from typing import Final, Literal

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


STEPS_PER_TRIP: Final = 6
"""The default: more steps hardly save kernels, and take much longer to compile."""
STEPS_VARIABLE: Final = "V8_STEPS_PER_TRIP"
"""Environment variable by which `v8.runs.machine.choices` passes another number to the processes of a run.
Where it is set, loops have that form without a GPU, too, so that the form can be tested."""


def chosen_steps_per_trip() -> int:
    """Return the number of time steps in one trip of a loop on a GPU, at least 2."""
    return int(os.environ.get(STEPS_VARIABLE, STEPS_PER_TRIP))
