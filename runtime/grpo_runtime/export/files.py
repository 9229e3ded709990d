"""The files of a trained model with their digests."""

from dataclasses import dataclass
from pathlib import Path

from grpo_runtime.errors import UserError
from grpo_runtime.storage.files import sha256_of
from grpo_runtime.storage.paths import link_out_of

_CONFIGS = ("config.json", "adapter_config.json")
"""Configuration files of a whole model and of an adapter. Nothing loads the folder without it, so it is the
last to arrive."""


@dataclass(frozen=True)
class LocalFile:
    """A file of the model. `name` is its path in the model's directory."""

    path: Path
    name: str
    num_bytes: int
    sha256: str


def is_model(folder: Path) -> bool:
    """Whether `folder` is the Hugging Face directory of a model or of an adapter."""
    return any((folder / config).is_file() for config in _CONFIGS)


def files_of(folder: Path) -> tuple[LocalFile, ...]:
    """The files of the Hugging Face directory `folder`, its configuration last. Reads all of them. Raises
    UserError when that is not such a directory, and for a link out of it."""
    if not is_model(folder):
        raise UserError(f"{folder} has no {' and no '.join(_CONFIGS)}, so it is no Hugging Face model")
    if (outside := link_out_of(folder, folder)) is not None:
        raise UserError(f"{folder} has a link to {outside}, which is not in it: nothing is uploaded")
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    paths.sort(key=lambda path: path.parent == folder and path.name in _CONFIGS)
    return tuple(_described(path, name=path.relative_to(folder).as_posix()) for path in paths)


def _described(path: Path, *, name: str) -> LocalFile:
    return LocalFile(path, name, path.stat().st_size, sha256_of(path))
