"""Where the runtime finds the files of a source, which the operator mounts."""

from pathlib import Path, PurePosixPath

from grpo_api.contract.run_config import JobRef
from grpo_api.source import Scheme, Source
from grpo_api.v1alpha1.spec.disk import DiskSpec

_UID_CHARACTERS = 8


def local_path(source: Source, *, volumes_dir: Path) -> Path | None:
    """The path of the file or directory in a pod; None for a source that is no file.

    Raises ValueError when the path leaves its volume.
    """
    if source.scheme is Scheme.FILE:
        return Path(source.path)
    if source.volume is None:
        return None
    if ".." in PurePosixPath(source.path).parts:
        raise ValueError(f"{source.path} leaves the volume {source.name}: remove '..'")
    return volumes_dir / source.volume.folder / source.path


def weights_folder(disk: DiskSpec, *, job: JobRef) -> str:
    """The folder of a job's weights, on the claim or in the bucket."""
    return disk.path or f"{job.name}-{job.uid[:_UID_CHARACTERS]}"


def weights_path(disk: DiskSpec, *, job: JobRef, volumes_dir: Path) -> Path:
    """The folder of a job's weights in a pod that mounts the claim. Raises ValueError for a bucket."""
    if disk.claim_volume is None:
        raise ValueError(f"{disk.to} is no claim")
    return volumes_dir / disk.claim_volume.folder / weights_folder(disk, job=job)
