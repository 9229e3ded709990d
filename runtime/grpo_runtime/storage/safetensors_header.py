"""The header of a safetensors file, for those who write one as a stream."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SAFETENSORS_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The format's names of the dtypes of weights, buffers and moments, keyed by torch's name."""


@dataclass(frozen=True)
class HeaderEntry:
    """One tensor of a file. `dtype` is torch's name of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def header_of(tensors: Iterable[HeaderEntry], metadata: Mapping[str, str] | None = None) -> bytes:
    """Its length as eight bytes, little-endian, and then JSON, padded to a multiple of eight bytes. The bytes
    of the tensors follow, one after the other in this order."""
    described: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.num_bytes
        described[tensor.name] = {
            "dtype": SAFETENSORS_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
