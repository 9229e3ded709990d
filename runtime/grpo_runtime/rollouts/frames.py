"""Frames: records of JSON and raw numbers, one after the other, in a message or in a file.

    magic      header bytes   payload bytes   checksum   header   payload
    "GRJ1"     uint32         uint32          uint32     JSON     arrays, in the order the header names them

Numbers are little-endian. The checksum is the CRC-32 of everything else but the magic. The header names each
array with its type code (as in Python's `array`) and its length, so that floats keep every bit.
"""

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MAGIC = b"GRJ1"
_ARRAYS = "arrays"
_LENGTHS = struct.Struct("<II")
_CHECKSUM = struct.Struct("<I")
_PREFIX_BYTES = len(MAGIC) + _LENGTHS.size + _CHECKSUM.size
_ITEM_BYTES = {"B": 1, "i": 4, "I": 4, "f": 4, "d": 8}
"""Type codes that a frame may use, and bytes of an item."""
_MALFORMED = (AttributeError, KeyError, TypeError, RecursionError)
"""What reading a header raises that is not one, besides ValueError."""


@dataclass(frozen=True)
class Frame:
    """One record: JSON values and arrays by name."""

    header: Mapping[str, Any]
    arrays: Mapping[str, "array[Any]"]


@dataclass(frozen=True)
class Damage:
    """Where a file stops to make sense."""

    offset: int
    """Bytes before it are whole records."""
    num_bytes: int
    """Bytes from there on."""
    is_tail: bool
    """Whether no whole record follows: a write was cut off."""


def encode_frame(frame: Frame) -> bytes:
    """The bytes of one record. Raises ValueError for numbers in the header that JSON has not."""
    assert _ARRAYS not in frame.header, f"{_ARRAYS} is what the header says of the arrays"
    shapes = [[name, values.typecode, len(values)] for name, values in frame.arrays.items()]
    header = json.dumps({**frame.header, _ARRAYS: shapes}, allow_nan=False).encode()
    payload = b"".join(_little_endian(values).tobytes() for values in frame.arrays.values())
    lengths = _LENGTHS.pack(len(header), len(payload))
    checksum = _CHECKSUM.pack(_checksum(lengths, header, payload))
    return b"".join((MAGIC, lengths, checksum, header, payload))


def encode_frames(frames: Iterable[Frame]) -> bytes:
    """The bytes of a message."""
    return b"".join(map(encode_frame, frames))


def read_frames(message: bytes) -> list[Frame]:
    """The records of a message, which has come whole. Raises ValueError for one that is anything else."""
    frames, end = _whole_frames(message)
    if end < len(message):
        raise ValueError(f"{len(message) - end} of {len(message)} bytes are no frame")
    return frames


def decode_frames(data: bytes) -> tuple[list[Frame], Damage | None]:
    """The whole records at the beginning of a file, whose last one may be cut off anywhere, and what ended
    them before its end. Raises ValueError for a whole one that makes no sense."""
    frames, end = _whole_frames(data)
    if end == len(data):
        return frames, None
    return frames, Damage(end, len(data) - end, is_tail=not _has_frame(data, end + 1))


def _whole_frames(data: bytes) -> tuple[list[Frame], int]:
    """The whole records at the beginning, and where they end."""
    frames: list[Frame] = []
    offset = 0
    while offset < len(data) and (end := _end_of_frame(data, offset)) is not None:
        frames.append(_decode(data, offset, end))
        offset = end
    return frames, offset


def _end_of_frame(data: bytes, start: int) -> int | None:
    """Where the record that begins at `start` ends; None when there is no whole one."""
    body = start + _PREFIX_BYTES
    if data[start : start + len(MAGIC)] != MAGIC or len(data) < body:
        return None
    lengths = data[start + len(MAGIC) : start + len(MAGIC) + _LENGTHS.size]
    num_header, num_payload = _LENGTHS.unpack(lengths)
    end = body + num_header + num_payload
    if len(data) < end:
        return None
    (checksum,) = _CHECKSUM.unpack(data[body - _CHECKSUM.size : body])
    return end if checksum == _checksum(lengths, data[body:end]) else None


def _has_frame(data: bytes, start: int) -> bool:
    """Whether a whole record begins anywhere from `start` on."""
    while (start := data.find(MAGIC, start)) >= 0:
        if _end_of_frame(data, start) is not None:
            return True
        start += 1
    return False


def _decode(data: bytes, start: int, end: int) -> Frame:
    """The record between them."""
    num_header, _ = _LENGTHS.unpack_from(data, start + len(MAGIC))
    at = start + _PREFIX_BYTES + num_header
    arrays: dict[str, array[Any]] = {}
    try:
        header = json.loads(data[at - num_header : at])
        for name, typecode, length in header.pop(_ARRAYS):
            num_bytes = _ITEM_BYTES[typecode] * length
            values: array[Any] = array(typecode)
            values.frombytes(data[at : at + num_bytes])
            arrays[name] = _little_endian(values)
            at += num_bytes
    except _MALFORMED as error:
        raise ValueError(f"a frame has no header: {type(error).__name__}: {error}") from error
    if at != end:
        raise ValueError("a frame has other numbers than its header says")
    return Frame(header, arrays)


def _little_endian(values: "array[Any]") -> "array[Any]":
    """The same array, or on a big-endian machine one with its bytes the other way around."""
    if sys.byteorder == "little":
        return values
    swapped = values[:]
    swapped.byteswap()
    return swapped


def _checksum(*parts: bytes) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
