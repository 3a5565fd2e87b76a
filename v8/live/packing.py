"""Numbers as the database keeps them: little-endian, and those of a forecast in half of their bytes.

Prices that forecasters foresee begin with the same bits, so bytes of equal rank stand together before they
are compressed. What is read back has the shape that was written, and is finite.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers = TypeVar("Numbers", bound=NDArray[Any])

_LEVEL: Final = 9


def pack(values: NDArray[np.float32]) -> bytes:
    """Write float32 numbers of any shape, compressed.

    >>> unpack(pack(np.array([[1.5, 2.0]], np.float32)), (1, 2))
    array([[1.5, 2. ]], dtype=float32)
    """
    by_rank = np.frombuffer(values.astype("<f4").tobytes(), np.uint8).reshape(-1, 4).T
    return zlib.compress(by_rank.tobytes(), _LEVEL)


def unpack(content: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Read what `pack` wrote.

    Args:
        content: The bytes.
        shape: Of the numbers.

    Raises:
        ValueError: If the bytes are not those of so many finite numbers.
    """
    size = 4 * int(np.prod(shape))
    reader = zlib.decompressobj()
    try:
        by_rank = reader.decompress(content, size + 1)  # a bomb is not unpacked
    except zlib.error as error:
        raise ValueError(f"no packed numbers ({error})") from error
    if len(by_rank) != size:
        raise ValueError(f"not {size // 4:,} numbers")
    plain = np.frombuffer(by_rank, np.uint8).reshape(4, -1).T.tobytes()
    return _finite(np.frombuffer(plain, "<f4").astype(np.float32).reshape(shape))


def pack_plain(values: NDArray[np.float64]) -> bytes:
    """Write float64 numbers of any shape as they are.

    >>> unpack_plain(pack_plain(np.array([0.1])), (1,))
    array([0.1])
    """
    return values.astype("<f8").tobytes()


def unpack_plain(content: bytes, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Read what `pack_plain` wrote, one or several behind each other.

    Raises:
        ValueError: If the bytes are not those of so many finite numbers.
    """
    if len(content) != 8 * int(np.prod(shape)):
        raise ValueError(f"not {int(np.prod(shape)):,} numbers")
    return _finite(np.frombuffer(content, "<f8").astype(np.float64).reshape(shape))


def _finite(values: Numbers) -> Numbers:
    if not np.isfinite(values).all():
        raise ValueError("numbers that are infinite or none")
    return values
