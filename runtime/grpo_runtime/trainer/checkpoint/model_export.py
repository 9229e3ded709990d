"""The trained model as it is written at the end: the policy, and of an adapter also the whole model it makes,
for those who load no adapters.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.model.lora import has_adapter, write_adapter_weights
from grpo_runtime.model.save import (
    let_all_read,
    save_beside_weights,
    write_config,
    write_what_training_leaves,
)
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.weights import saved_weights
from grpo_runtime.storage.files import replaced_folder
from grpo_runtime.trainer.checkpoint.tensor_file import write_weights
from grpo_runtime.trainer.strategy.interface import Strategy
from grpo_runtime.weight_sync.source import read_tensors

MODEL_FOLDER = "model"
MERGED_FOLDER = "merged"


def whole_model(strategy: Strategy) -> dict[str, torch.Tensor]:
    """The policy's state dict, in CPU memory. Tensors are moved one at a time: a GPU never holds all those
    that a strategy puts together. All ranks of a sharded strategy read `model_state` meanwhile."""
    return {name: tensor.detach().cpu() for name, tensor in strategy.model_state()}


def export_model(
    into: Path,
    *,
    model: PreTrainedModel,
    weights: Mapping[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
    origin: LocalModel,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the policy, of which `weights` is the `whole_model`, as a Hugging Face directory, replacing what
    is there only once it is complete. `on_bytes` is called with how many bytes each write has added."""
    with replaced_folder(into) as temporary:
        if has_adapter(model):
            write_adapter_weights(weights, into=temporary)
        else:
            write_weights(saved_weights(model, weights), into=temporary, on_bytes=on_bytes)
        save_beside_weights(model, tokenizer=tokenizer, into=temporary)
        write_what_training_leaves(origin, into=temporary)


def merged_model(strategy: Strategy) -> dict[str, torch.Tensor]:
    """The weights that engines had in the end, in the run's precision, in CPU memory. With a sharded strategy
    all ranks read `engine_weights` meanwhile."""
    return {
        spec.name: tensor.to("cpu", dtype=spec.dtype, copy=True).contiguous()
        for spec, tensor in read_tensors(strategy.engine_weights())
    }


def export_merged(
    into: Path,
    *,
    model: PreTrainedModel,
    weights: Mapping[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
    origin: LocalModel,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Write a Hugging Face directory with `weights`, the `merged_model`, replacing what is there only once it
    is complete. `on_bytes` is called with how many bytes each write has added."""
    [dtype] = {tensor.dtype for tensor in weights.values()}
    with replaced_folder(into) as temporary:
        write_weights(weights, into=temporary, on_bytes=on_bytes)
        write_config(model, dtype=dtype, into=temporary)
        tokenizer.save_pretrained(temporary)
        let_all_read(temporary)
        write_what_training_leaves(origin, into=temporary)
