"""What a version says about itself, in a file that is written last."""

import re
from typing import Annotated

from pydantic import Field, ValidationError

from grpo_api.contract.run_config import JobRef
from grpo_api.contract.versions import PolicyVersion
from grpo_api.model import ApiModel
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.source import TensorSpec
from grpo_runtime.weight_sync.stream.manifest import DTYPES, WeightManifest, manifest_of

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
"""A version without it was never committed."""
LATEST = "LATEST"
"""A file with the name of the newest version. It moves once that is whole."""
_NAME = re.compile(r"version-(\d{6,12})-(\d{6,12})")
_FILE = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"
"""What a file of a version may be called: a name without a folder."""

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
        """Which weights these are."""
        return PolicyVersion(self.attempt, self.step)

    def stream(self) -> WeightManifest:
        """The stream that these tensors are. Raises WeightSyncError when they cannot be one."""
        try:
            specs = [TensorSpec(each.name, each.shape, DTYPES[each.dtype]) for each in self.tensors]
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
