"""From `export` of a spec to destinations."""

from collections.abc import Sequence
from pathlib import Path

from grpo_api.v1alpha1.spec import ExportSpec
from grpo_runtime.export.credentials import UploadCredentials
from grpo_runtime.export.destination import Destination


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
