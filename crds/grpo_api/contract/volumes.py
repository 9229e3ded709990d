"""Where a process finds the files of a source: what the operator mounts is what the runtime opens."""

from pathlib import Path, PurePosixPath

from grpo_api.source import Scheme, Source


def local_path(source: Source, *, volumes_dir: Path) -> Path | None:
    """Where a process finds the file or directory; None for what is not a file.

    Raises ValueError when the path would leave its volume.
    """
    if source.scheme is Scheme.FILE:
        return Path(source.path)
    if source.volume is None:
        return None
    if ".." in PurePosixPath(source.path).parts:
        raise ValueError(f"{source.path} leaves the volume {source.name}: remove '..'")
    return volumes_dir / source.volume.folder / source.path
