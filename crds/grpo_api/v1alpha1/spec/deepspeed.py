"""`trainer.deepspeed`: how DeepSpeed spreads the policy."""

import re
from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.rule import Rule, rule


def _leaves_alone(*keys: str, instead: str) -> Rule:
    """The rule that `config` has none of these keys, which other fields set. A key in an escaped spelling is
    left to the runtime, which reads the JSON."""
    pattern = rf'"({"|".join(keys)})"[ \t\r\n]*:'

    @rule(
        cel=f"!has(self.config) || !self.config.matches(r'''{pattern}''')",
        sentence=f"trainer.deepspeed.config must not set {' or '.join(keys)}: use {instead}",
        field=".config",
    )
    def is_set_elsewhere(config: str | None) -> bool:
        """What a run does is said in one place."""
        return config is None or re.search(pattern, config) is None

    return is_set_elsewhere


class DeepSpeedSpec(ApiModel):
    """How DeepSpeed spreads the policy over the training processes, with `trainer.strategy` ZeRO1, ZeRO2 or
    ZeRO3. What is left out is as DeepSpeed has it."""

    rules = (
        _leaves_alone(
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
            instead="algorithm.promptsPerStep, algorithm.groupSize and trainer.microBatchTokens",
        ),
        _leaves_alone("fp16", "bf16", "amp", "torch_autocast", "data_types", instead="model.dtype"),
        _leaves_alone("optimizer", "scheduler", "gradient_clipping", instead="algorithm.optimizer"),
        _leaves_alone("stage", instead="trainer.strategy"),
        _leaves_alone(
            "offload_optimizer",
            "offload_param",
            "overlap_comm",
            "contiguous_gradients",
            instead="the fields of trainer.deepspeed",
        ),
    )

    offload_optimizer: bool | None = None
    """Whether the master weights and AdamW's moments are in the CPU memory of the pod, where the optimizer
    then makes its steps. That needs about 20 bytes a parameter there, over all processes."""
    offload_parameters: bool | None = None
    """Whether the parts of the weights are in the CPU memory of the pod too, with ZeRO3."""
    overlap_comm: bool | None = None
    """Whether gradients travel while the backward pass goes on."""
    contiguous_gradients: bool | None = None
    """Whether gradients are copied into one buffer as they come, which keeps memory from being fragmented."""
    config: Annotated[str, Field(min_length=2, max_length=4096)] | None = None
    """More of DeepSpeed's configuration, as its JSON: bucket sizes, thresholds and the like, in the section
    `zero_optimization`. What other fields set is refused, and so is what this trainer does not know."""
