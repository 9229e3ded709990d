"""The message of the verb `update`, which announces the stream that follows it."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from grpo_runtime.weight_sync.interface import Info
from grpo_runtime.weight_sync.stream.changes import ChangeTable
from grpo_runtime.weight_sync.stream.digest import KEY_BYTES
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.manifest import WeightManifest
from grpo_runtime.weight_sync.stream.tags import POLY1305


class UpdateInfo(BaseModel):
    """What the verb `update` carries: the manifest of the stream that follows and the key of its tag, or
    `abort`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    manifest: WeightManifest | None = None
    key: Annotated[str, Field(pattern=rf"^([0-9a-f]{{{2 * KEY_BYTES}}})?$", repr=False)] = ""
    tag: Annotated[str, Field(max_length=64)] = POLY1305
    """How the tag is computed; see `tags`."""
    connection: Annotated[str, Field(max_length=128, repr=False)] = ""
    """Which one the stream comes by, where a receiver may have had several."""
    stall_seconds: Annotated[float, Field(gt=0)] = 10.0
    """How long one buffer may take."""
    changes: ChangeTable | None = None
    """Only what changed follows, in place of the stream; then the tag of the whole stream."""
    abort: Annotated[str, Field(max_length=1024)] = ""
    """Why the open update is given up; no stream follows."""


def update_info(
    weights: HostCopy, *, connection: str = "", stall_seconds: float, changes: ChangeTable | None = None
) -> Info:
    """The `update` of these weights, or of these `changes` that lead to them, for the control channel."""
    info = UpdateInfo(
        manifest=weights.manifest,
        key=weights.key.hex(),
        tag=weights.tag_algorithm,
        connection=connection,
        stall_seconds=stall_seconds,
        changes=changes,
    )
    # an update of all weights has none
    left_out = {"abort"} if changes is not None else {"abort", "changes"}
    return info.model_dump(mode="json", exclude=left_out)
