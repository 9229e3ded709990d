"""One upload: which files are missing, sending them, and the check that all have arrived."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from grpo_runtime.export.destination import Destination, DestinationUnreachableError
from grpo_runtime.export.files import LocalFile

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = (2.0, 5.0, 15.0, 60.0, 120.0, 300.0)
"""Pauses between tries: a store that restarts is back after minutes, and the GPUs wait meanwhile."""


class UploadProgress(Protocol):
    """Is told how an upload goes."""

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
