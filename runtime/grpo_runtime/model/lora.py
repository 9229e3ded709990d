"""A low-rank adapter (LoRA, Hu et al., arXiv:2106.09685), in a policy and on disk.

In a policy, peft's layers stand in place of linear ones; on disk, it has peft's format, which peft, TRL and
vLLM load.

A layer with weight W [out, in] computes x (W + s B A)^T, with A [rank, in], B [out, rank] and s the quotient
alpha / rank. Only A and B are trained. B is 0 at first, so the policy begins as the model that it was made
from. Engines get the sums, under the names that W has in the model's files, and know of no adapter.

peft is imported when an adapter is added: other runs do not wait for it.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from grpo_api.contract.run_config import ResolvedLora
from grpo_api.v1alpha1.spec import ALL_LINEAR
from grpo_runtime.errors import UserError
from grpo_runtime.model.language_model import language_model, takes_only_text
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.weights import NamedTensors

if TYPE_CHECKING:
    from peft.tuners.lora import Linear

ADAPTER = "default"
"""peft's name of the only adapter."""
ADAPTER_DTYPE = torch.float32
_BASE, _A, _B = ".base_layer.", f".lora_A.{ADAPTER}.", f".lora_B.{ADAPTER}."
_HUB = "hf://"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
"""What peft puts before the names of a model that it wraps."""
_COMPARED = ("r", "lora_alpha", "target_modules", "base_model_name_or_path", "revision")


def add_adapter(model: PreTrainedModel, spec: ResolvedLora, *, seed: int, origin: LocalModel) -> None:
    """Put an adapter into `model`, with the same values for the same `seed`, and freeze all other weights.

    The adapter is float32, whatever the weights are. It is on the meta device where these are. Of a model
    that takes more than text only the language model has one, as only that is trained
    (`freeze_other_parts`). Raises UserError when `spec.targets` names no layer of it, or one that is not
    linear.
    """
    from peft import LoraConfig, TaskType, inject_adapter_in_model
    from peft.tuners.lora import Linear

    targets = spec.targets
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=spec.rank,
        lora_alpha=spec.alpha,
        target_modules=ALL_LINEAR if targets == (ALL_LINEAR,) else list(targets),
        exclude_modules=_other_parts(model, targets),
        base_model_name_or_path=origin.source.removeprefix(_HUB),
        revision=origin.commit,
    )
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    try:
        # on the meta device, because peft would draw random numbers that depend on what was drawn before
        inject_adapter_in_model(config, model, adapter_name=ADAPTER, low_cpu_mem_usage=True)
    except ValueError as error:
        raise UserError(f"model.lora.targets ({', '.join(targets)}): {error}") from error
    if model.get_output_embeddings() is not head or model.get_input_embeddings() is not embeddings:
        raise UserError(
            "model.lora.targets names the embeddings or the head, which an adapter cannot be put on here: "
            "name linear layers between them"
        )
    generator = torch.Generator().manual_seed(seed)
    for name, layer in _adapted(model):
        if type(layer) is not Linear:
            raise UserError(
                f"model.lora.targets has {name}, which is not a linear layer: name linear layers only"
            )
        # autocast brings its input into the precision of the pass; peft would copy it in float32 before
        layer.cast_input_dtype_enabled = False
        _initialise(layer, generator)


def has_adapter(model: nn.Module) -> bool:
    """Whether `add_adapter` was called with the model."""
    return hasattr(model, "peft_config")


def base_parameters(model: PreTrainedModel) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of the model without its adapter, under the names they have without one."""
    for name, parameter in model.named_parameters():
        if not is_of_adapter(name):
            yield _name_without_adapter(name), parameter


def merged_parameters(model: PreTrainedModel, parameters: NamedTensors) -> NamedTensors:
    """The model's parameters, each whole, with its adapter in them: W + s B A in float32 for a layer that has
    one.

    `parameters` are all of the model in its own order, each whole. One layer is held at a time, and nothing
    in the model changes. Without an adapter they are returned as they are.
    """
    layers = dict(_adapted(model))
    held: list[tuple[str, torch.Tensor]] = []
    factor_a = torch.empty(0)
    for name, tensor in parameters:
        if _BASE in name:
            held.append((name, tensor.detach()))
        elif _A in name:
            factor_a = tensor.detach()
        elif _B in name:
            layer = layers[name.split(_B)[0]]
            for own_name, own in held:
                is_weight = own_name.endswith(".weight")
                yield (
                    _name_without_adapter(own_name),
                    _sum(own, factor_a, tensor, layer) if is_weight else own,
                )
            held = []
        else:
            yield name, tensor


@contextmanager
def without_adapter(model: PreTrainedModel) -> Iterator[None]:
    """Passes of `model` are those of the model that it was made from.

    s is 0 meanwhile, so that layers are read in the same order and no parameter changes: peft's own switch
    would also change which of them are trained.
    """
    layers = [layer for _, layer in _adapted(model)]
    scales = [layer.scaling[ADAPTER] for layer in layers]
    try:
        for layer in layers:
            layer.scaling[ADAPTER] = 0.0
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scaling[ADAPTER] = scale


def is_of_adapter(name: str) -> bool:
    """Whether the parameter of this name is one of an adapter."""
    return _A in name or _B in name


def is_adapter_folder(folder: Path) -> bool:
    """Whether it holds an adapter."""
    return (folder / ADAPTER_CONFIG).is_file()


def adapter_tensors(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What `ADAPTER_WEIGHTS` holds of the adapter's parameters in `state`, by peft's names."""
    return {_name_in_file(name): tensor.contiguous() for name, tensor in state.items()}


