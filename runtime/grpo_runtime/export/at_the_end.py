"""The uploads at the end of a run, beside the loop of rank 0 that goes on meeting the other ranks."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpo_runtime.errors import UserError
from grpo_runtime.export.destination import Destination, DestinationUnreachableError
from grpo_runtime.export.files import files_of
from grpo_runtime.export.upload import upload
from grpo_runtime.process.background import in_thread

logger = logging.getLogger(__name__)

_EXPORT = "`grpo-runtime export` uploads it without another run"
_LOST = (
    "the job has no checkpoint.claimName, so the model is lost with this pod: with a claim there a later "
    "attempt only uploads"
)


@dataclass
class UploadState:
    """Where the uploads stand, written by their thread and read by the loop: an `UploadProgress`."""

    message: str = ""
    num_bytes: int = 0
    """Bytes that have arrived. While they grow, the run is alive."""

    def says(self, message: str) -> None:
        """See `UploadProgress`."""
        self.message = message

    def sent(self, num_bytes: int) -> None:
        """See `UploadProgress`."""
        self.num_bytes += num_bytes


@dataclass(frozen=True)
class ModelUploads:
    """Uploads of the model in `folder` to each destination, one after the other."""

    destinations: Sequence[Destination] = ()
    folder: Path = Path()
    is_kept: bool = True
    """Whether the folder is there when the pod has ended: on a claim, or on the machine of a local run."""
    state: UploadState = field(default_factory=UploadState)

    def require_access(self) -> None:
        """Raise UserError when a destination refuses, before days of training are spent. One that cannot be
        reached now may be there at the end."""
        for destination in self.destinations:
            try:
                destination.prepare()
            except DestinationUnreachableError as error:
                logger.warning("%s; it is needed at the end of the run", error)

    async def run(self) -> None:
        """Upload the model. Raises UserError and DestinationUnreachableError as `upload` does; the sentence
        says where the model is and how to go on. Cancelling it does not stop the thread that uploads; nothing
        waits for that any more."""
        # a stopped run does not wait for a store that does not answer
        await asyncio.wrap_future(in_thread(self._upload_all, name="upload"))

    def _upload_all(self) -> None:
        if not self.destinations:
            return
        self.state.says("hashing the files of the model")
        files = files_of(self.folder)
        for destination in self.destinations:
            try:
                upload(files, destination=destination, progress=self.state)
            except (UserError, DestinationUnreachableError) as error:
                raise type(error)(
                    f"every step is done and the model is in {self.folder}, but its upload failed: {error}; "
                    f"{_EXPORT if self.is_kept else _LOST}"
                ) from error
