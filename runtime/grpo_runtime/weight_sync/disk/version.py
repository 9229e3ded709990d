"""What a version of the weights is: a folder of safetensors files, with a manifest that is written last.

A file holds tensors of elements of one size, so that each begins at a multiple of its element, in the order
of the stream. So every file is written and read once through while the stream passes. An update names a
version by a `StoredStream`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, ValidationError

from grpo_api.contract.run_config import JobRef
from grpo_api.contract.versions import PolicyVersion
from grpo_api.model import ApiModel
from grpo_runtime.storage.safetensors_header import HeaderEntry, header_of
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.source import TensorSpec
from grpo_runtime.weight_sync.stream.manifest import WIRE_DTYPES, TensorEntry, WeightManifest, manifest_of
from grpo_runtime.weight_sync.tag import TAG_BYTES

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
"""A version without it was never committed."""
LATEST = "LATEST"
"""A file with the name of the newest version. It moves once that is whole."""
FILE_BYTES = 1024**3
"""A file is not begun beyond this, but a tensor is never cut in two. Stores take a file at a time."""
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_NAME = re.compile(r"version-(\d{6,12})-(\d{6,12})")
_FILE = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"
"""Pattern of the name of a file of a version: a name without a folder."""
_METADATA = {"format": "pt"}
_TEXT = re.compile(rf"([0-9a-f]{{16}}) ([a-z0-9-]{{1,40}}) ([0-9a-f]{{{2 * TAG_BYTES}}})")
FileName = Annotated[str, Field(max_length=255, pattern=_FILE)]


class DamagedVersionError(WeightSyncError):
    """The files of a version are not what its trainer wrote."""

    MARK = "this version is damaged in the store"


class StoredFile(ApiModel):
    """One file of a version."""

    num_bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class StoredTensor(ApiModel):
    """One tensor: `offset` is the byte of `file` at which it begins."""

    name: Annotated[str, Field(min_length=1, max_length=1024)]
    dtype: str
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    file: FileName
    offset: Annotated[int, Field(ge=0)]


class VersionManifest(ApiModel):
    """All files of a version with their digests, and its tensors in the order in which they travel."""

    schema_version: int
    job: JobRef
    attempt: Annotated[int, Field(ge=1)]
    step: Annotated[int, Field(ge=0)]
    tensors: tuple[StoredTensor, ...]
    files: dict[FileName, StoredFile]

    @property
    def version(self) -> PolicyVersion:
        """The version of these weights."""
        return PolicyVersion(self.attempt, self.step)

    def stream(self) -> WeightManifest:
        """The stream that these tensors are. Raises WeightSyncError when they cannot be one."""
        try:
            specs = [TensorSpec(each.name, each.shape, WIRE_DTYPES[each.dtype]) for each in self.tensors]
            return manifest_of(specs)
        except (KeyError, ValueError) as error:
            raise WeightSyncError(f"its {MANIFEST} lists tensors that cannot travel: {error}") from error


def name_of(version: PolicyVersion) -> str:
    """The folder of a version. Sorted as texts, names of one job are in the order of its versions."""
    return f"version-{version.attempt:06d}-{version.step:06d}"


def version_named(name: str) -> PolicyVersion | None:
    """The version in a folder of this name; None for any other name."""
    match = _NAME.fullmatch(name)
    return PolicyVersion(int(match[1]), int(match[2])) if match else None


def parse_manifest(text: bytes, *, name: str) -> VersionManifest:
    """Read the manifest of the version `name`. Raises DamagedVersionError for what is no manifest or speaks
    of another version, and WeightSyncError for one of another release."""
    try:
        manifest = VersionManifest.model_validate_json(text)
    except ValidationError as error:
        raise DamagedVersionError(
            f"{name}/{MANIFEST} is no manifest of weights: {error.errors()[0]['msg']}"
        ) from error
    if manifest.schema_version != SCHEMA_VERSION:
        raise WeightSyncError(
            f"{name}/{MANIFEST} has schemaVersion {manifest.schema_version} but this release reads "
            f"{SCHEMA_VERSION}: use the same release for the trainer and its engines"
        )
    if name_of(manifest.version) != name:
        raise DamagedVersionError(f"{name}/{MANIFEST} is that of {name_of(manifest.version)}")
    return manifest


@dataclass(frozen=True)
class StoredStream:
    """The version `name`, whose stream has this tag, as the sender said that `init` has named.

    It travels as text on the authenticated control channel, in the field where other backends name a
    connection. The tag is not taken from the store: a writer to the store cannot make other bytes pass.
    """

    sender: str
    name: str
    tag: bytes

    def __str__(self) -> str:
        return f"{self.sender} {self.name} {self.tag.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` writes. Raises WeightSyncError for anything else, also for a name that is no
        version's, which could be a path."""
        match = _TEXT.fullmatch(text)
        if match is None or version_named(match[2]) is None:
            raise WeightSyncError("weight update refused: it names no version of a store")
        return cls(sender=match[1], name=match[2], tag=bytes.fromhex(match[3]))


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
        """The byte of the file at which each tensor begins, by its name."""
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
        size = WIRE_DTYPES[entry.dtype].itemsize
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
    """The content of INDEX_FILE: which file a tensor is in. Only several files have one."""
    num_bytes = sum(entry.num_bytes for file in files for entry in file.tensors)
    names = {entry.name: file.name for file in files for entry in file.tensors}
    return {"metadata": {"total_size": num_bytes}, "weight_map": names}


def _name(index: int, *, num_files: int) -> str:
    return SINGLE_FILE if num_files == 1 else f"model-{index + 1:05d}-of-{num_files:05d}.safetensors"


def _header(tensors: Sequence[TensorEntry]) -> bytes:
    entries = (HeaderEntry(each.name, each.dtype, each.shape, each.num_bytes) for each in tensors)
    return header_of(entries, _METADATA)
