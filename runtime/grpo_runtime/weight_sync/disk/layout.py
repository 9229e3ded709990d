"""Which safetensors file of a version holds which tensor, and where. Pure.

A file holds tensors of elements of one size, so that each begins at a multiple of its element, in the order
of the stream. So every file is written and read once through while the stream passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_runtime.storage.safetensors_header import HeaderEntry, header_of
from grpo_runtime.weight_sync.stream.manifest import DTYPES, TensorEntry, WeightManifest

FILE_BYTES = 1024**3
"""A file is not begun beyond this, but a tensor is never cut in two. Stores take a file at a time."""
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_METADATA = {"format": "pt"}


@dataclass(frozen=True)
class TensorFile:
    """One file. `header` is what it begins with; the bytes of `tensors` follow without gaps."""

    name: str
    header: bytes
    tensors: tuple[TensorEntry, ...]

    @property
    def num_bytes(self) -> int:
        """Length of the file."""
        return len(self.header) + sum(entry.num_bytes for entry in self.tensors)

    def offsets(self) -> dict[str, int]:
        """At which byte of the file each tensor begins, by its name."""
        found, end = {}, len(self.header)
        for entry in self.tensors:
            found[entry.name] = end
            end += entry.num_bytes
        return found


def tensor_files(manifest: WeightManifest, *, file_bytes: int = FILE_BYTES) -> tuple[TensorFile, ...]:
    """The files of a version, by the names that Hugging Face libraries look for."""
    groups: list[list[TensorEntry]] = []
    open_groups: dict[int, list[TensorEntry]] = {}
    for entry in manifest.tensors:
        size = DTYPES[entry.dtype].itemsize
        group = open_groups.get(size)
        if group is None or (group and sum(each.num_bytes for each in group) + entry.num_bytes > file_bytes):
            group = open_groups[size] = []
            groups.append(group)
        group.append(entry)
    return tuple(
        TensorFile(_name(index, num_files=len(groups)), _header(group), tuple(group))
        for index, group in enumerate(groups)
    )


def index_of(files: Sequence[TensorFile]) -> dict[str, object]:
    """What INDEX_FILE says: which file a tensor is in. Only several files have one."""
    num_bytes = sum(entry.num_bytes for file in files for entry in file.tensors)
    names = {entry.name: file.name for file in files for entry in file.tensors}
    return {"metadata": {"total_size": num_bytes}, "weight_map": names}


def _name(index: int, *, num_files: int) -> str:
    return SINGLE_FILE if num_files == 1 else f"model-{index + 1:05d}-of-{num_files:05d}.safetensors"


def _header(tensors: Sequence[TensorEntry]) -> bytes:
    entries = (HeaderEntry(each.name, each.dtype, each.shape, each.num_bytes) for each in tensors)
    return header_of(entries, _METADATA)
