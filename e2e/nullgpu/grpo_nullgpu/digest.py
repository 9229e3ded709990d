"""What the weights of a model are to the last bit, in a trainer's checkpoint and in an engine's memory."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file


def digest_of(weights: Mapping[str, torch.Tensor]) -> str:
    """The SHA-256 of their names and bytes."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def digest_of_model(file: Path, *, dtype: torch.dtype) -> str:
    """That of a model that was saved, once it has been rounded as it is for engines, where it has a head also
    when that is the embeddings."""
    weights = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    return digest_of(weights)
