"""What a destination of a trained model can do, the two ways in which it may fail, and how those that a job
names are opened."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.v1alpha1.spec import ExportSpec
from grpo_runtime.errors import KnownError
from grpo_runtime.export.access import UploadCredentials
from grpo_runtime.export.files import LocalFile


class Destination(Protocol):
    """A destination that takes the files of a model.

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


class DestinationUnreachableError(KnownError):
    """A destination cannot be reached, or fails itself. A retry helps once it can."""

    exit_code = ExitCode.TRANSIENT


def open_destinations(specs: Sequence[ExportSpec], *, volumes_dir: Path) -> list[Destination]:
    """The destinations of a run. Their Secrets are below `volumes_dir`; where a run on this machine has none
    there, the user's own credentials are taken. Nothing is asked over the network yet. Raises UserError when
    a Secret lacks a key."""
    return [
        open_destination(
            spec,
            credentials=UploadCredentials.of(spec.secret_volume, volumes_dir=volumes_dir),
            field=f"export[{index}].to",
        )
        for index, spec in enumerate(specs)
    ]


def open_destination(spec: ExportSpec, *, credentials: UploadCredentials, field: str) -> Destination:
    """The destination of `spec`; `field` is what messages call it."""
    # each library takes a part of a second to import, and few runs need both
    if spec.is_hub:
        from grpo_runtime.export.hub import HubDestination

        return HubDestination(spec, credentials=credentials, field=field)
    from grpo_runtime.export.s3 import S3Destination

    return S3Destination(spec, credentials=credentials, field=field)
