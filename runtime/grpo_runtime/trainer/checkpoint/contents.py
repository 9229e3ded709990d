"""What a checkpoint holds: weights, optimizer, and the few numbers from which everything else follows.

Safetensors and JSON only. There is no RNG state, because nothing random is left in the trainer: the seed of
every sample derives from (run, step, prompt, sample), and the learning rate is a function of the step.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.model.adapter_files import is_adapter_folder, read_adapter, write_adapter_weights
from grpo_runtime.model.load import saved_parameters
from grpo_runtime.model.local_model import LocalModel
from grpo_runtime.model.lora import has_adapter
from grpo_runtime.model.save import save_beside_weights, write_what_training_leaves
from grpo_runtime.model.weights import saved_weights
from grpo_runtime.storage.files import replaced_folder
from grpo_runtime.trainer.checkpoint.manifest import FileEntry
from grpo_runtime.trainer.checkpoint.model_files import write_weights
from grpo_runtime.trainer.checkpoint.written_shard import INDEX, MODEL, WrittenShard, index_of
from grpo_runtime.trainer.policy import MASTER_DTYPE
from grpo_runtime.trainer.strategy.interface import Strategy, TrainingState

STATE = "state.json"


@dataclass(frozen=True)
class RunState:
    """Where a run stands at a step boundary, beside weights and optimizer.

    `step` counts finished steps, `num_tokens` all prompt and completion tokens so far; `sampler` is the
    sampler's own state, `learner` what a `LearnerState` holds. `without_signal` counts the newest steps in a
    row that taught nothing, by their `Lack`.
    """

    step: int = 0
    num_tokens: int = 0
    sampler: dict[str, Any] | None = None
    learner: dict[str, Any] = field(default_factory=dict)
    without_signal: dict[str, int] = field(default_factory=dict)


def complete_checkpoint(
    folder: Path,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    state: RunState,
    shards: Sequence[WrittenShard],
) -> dict[str, FileEntry]:
    """Put everything a resume needs beside the tensors of `folder`, which ranks have written in `shards`;
    transformers and vLLM can load its `model` directory. Returns the entries of all files with tensors."""
    save_beside_weights(model, tokenizer=tokenizer, into=folder / MODEL)
    if len(shards) > 1:
        (folder / MODEL / INDEX).write_text(json.dumps(index_of(shards), indent=1, sort_keys=True))
    (folder / STATE).write_text(json.dumps(asdict(state), indent=1, sort_keys=True))
    return {name: entry for shard in shards for name, entry in shard.files.items()}


def read_run_state(folder: Path) -> RunState:
    """Where the run of a whole checkpoint stood."""
    return RunState(**json.loads((folder / STATE).read_text()))


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a whole checkpoint, by the names that the model in memory gives them; those of the
    adapter where one was trained."""
    if is_adapter_folder(folder / MODEL):
        return read_adapter(folder / MODEL)
    return saved_parameters(folder / MODEL, dtype=MASTER_DTYPE)


def read_training_state(folder: Path) -> TrainingState:
    """The tensors of a whole checkpoint."""
    moments, reference = (
        {
            name: tensor
            for path in sorted(folder.glob(f"{kind}*.safetensors"))
            for name, tensor in load_file(path).items()
        }
        for kind in ("optimizer", "reference")
    )
    return TrainingState(model=read_weights(folder), optimizer=moments, reference=reference)


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
    is there only once it is complete. `on_bytes` is told how many bytes each write has added."""
    with replaced_folder(into) as temporary:
        if has_adapter(model):
            write_adapter_weights(weights, into=temporary)
        else:
            write_weights(saved_weights(model, weights), into=temporary, on_bytes=on_bytes)
        save_beside_weights(model, tokenizer=tokenizer, into=temporary)
        write_what_training_leaves(origin, into=temporary)
