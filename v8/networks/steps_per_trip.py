"""How many steps over time one trip of a loop takes where loops have the form for a GPU.

Apart from `v8.networks.trips`, so that whoever only chooses the number need not import Keras.
"""

import os
from typing import Final

STEPS_PER_TRIP: Final = 6
"""Where nothing else was found to be faster: more are hardly fewer kernels, and compile for much longer."""
STEPS_VARIABLE: Final = "V8_STEPS_PER_TRIP"
"""Environment variable by which `v8.machine.choices` hands another number to the processes of a run. Where it
is set, loops have that form without a GPU, too: so it can be rehearsed."""


def chosen_steps_per_trip() -> int:
    """Return how many steps over time one trip of a loop takes on a GPU, at least 2."""
    return int(os.environ.get(STEPS_VARIABLE, STEPS_PER_TRIP))
