"""Where a `file://`, `pvc://` or `configmap://` source is in this container."""

from pathlib import Path
from urllib.parse import unquote

from grpo_api.contract.volume_paths import local_path
from grpo_api.source import Scheme, Source
from grpo_runtime.errors import UserError


def path_of(source: Source, *, volumes_dir: Path, field: str) -> Path:
    """The file or directory that `source` names; it may not exist.

    A `file://` URL is percent-decoded. Raises UserError, which names `field`, for a path outside its volume.
    """
    if source.scheme is Scheme.FILE:
        return Path(unquote(source.path))
    try:
        path = local_path(source, volumes_dir=volumes_dir)
    except ValueError as error:
        raise UserError(f"{field}: {error}") from error
    if path is None:
        raise ValueError(f"{source.scheme} is not a file")
    return path


def whereabouts(source: Source, path: Path) -> str:
    """The place of `path` as a user knows it, and what is in its folder: for messages about a missing
    file."""
    places = {Scheme.CLAIM: f"on claim {source.name}", Scheme.CONFIG_MAP: f"in ConfigMap {source.name}"}
    place = places.get(source.scheme, "in this container's image")
    shown = path if source.scheme is Scheme.FILE else source.path or "/"
    if not path.parent.is_dir():
        return f"{shown} {place}"
    names = sorted(entry.name for entry in path.parent.iterdir() if not entry.name.startswith("."))
    more = ", ..." if len(names) > _MAX_NAMES else ""
    return f"{shown} {place}, which has {', '.join(names[:_MAX_NAMES]) + more if names else 'nothing'} there"


_MAX_NAMES = 10
