"""Saves a policy as a Hugging Face directory that every user may read."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.model.local_model import LocalModel

ORIGIN = "origin.json"
_READ_BY_ALL = 0o444


def save_policy(
    model: PreTrainedModel,
    *,
    tokenizer: PreTrainedTokenizerBase,
    into: Path,
    state: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write weights (safetensors), config and tokenizer to the directory `into`, made if it is missing.

    This is not atomic: a caller whose directory must never be incomplete saves to another one and renames it.
    `model` is the bare module, not a DDP wrapper. `state` is its state dict, for a strategy under which the
    module itself does not hold all weights.
    """
    into.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(into, state_dict=None if state is None else dict(state))
    tokenizer.save_pretrained(into)
    # save_pretrained leaves the weights at 0600, which a pod with another user id cannot read
    into.chmod(into.stat().st_mode | _READ_BY_ALL | 0o111)
    for path in into.rglob("*"):
        path.chmod(path.stat().st_mode | _READ_BY_ALL | (0o111 if path.is_dir() else 0))


def write_origin(origin: LocalModel, *, into: Path) -> None:
    """Write `origin.json` beside a saved policy: source and commit of the model that training started
    from."""
    path = into / ORIGIN
    path.write_text(json.dumps({"source": origin.source, "commit": origin.commit}, indent=2) + "\n")
    path.chmod(path.stat().st_mode | _READ_BY_ALL)
