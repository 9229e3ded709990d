"""The whole model of a run that trained an adapter, for those who load no adapters."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.model.local_model import LocalModel
from grpo_runtime.model.save import let_all_read, write_config, write_what_training_leaves
from grpo_runtime.storage.files import replaced_folder
from grpo_runtime.trainer.checkpoint.model_files import write_weights
from grpo_runtime.trainer.strategy.interface import Strategy
from grpo_runtime.weight_sync.source import read_tensors

MERGED_FOLDER = "merged"


def merged_model(strategy: Strategy) -> dict[str, torch.Tensor]:
    """The weights that engines had in the end, in the run's precision, in CPU memory. With a sharded strategy
    all ranks read `engine_weights` meanwhile: see `following`."""
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
    is complete. `on_bytes` is told how many bytes each write has added."""
    [dtype] = {tensor.dtype for tensor in weights.values()}
    with replaced_folder(into) as temporary:
        write_weights(weights, into=temporary, on_bytes=on_bytes)
        write_config(model, dtype=dtype, into=temporary)
        tokenizer.save_pretrained(temporary)
        let_all_read(temporary)
        write_what_training_leaves(origin, into=temporary)
