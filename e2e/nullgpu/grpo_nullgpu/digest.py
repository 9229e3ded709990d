"""What the weights of a model are to the last bit, in what a trainer saved and in an engine's memory."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
_OF_ADAPTER = "base_model.model."


def digest_of(weights: Mapping[str, torch.Tensor]) -> str:
    """The SHA-256 of their names and bytes."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def digest_of_model(folder: Path, *, base: Path, dtype: torch.dtype) -> str:
    """That of a saved model, or of a saved adapter in `base`, rounded as it is for engines. They have a head
    also where that is the embeddings."""
    has_adapter = (folder / "adapter_config.json").exists()
    weights = load_file((base if has_adapter else folder) / "model.safetensors")
    if has_adapter:
        # which is not trained, so that a trainer has it as rounded as engines
        frozen = {name: tensor.to(dtype).float() for name, tensor in weights.items()}
        weights |= _summed(frozen, folder)
    weights.setdefault(HEAD, weights[EMBEDDINGS])
    return digest_of({name: tensor.to(dtype) for name, tensor in weights.items()})


def _summed(weights: Mapping[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """W + s B A of each layer that has an adapter."""
    config = json.loads((folder / "adapter_config.json").read_text())
    adapter = load_file(folder / "adapter_model.safetensors")
    found = {}
    for name, a in adapter.items():
        if ".lora_A." in name:
            whole = name.removeprefix(_OF_ADAPTER).replace(".lora_A.", ".")
            b = adapter[name.replace(".lora_A.", ".lora_B.")]
            found[whole] = torch.addmm(weights[whole], b, a, alpha=config["lora_alpha"] / config["r"])
    return found
