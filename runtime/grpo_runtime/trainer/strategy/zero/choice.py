"""ZeRO of a stage as a `MakeStrategy` that imports DeepSpeed, which takes seconds, when it is called."""

import os
from dataclasses import dataclass, field

import torch

from grpo_api.v1alpha1.spec import DeepSpeedSpec, OptimizerSpec
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.interface import Strategy


@dataclass(frozen=True)
class MakeZero:
    """See `MakeStrategy`. `stage` is 1, 2 or 3."""

    stage: int
    spec: DeepSpeedSpec = field(default_factory=DeepSpeedSpec)

    def __call__(
        self,
        policy: Policy,
        *,
        optimizer: OptimizerSpec,
        total_steps: int,
        ranks: Ranks,
        device: torch.device | None = None,
    ) -> Strategy:
        # it would search for accelerators of ten makers while it is imported
        os.environ.setdefault("DS_ACCELERATOR", (device or policy.device).type)
        from grpo_runtime.trainer.strategy.zero.strategy import ZeroStrategy

        return ZeroStrategy(
            policy,
            stage=self.stage,
            spec=self.spec,
            optimizer=optimizer,
            total_steps=total_steps,
            ranks=ranks,
            device=device,
        )
