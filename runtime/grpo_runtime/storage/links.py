"""Links that lead out of a volume. A user who may write to a volume could make a pod read what else is
mounted in it, such as a Secret, and export it."""

import os
from pathlib import Path


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