def write_adapter_weights(state: Mapping[str, torch.Tensor], *, into: Path) -> None:
    """Write the tensors `state` of an adapter to the folder `into`, which exists."""
    save_file(adapter_tensors(state), into / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def write_adapter_config(model: PreTrainedModel, *, into: Path) -> None:
    """Write the settings of the adapter of `model` to the folder `into`, which exists."""
    (into / ADAPTER_CONFIG).write_text(json.dumps(_settings(model), indent=2, sort_keys=True) + "\n")


def read_adapter(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of an adapter, by the names of the model's parameters."""
    tensors = load_file(folder / ADAPTER_WEIGHTS)
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
    saved, own = json.loads((folder / ADAPTER_CONFIG).read_text()), _settings(model)
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


def _other_parts(model: PreTrainedModel, targets: tuple[str, ...]) -> str | None:
    """A regular expression for the names of all modules but the head and those of the language model; None
    when there are no others. Raises UserError when `targets` names only such modules."""
    if takes_only_text(model):
        return None
    parts = (language_model(model), model.get_output_embeddings())
    inside = "|".join(re.escape(name) for name, module in model.named_modules() if module in parts)
    others = rf"(?!(?:{inside})(?:\.|$)).*"
    named = [
        name for name, _ in model.named_modules() if f".{name}".endswith(tuple(f".{t}" for t in targets))
    ]
    if named and all(re.fullmatch(others, name) for name in named):
        raise UserError(
            f"model.lora.targets ({', '.join(targets)}) names no layer of the language model, and nothing "
            "else of the model is trained: name linear layers of it, as q_proj"
        )
    return others


def _sum(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, layer: "Linear") -> torch.Tensor:
    """W + s B A. The layers of a few families keep W transposed."""
    scale = layer.scaling[ADAPTER]
    if layer.fan_in_fan_out:
        return torch.addmm(weight.float(), a.T, b.detach().T, alpha=scale)
    return torch.addmm(weight.float(), b.detach(), a, alpha=scale)


def _name_without_adapter(name: str) -> str:
    return name.replace(_BASE, ".")


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers with an adapter, by name."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A"):
            yield name, module


def _initialise(layer: "Linear", generator: torch.Generator) -> None:
    """Initialises as peft does: A as torch initialises a linear layer, and B as 0. On the CPU, or nowhere."""
    a, b = layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]
    assert isinstance(a, nn.Linear)
    assert isinstance(b, nn.Linear)
    if layer.get_base_layer().weight.is_meta:
        return
    values = torch.empty(a.weight.shape, dtype=ADAPTER_DTYPE)
    nn.init.kaiming_uniform_(values, a=math.sqrt(5), generator=generator)
    a.weight, b.weight = nn.Parameter(values), nn.Parameter(torch.zeros(b.weight.shape, dtype=ADAPTER_DTYPE))


def _settings(model: PreTrainedModel) -> dict[str, object]:
    """What adapter_config.json says. Sets are written in one order."""
    found = vars(model)["peft_config"][ADAPTER].to_dict() | {"inference_mode": True}
    return {name: sorted(value) if isinstance(value, set) else value for name, value in found.items()}


def _name_in_file(name: str) -> str:
    return _PREFIX + name.replace(f".{ADAPTER}.", ".")


def _name_in_model(name: str) -> str:
    module, _, kind = name.removeprefix(_PREFIX).rpartition(".")
    return f"{module}.{ADAPTER}.{kind}"
