"""The volumes that a job mounts in a cluster, as folders of this machine."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from grpo_api.source import Volume, VolumeKind
from grpo_runtime.errors import UserError
from grpo_runtime.local.documents import Document

_FLAG = {VolumeKind.CLAIM: "claim", VolumeKind.CONFIG_MAP: "configmap", VolumeKind.SECRET: "secret"}
"""The word for a kind in `--volume`."""


def parse_volume_flags(flags: Sequence[str]) -> dict[Volume, Path]:
    """Read `claim/NAME=DIR`, `configmap/NAME=DIR` and `secret/NAME=DIR`.

    Raises UserError for anything else, and for a directory that does not exist.
    """
    kinds = {word: kind for kind, word in _FLAG.items()}
    volumes = {}
    for flag in flags:
        what, _, folder = flag.partition("=")
        kind, _, name = what.partition("/")
        if kind not in kinds or not name or not folder:
            raise UserError(
                f"--volume {flag} is not understood: write claim/NAME=DIRECTORY, configmap/NAME=DIRECTORY or "
                "secret/NAME=DIRECTORY"
            )
        path = Path(folder).expanduser().absolute()
        if not path.is_dir():
            raise UserError(f"--volume {flag}: there is no directory {path}")
        volumes[Volume(kinds[kind], name)] = path
    return volumes


def lay_out_volumes(
    needed: Iterable[Volume], *, given: Mapping[Volume, Path], documents: Sequence[Document], into: Path
) -> None:
    """Make the folder that GRPO_VOLUMES_DIR names: a link for each volume that is `given`, and files for each
    ConfigMap that is in the job's own file.

    Raises UserError for a volume that is neither; the message names the flag to give.
    """
    shutil.rmtree(into, ignore_errors=True)
    for volume in needed:
        place = into / volume.folder
        place.parent.mkdir(parents=True, exist_ok=True)
        asked = _as_flag(volume)
        if asked in given:
            place.symlink_to(given[asked])
        elif (found := _config_map(volume, documents)) is not None:
            place.mkdir()
            for key, text in found.items():
                (place / key).write_text(text)
        else:
            word = _FLAG[asked.kind]
            does = "reads" if asked == volume else "writes weights to"
            raise UserError(
                f"the job {does} {word} {volume.name}: say where it is with "
                f"--volume {word}/{volume.name}=DIRECTORY"
            )


def _as_flag(volume: Volume) -> Volume:
    """The volume as `--volume` names it: weights are written to a claim as any other."""
    return Volume(VolumeKind.CLAIM, volume.name) if volume.kind is VolumeKind.WEIGHTS else volume


def _config_map(volume: Volume, documents: Sequence[Document]) -> dict[str, str] | None:
    """The data of a ConfigMap in the job's file; None when it has no such ConfigMap."""
    if volume.kind is not VolumeKind.CONFIG_MAP:
        return None
    for document in documents:
        if document.kind == "ConfigMap" and document.name == volume.name:
            data = document.data.get("data") or {}
            if any(not isinstance(text, str) or "/" in key for key, text in data.items()):
                raise UserError(f"{document.path}:{document.line}: data of a ConfigMap is text by file name")
            return dict(data)
    return None
