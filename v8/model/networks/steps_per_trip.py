"""The number of time steps in one trip of a loop, where loops have the form for a GPU.

Apart from `v8.model.networks.trips`, so that a module that only chooses the number need not import Keras.
"""

import os
from typing import Final

STEPS_PER_TRIP: Final = 6
"""The default: more steps hardly save kernels, and take much longer to compile."""
STEPS_VARIABLE: Final = "V8_STEPS_PER_TRIP"
"""Environment variable by which `v8.runs.machine.choices` passes another number to the processes of a run.
Where it is set, loops have that form without a GPU, too, so that the form can be tested."""


def chosen_steps_per_trip() -> int:
    """Return the number of time steps in one trip of a loop on a GPU, at least 2."""
    return int(os.environ.get(STEPS_VARIABLE, STEPS_PER_TRIP))
