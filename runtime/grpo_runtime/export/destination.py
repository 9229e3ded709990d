"""What a destination of a trained model can do, and the two ways in which it may fail."""

from collections.abc import Callable, Sequence
from typing import Protocol

from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.errors import KnownError
from grpo_runtime.export.files import LocalFile


class DestinationUnreachableError(KnownError):
    """A destination cannot be reached, or fails itself. A retry helps once it can."""

    exit_code = ExitCode.TRANSIENT


class Destination(Protocol):
    """A place that takes the files of a model.

    Every method may be repeated: what is there already is not sent again, or replaced by the same. Each
    raises DestinationUnreachableError when a retry may help, and UserError, with the field and the fix, when
    the destination refuses.
    """

    @property
    def what(self) -> str:
        """Field and address, for messages: `export[0].to (s3://bucket/prefix)`."""
        ...

    def prepare(self) -> None:
        """Make sure that files can be sent there."""
        ...

    def holds(self, file: LocalFile) -> bool:
        """Whether the file is there with this digest."""
        ...

    def send(self, file: LocalFile, *, on_bytes: Callable[[int], None]) -> None:
        """Send the file. `on_bytes` gets the number of bytes of each part that has arrived."""
        ...

    def publish(self, files: Sequence[LocalFile]) -> None:
        """Make visible together what was sent, where the destination can."""
        ...
