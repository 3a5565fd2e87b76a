"""Types of arrays that several packages name."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
"""Numbers in double precision, of any shape."""

AnyFloatArray: TypeAlias = NDArray[np.floating[Any]]
"""Numbers in single or double precision, of any shape: forecasts come in float32, baselines in float64."""
