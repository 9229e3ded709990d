"""One upload, which sends the files that are missing and checks that all have arrived, and the uploads at the
end of a run, beside the loop of rank 0 that continues meeting the other ranks."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from grpo_runtime.errors import UserError
from grpo_runtime.export.destination import Destination, DestinationUnreachableError
from grpo_runtime.export.files import LocalFile, files_of
from grpo_runtime.process.background import in_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = (2.0, 5.0, 15.0, 60.0, 120.0, 300.0)
"""Pauses between tries: a store that restarts is back after minutes, and the GPUs wait meanwhile."""
_EXPORT = "`grpo-runtime export` uploads it without another run"
_LOST = (
    "the job has no checkpoint.claimName, so the model is lost with this pod: with a claim there a later "
    "attempt only uploads"
)


class UploadProgress(Protocol):
    """Receives the progress of an upload."""

    def says(self, message: str) -> None:
        """What the upload does from now on, or waits for."""
        ...

    def sent(self, num_bytes: int) -> None:
        """So many bytes have arrived."""
        ...


def upload(
    files: Sequence[LocalFile],
    *,
    destination: Destination,
    progress: UploadProgress,
    retry_seconds: Sequence[float] = RETRY_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Bring `files` to `destination`, those that it does not have yet, and check each there by its digest.

    What fails and may succeed later is tried again after each of `retry_seconds`. Raises
    DestinationUnreachableError after the last try, and UserError when the destination refuses.
    """

    def retried(act: Callable[[], T], doing: str) -> T:
        for pause in retry_seconds:
            try:
                return act()
            except DestinationUnreachableError as error:
                logger.warning("%s; trying again in %.0f s", error, pause)
                progress.says(f"{doing} waits {pause:.0f} s for another try: {error}")
                sleep(pause)
                progress.says(doing)
        return act()

    def send(file: LocalFile) -> None:
        destination.send(file, on_bytes=progress.sent)

    begins = f"uploading the model to {destination.what}"
    progress.says(begins)
    retried(destination.prepare, begins)
    num_sent = 0
    for number, file in enumerate(files, start=1):
        doing = f"uploading {number} of {len(files)} files to {destination.what}"
        progress.says(doing)
        if retried(lambda file=file: destination.holds(file), doing):  # type: ignore[misc]
            continue
        logger.info("%s: %s, %d bytes", doing, file.name, file.num_bytes)
        retried(lambda file=file: send(file), doing)  # type: ignore[misc]
        num_sent += 1
    ends = f"checking {len(files)} files at {destination.what}"
    progress.says(ends)
    retried(lambda: destination.publish(files), ends)
    for file in files:
        if not retried(lambda file=file: destination.holds(file), ends):  # type: ignore[misc]
            raise DestinationUnreachableError(
                f"{destination.what}: {file.name} did not arrive as it was sent (its digest differs)"
            )
    logger.info("%s has all %d files; %d were sent now", destination.what, len(files), num_sent)


@dataclass
class UploadState:
    """Where the uploads stand, written by their thread and read by the loop: an `UploadProgress`."""

    message: str = ""
    num_bytes: int = 0
    """Bytes that have arrived. While they grow, the run is alive."""

    def says(self, message: str) -> None:
        """Keep what the upload does now, for the progress of the job."""
        self.message = message

    def sent(self, num_bytes: int) -> None:
        """Add what has arrived."""
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
        says where the model is and how to continue. Cancelling it does not stop the thread that uploads;
        nothing waits for that any more."""
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
