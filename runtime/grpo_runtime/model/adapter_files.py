"""An adapter on disk, in peft's own format, which peft, TRL and vLLM load."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from grpo_runtime.errors import UserError
from grpo_runtime.model.lora import ADAPTER, adapter_settings, has_adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
"""What peft puts before the names of a model that it wraps."""
_COMPARED = ("r", "lora_alpha", "target_modules", "base_model_name_or_path", "revision")


def is_adapter_folder(folder: Path) -> bool:
    """Whether it holds an adapter."""
    return (folder / CONFIG).is_file()


def adapter_tensors(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What `WEIGHTS` holds of the adapter's parameters in `state`, by peft's names."""
    return {_name_in_file(name): tensor.contiguous() for name, tensor in state.items()}


def write_adapter_weights(state: Mapping[str, torch.Tensor], *, into: Path) -> None:
    """Write the tensors `state` of an adapter to the folder `into`, which exists."""
    save_file(adapter_tensors(state), into / WEIGHTS, metadata={"format": "pt"})


def write_adapter_config(model: PreTrainedModel, *, into: Path) -> None:
    """Write the settings of the adapter of `model` to the folder `into`, which exists."""
    (into / CONFIG).write_text(json.dumps(_settings(model), indent=2, sort_keys=True) + "\n")


def read_adapter(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of an adapter, by the names of the model's parameters."""
    tensors = load_file(folder / WEIGHTS)
    return {_name_in_model(name): tensor for name, tensor in tensors.items()}


def require_same_adapter(model: PreTrainedModel, *, folder: Path) -> None:
    """Raises UserError unless `model` and what was saved in `folder` are both without an adapter, or both
    with the same one, made from the same commit of the model."""
    if is_adapter_folder(folder) != has_adapter(model):
        pairs = {True: ("an adapter", "none"), False: ("a whole model", "an adapter")}
        had, asks = pairs[is_adapter_folder(folder)]
        raise UserError(
            f"the checkpoint has {had}, and the job asks for {asks}: set model.lora as it was in the run "
            "that wrote the checkpoint, or start without its checkpoints"
        )
    if not has_adapter(model):
        return
    saved, own = json.loads((folder / CONFIG).read_text()), _settings(model)
    if saved["revision"] != own["revision"]:
        raise UserError(
            f"the checkpoint has an adapter for commit {saved['revision']} of the model, and model.source is "
            f"at {own['revision']} now: set model.revision to {saved['revision']}"
        )
    for name in _COMPARED:
        if saved[name] != own[name]:
            raise UserError(
                f"the checkpoint has an adapter with {name} {saved[name]}, and the job asks for {own[name]}: "
                "start it with the settings of the run that wrote the checkpoint, or without its checkpoints"
            )


def _settings(model: PreTrainedModel) -> dict[str, object]:
    """What adapter_config.json says. Sets are written in one order."""
    found = adapter_settings(model) | {"inference_mode": True}
    return {name: sorted(value) if isinstance(value, set) else value for name, value in found.items()}


def _name_in_file(name: str) -> str:
    return _PREFIX + name.replace(f".{ADAPTER}.", ".")


def _name_in_model(name: str) -> str:
    module, _, kind = name.removeprefix(_PREFIX).rpartition(".")
    return f"{module}.{ADAPTER}.{kind}"
