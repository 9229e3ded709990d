"""What a checkpoint holds: weights, optimizer, and the few numbers from which everything else follows.

Safetensors and JSON only. There is no RNG state, because nothing random is left in the trainer: the seed of
every sample derives from (run, step, prompt, sample), and the learning rate is a function of the step.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.model.load import saved_parameters
from grpo_runtime.model.lora import is_adapter_folder, read_adapter
from grpo_runtime.model.save import save_beside_weights
from grpo_runtime.trainer.checkpoint.manifest import FileEntry
from grpo_runtime.trainer.checkpoint.shard import MODEL, WrittenShard, index_of
from grpo_runtime.trainer.checkpoint.tensor_file import INDEX
from grpo_runtime.trainer.policy import MASTER_DTYPE
from grpo_runtime.trainer.strategy.interface import TrainingState

STATE = "state.json"


@dataclass(frozen=True)
class RunState:
    """Where a run stands at a step boundary, beside weights and optimizer.

    `step` counts finished steps, `num_tokens` all prompt and completion tokens so far; `sampler` is the
    sampler's own state, `learner` what a `LearnerState` holds. `without_signal` counts the newest steps in a
    row that taught nothing, by their `Lack`, and `left_out` the newest groups in a row that were left out, by
    their environment.
    """

    step: int = 0
    num_tokens: int = 0
    sampler: dict[str, Any] | None = None
    learner: dict[str, Any] = field(default_factory=dict)
    without_signal: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)


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
