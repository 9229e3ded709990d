"""What a checkpoint holds: weights, optimizer, and the few numbers from which everything else follows.

Safetensors and JSON only. There is no RNG state, because nothing random is left in the trainer: the seed of
every sample derives from (run, step, prompt, sample), and the learning rate is a function of the step.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.model.local_model import LocalModel
from grpo_runtime.model.save import save_policy, write_origin
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.storage.files import sync_directory, sync_tree
from grpo_runtime.trainer.strategy.interface import Strategy, TrainingState

MODEL = "model"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"


@dataclass(frozen=True)
class RunState:
    """Where a run stands at a step boundary, beside weights and optimizer.

    `step` counts finished steps, `num_tokens` all prompt and completion tokens so far; `sampler` is the
    sampler's own state, `stale_samples` those trained on although older than allowed.
    """

    step: int = 0
    num_tokens: int = 0
    stale_samples: int = 0
    sampler: dict[str, Any] | None = None


def write_checkpoint(
    folder: Path,
    *,
    model: PreTrainedModel,
    strategy: Strategy,
    tokenizer: PreTrainedTokenizerBase,
    state: RunState,
) -> None:
    """Put everything a resume needs into `folder`; transformers and vLLM can load its `model` directory.

    With a sharded strategy all ranks read the tensors meanwhile: see `following`.
    """
    save_policy(model, tokenizer=tokenizer, into=folder / MODEL, state=_on_cpu(strategy.model_state()))
    # copies: safetensors refuses tensors that share storage
    tensors = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in strategy.optimizer_state()
    }
    save_file(tensors, folder / OPTIMIZER)
    (folder / STATE).write_text(json.dumps(asdict(state), indent=1, sort_keys=True))


def read_run_state(folder: Path) -> RunState:
    """Where the run of a whole checkpoint stood."""
    return RunState(**json.loads((folder / STATE).read_text()))


def read_tensors(folder: Path) -> TrainingState:
    """The tensors of a whole checkpoint."""
    weights: dict[str, torch.Tensor] = {}
    for path in sorted((folder / MODEL).glob("*.safetensors")):
        weights |= load_file(path)
    return TrainingState(model=weights, optimizer=load_file(folder / OPTIMIZER))


def export_model(
    into: Path,
    *,
    model: PreTrainedModel,
    strategy: Strategy,
    tokenizer: PreTrainedTokenizerBase,
    origin: LocalModel,
) -> None:
    """Write the policy as a Hugging Face directory, replacing what is there only once it is complete."""
    temporary = into.with_name(f".{into.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    save_policy(model, tokenizer=tokenizer, into=temporary, state=_on_cpu(strategy.model_state()))
    write_origin(origin, into=temporary)
    sync_tree(temporary)
    shutil.rmtree(into, ignore_errors=True)
    temporary.rename(into)
    sync_directory(into.parent)


def _on_cpu(tensors: NamedTensors) -> dict[str, torch.Tensor]:
    """All of them together, of which a GPU holds one at a time where the strategy puts them together."""
    return {name: tensor.detach().cpu() for name, tensor in tensors}
