"""A checkpoint as a run of one rank writes it, for tests that need no saver."""

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.trainer.checkpoint.contents import RunState, complete_checkpoint
from grpo_runtime.trainer.checkpoint.shard import HostCopier, write_shard
from grpo_runtime.trainer.strategy.interface import Strategy


def write_checkpoint(
    folder: Path,
    *,
    model: PreTrainedModel,
    strategy: Strategy,
    tokenizer: PreTrainedTokenizerBase,
    state: RunState,
) -> None:
    """Copy, write and complete what the policy of `strategy` trains."""
    copy = HostCopier(model, strategy, rank=0, num_writers=1).copy()
    shard = write_shard(folder, copy, model=model, rank=0, num_writers=1)
    complete_checkpoint(folder, model=model, tokenizer=tokenizer, state=state, shards=[shard])
