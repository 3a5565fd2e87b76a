"""The fields that an ONNX file may hold, checked before a library reads the file.

An ONNX file is a message of Protocol Buffers, of numbered fields, and a message may hold messages. A library
that reads it makes an object of each, so two bytes of a file can cost a hundred bytes of memory, and it keeps
fields that it does not know. So a file of somebody else is walked through first, by this module alone:

1. Every message has only the fields that v8 writes. That leaves out functions, graphs inside operations,
   shapes of results, notes, numbers in other files and fields that no version of ONNX knows.
2. Numbers are at most `MAX_WHOLE`, texts at most `MAX_TEXT_BYTES`, fields at most `MAX_FIELDS`.

For the numbers of the fields see https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, for the encoding
https://protobuf.dev/programming-guides/encoding/.
"""

from collections.abc import Mapping
from typing import Final

MAX_FIELDS: Final = 500_000  # of a file; the shipped profiles have 10,000 and fewer
MAX_TEXT_BYTES: Final = 1_024  # of a name or an equation
MAX_WHOLE: Final = 1 << 31
"""Largest number of a structure, and its negative the smallest; lengths have a lower limit of their own."""

_WHOLE: Final = "a whole number"
_REAL: Final = "a real number"  # of four bytes
_TEXT: Final = "a text"
_NUMBERS: Final = "the numbers of a constant"

_MESSAGES: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {1: _WHOLE, 2: _TEXT, 7: "graph", 8: "operator set", 14: "property"},
    "operator set": {1: _TEXT, 2: _WHOLE},
    "property": {1: _TEXT, 2: _TEXT},
    "graph": {1: "node", 2: _TEXT, 5: "constant", 11: "value", 12: "value"},
    "node": {1: _TEXT, 2: _TEXT, 4: _TEXT, 5: "attribute"},
    "attribute": {1: _TEXT, 2: _REAL, 3: _WHOLE, 4: _TEXT, 8: _WHOLE, 20: _WHOLE},
    "constant": {1: _WHOLE, 2: _WHOLE, 8: _TEXT, 9: _NUMBERS},
    "value": {1: _TEXT, 2: "type"},
    "type": {1: "tensor type"},
    "tensor type": {1: _WHOLE, 2: "shape"},
    "shape": {1: "axis"},
    "axis": {1: _WHOLE, 2: _TEXT},
}
"""What each field of a message holds, by its number: a value, or a message of this name."""

DAMAGED: Final = "a damaged file, or one of another kind"
_VARINT: Final = 0  # ways in which a field is encoded
_DELIMITED: Final = 2
_FOUR_BYTES: Final = 5
_VARINT_BYTES: Final = 10  # of a number of 64 bits, seven bits a byte


class ForeignFieldError(ValueError):
    """A file holds something else than v8 writes; its text describes what."""


def require_known_fields(content: bytes) -> None:
    """Check the bytes of an ONNX file.

    Raises:
        ForeignFieldError: If they hold something else than the fields that v8 writes.
    """
    num_fields = 0
    pending = [("model", 0, len(content))]
    while pending:
        message, place, end = pending.pop()
        while place < end:
            num_fields += 1
            if num_fields > MAX_FIELDS:
                raise ForeignFieldError(f"one of more than {MAX_FIELDS:,} fields")
            key, place = _whole(content, place, end)
            held = _MESSAGES[message].get(key >> 3)
            if held is None:
                described = f"one whose {message} has a field that v8 does not write"
                raise ForeignFieldError(f"{described} (number {key >> 3})")
            place, inner = _value(content, place, end, held, encoding=key & 7)
            if inner is not None:
                pending.append((held, *inner))


def _value(
    content: bytes, place: int, end: int, held: str, *, encoding: int
) -> tuple[int, tuple[int, int] | None]:
    """Check the value of a field that begins at a place; return the place after it.

    The second is the first and past-the-end place of the value if it is a message, else None.
    """
    expected = {_WHOLE: _VARINT, _REAL: _FOUR_BYTES}.get(held, _DELIMITED)
    if encoding != expected:
        raise ForeignFieldError(f"one with {held} in another encoding than v8 writes")
    if held == _WHOLE:
        number, place = _whole(content, place, end)
        signed = number - (1 << 64) if number >> 63 else number
        if abs(signed) > MAX_WHOLE:
            raise ForeignFieldError(f"one with the number {signed:,} in its structure")
        return place, None
    length = 4
    if held != _REAL:
        length, place = _whole(content, place, end)
    if length > end - place:
        raise ForeignFieldError(DAMAGED)
    if held == _TEXT and length > MAX_TEXT_BYTES:
        raise ForeignFieldError(f"one with a text of {length:,} bytes")
    inner = (place, place + length) if held in _MESSAGES else None
    return place + length, inner


def _whole(content: bytes, place: int, end: int) -> tuple[int, int]:
    """Return the number at a place, from 0 and below 2^64, and the place after it."""
    number = 0
    for index, byte in enumerate(content[place : min(end, place + _VARINT_BYTES)]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number & ((1 << 64) - 1), place + index + 1
    raise ForeignFieldError(DAMAGED)
