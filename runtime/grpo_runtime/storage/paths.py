"""Where a `file://`, `pvc://` or `configmap://` source is in this container, and links that lead out of a
volume: a user who may write to one could make a pod read what else is mounted in it, such as a Secret, and
export it."""

import os
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from grpo_api.contract.volume_paths import local_path
from grpo_api.source import Scheme, Source
from grpo_runtime.errors import UserError

_PLACES = {Scheme.CLAIM: "on claim", Scheme.CONFIG_MAP: "in ConfigMap"}
_MAX_NAMES = 10


def path_of(source: Source, *, volumes_dir: Path, field: str) -> Path:
    """The file or directory that `source` names; it may not exist.

    A `file://` URL is percent-decoded. Raises UserError, which names `field`, for a path outside its volume,
    and for one that is a link out of it, or has such a link below it.
    """
    if source.scheme is Scheme.FILE:
        return Path(unquote(source.path))
    try:
        path = local_path(source, volumes_dir=volumes_dir)
    except ValueError as error:
        raise UserError(f"{field}: {error}") from error
    if path is None:
        raise ValueError(f"{source.scheme} is not a file")
    if (outside := link_out_of(root_of(source, volumes_dir=volumes_dir), path)) is not None:
        raise UserError(
            f"{field}: {source.path or '/'} {_PLACES[source.scheme]} {source.name} has a link to {outside}, "
            "which is not in that volume: put a copy there instead"
        )
    return path


def root_of(source: Source, *, volumes_dir: Path) -> Path:
    """What links of a `file://`, `pvc://` or `configmap://` source may lead into: its volume, or the whole
    image, whose author decides what is in it."""
    root = None
    if source.scheme is not Scheme.FILE:
        root = local_path(replace(source, path=""), volumes_dir=volumes_dir)
    return root or Path("/")


def whereabouts(source: Source, path: Path) -> str:
    """The location of `path` as a user knows it, and what is in its folder: for messages about a missing
    file."""
    kind = _PLACES.get(source.scheme)
    place = f"{kind} {source.name}" if kind else "in this container's image"
    shown = path if source.scheme is Scheme.FILE else source.path or "/"
    if not path.parent.is_dir():
        return f"{shown} {place}"
    names = sorted(entry.name for entry in path.parent.iterdir() if not entry.name.startswith("."))
    more = ", ..." if len(names) > _MAX_NAMES else ""
    return f"{shown} {place}, which has {', '.join(names[:_MAX_NAMES]) + more if names else 'nothing'} there"


def link_out_of(root: Path, path: Path) -> Path | None:
    """What `path`, or the first of the files below it, is when that is not below `root`, all links followed;
    None where everything is. What does not exist is where it would be."""
    inside = root.resolve()
    for found in (path, *_links_below(path)):
        if not (place := found.resolve()).is_relative_to(inside):
            return place
    return None


def _links_below(path: Path) -> list[Path]:
    """Without what is behind a link to a folder: nobody walks through one of those."""
    return sorted(
        place
        for folder, folders, files in os.walk(path)
        for name in (*folders, *files)
        if (place := Path(folder) / name).is_symlink()
    )
