"""A model on the local disk."""

from dataclasses import dataclass
from pathlib import Path

from grpo_runtime.errors import UserError
from grpo_runtime.storage.links import link_out_of


@dataclass(frozen=True)
class LocalModel:
    """A Hugging Face directory that the trainer and vLLM can load, and where it came from."""

    folder: Path
    source: str
    """`model.source` of the job."""
    commit: str | None
    """The commit of an `hf://` model."""
    root: Path | None = None
    """What its files may be links into; None for `folder` alone."""

    def file(self, name: str) -> Path | None:
        """A file of the model, None where there is none. Raises UserError for a link out of `root`: it may
        have been changed in its volume since it was checked."""
        path = self.folder / name
        if (outside := link_out_of(self.root or self.folder, path)) is not None:
            raise UserError(f"{self.source}: {name} is a link to {outside}, which is not in that volume")
        return path if path.is_file() else None
