"""A policy as a Hugging Face directory that every process may read."""

import json
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.model.local_model import LocalModel

ORIGIN = "origin.json"
_READ_BY_ALL = 0o444


def save_policy(model: PreTrainedModel, *, tokenizer: PreTrainedTokenizerBase, into: Path) -> None:
    """Write weights (safetensors), config and tokenizer to the directory `into`, made if it is missing.

    Not atomic: a caller that must never show half a directory writes beside it and renames. `model` is the
    bare module, not a DDP wrapper.
    """
    into.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)
    # save_pretrained leaves the weights at 0600, which a pod with another user id cannot read
    into.chmod(into.stat().st_mode | _READ_BY_ALL | 0o111)
    for path in into.rglob("*"):
        path.chmod(path.stat().st_mode | _READ_BY_ALL | (0o111 if path.is_dir() else 0))


def write_origin(origin: LocalModel, *, into: Path) -> None:
    """Leave `origin.json` beside a saved policy: the source and the commit of the model it started from."""
    path = into / ORIGIN
    path.write_text(json.dumps({"source": origin.source, "commit": origin.commit}, indent=2) + "\n")
    path.chmod(path.stat().st_mode | _READ_BY_ALL)
