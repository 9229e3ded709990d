"""`model.source`: from a URL in the spec to a directory with a model in it."""

import logging
from dataclasses import dataclass
from pathlib import Path

from grpo_api.source import Scheme, parse_source
from grpo_api.v1alpha1.spec import HubSpec, ModelSpec
from grpo_runtime.errors import UserError
from grpo_runtime.storage.hub import download
from grpo_runtime.storage.paths import link_out_of, path_of, root_of, whereabouts

logger = logging.getLogger(__name__)

HUB_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.jinja")
"""Files of a repository that are downloaded: weights, configuration, tokenizer, chat template."""
NOT_HUB_FILES = ("*/*", "consolidated*.safetensors")
"""Files that are not downloaded: other formats of the same weights, most of them in folders."""


@dataclass(frozen=True)
class LocalModel:
    """A Hugging Face directory that the trainer and vLLM can load, and where it came from."""

    folder: Path
    source: str
    """`model.source` of the job."""
    commit: str | None
    """The commit of an `hf://` model."""
    root: Path | None = None
    """Folder that its files may link into; None for `folder` alone."""

    def file(self, name: str) -> Path | None:
        """A file of the model, None where there is none. Raises UserError for a link out of `root`: it may
        have been changed in its volume since it was checked."""
        path = self.folder / name
        if (outside := link_out_of(self.root or self.folder, path)) is not None:
            raise UserError(f"{self.source}: {name} is a link to {outside}, which is not in that volume")
        return path if path.is_file() else None


def import_for(model: ModelSpec) -> None:
    """Import the large modules that `materialise_model` needs for this model."""
    if parse_source(model.source).scheme is Scheme.BUILTIN:
        import grpo_runtime.model.tiny  # noqa: F401


def materialise_model(model: ModelSpec, *, hub: HubSpec, volumes_dir: Path, into: Path) -> LocalModel:
    """The model of a run in a directory of this container.

    `builtin://tiny` is written to `into`, always with the same bytes. An `hf://` model is downloaded into the
    Hub's cache unless it is there. `file://` and `pvc://` models are used where they are. Raises UserError
    when there is no model, or when it lacks safetensors weights or a tokenizer.
    """
    if parse_source(model.source).scheme is Scheme.BUILTIN:
        from grpo_runtime.model.tiny import write_tiny_model

        write_tiny_model(into)
        return LocalModel(into, model.source, commit=None)
    return existing_model(model.source, revision=model.revision, hub=hub, volumes_dir=volumes_dir)


def tokenizer_folder(model: ModelSpec, *, hub: HubSpec, volumes_dir: Path, into: Path) -> Path:
    """A directory with the configuration and the tokenizer of the model that `materialise_model` gives; the
    weights of an `hf://` model are not downloaded. Raises UserError when there is no such model."""
    source = parse_source(model.source)
    if source.scheme is not Scheme.HUB:
        return materialise_model(model, hub=hub, volumes_dir=volumes_dir, into=into).folder
    files = [name for name in HUB_FILES if "safetensors" not in name]
    return download(
        "model", source.name, revision=model.revision, hub=hub, allow=files, ignore=NOT_HUB_FILES
    ).folder


def existing_model(
    url: str, *, revision: str | None, hub: HubSpec, volumes_dir: Path, field: str = "model.source"
) -> LocalModel:
    """The model of a repository or in a directory; see `materialise_model`. Errors name `field`."""
    source = parse_source(url)
    named = f"{field} ({url})"
    if source.scheme is Scheme.HUB:
        snapshot = download(
            "model", source.name, revision=revision, hub=hub, allow=HUB_FILES, ignore=NOT_HUB_FILES
        )
        folder = _checked(snapshot.folder, named=named)
        return LocalModel(folder, url, commit=snapshot.commit, root=snapshot.repository)
    folder = path_of(source, volumes_dir=volumes_dir, field=field)
    if not folder.is_dir():
        raise UserError(f"{named}: there is no directory {whereabouts(source, folder)}")
    root = root_of(source, volumes_dir=volumes_dir)
    return LocalModel(_checked(folder, named=named), url, commit=None, root=root)


def _checked(folder: Path, *, named: str) -> Path:
    if not (folder / "config.json").is_file():
        raise UserError(f"{named}: {folder} has no config.json, so it is not a Hugging Face model")
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for suffix in ("bin", "pt", "pth") for path in folder.glob(f"*.{suffix}"))
        found = (
            f" but {pickles[0]}, a pickle, which could run any code and is never loaded" if pickles else ""
        )
        raise UserError(f"{named}: {folder} has no *.safetensors file{found}: save the model as safetensors")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise UserError(f"{named}: {folder} has no tokenizer.json; save the tokenizer beside the model")
    return folder
