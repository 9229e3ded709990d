"""Where the runtime finds the files of a source, which the operator mounts."""

from pathlib import Path, PurePosixPath

from grpo_api.source import Scheme, Source


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
