"""A model on the local disk."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LocalModel:
    """A Hugging Face directory that the trainer and vLLM can load, and where it came from."""

    folder: Path
    source: str
    """`model.source` of the job."""
    commit: str | None
    """The commit of an `hf://` model."""
