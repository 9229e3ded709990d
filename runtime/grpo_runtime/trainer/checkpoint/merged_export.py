"""The whole model of a run that trained an adapter, for those who load no adapters."""

from pathlib import Path

from huggingface_hub import save_torch_state_dict
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.model.local_model import LocalModel
from grpo_runtime.model.save import let_all_read, write_config, write_what_training_leaves
from grpo_runtime.storage.files import replaced_folder
from grpo_runtime.trainer.strategy.interface import Strategy
from grpo_runtime.weight_sync.source import read_tensors

MERGED_FOLDER = "merged"


def export_merged(
    into: Path,
    *,
    model: PreTrainedModel,
    strategy: Strategy,
    tokenizer: PreTrainedTokenizerBase,
    origin: LocalModel,
) -> None:
    """Write a Hugging Face directory with the weights that engines had in the end, in the run's precision,
    replacing what is there only once it is complete.

    With a sharded strategy all ranks read `engine_weights` meanwhile: see `following`.
    """
    weights = {
        spec.name: tensor.to("cpu", dtype=spec.dtype, copy=True).contiguous()
        for spec, tensor in read_tensors(strategy.engine_weights())
    }
    [dtype] = {tensor.dtype for tensor in weights.values()}
    with replaced_folder(into) as temporary:
        save_torch_state_dict(weights, temporary)
        write_config(model, dtype=dtype, into=temporary)
        tokenizer.save_pretrained(temporary)
        let_all_read(temporary)
        write_what_training_leaves(origin, into=temporary)
