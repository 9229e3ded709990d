"""The table of strategies. A new one is a file with a Strategy, and a row here."""

from grpo_runtime.trainer.strategy.ddp import DDPStrategy
from grpo_runtime.trainer.strategy.fsdp2 import FSDP2Strategy
from grpo_runtime.trainer.strategy.interface import MakeStrategy

STRATEGIES: dict[str, MakeStrategy] = {"DDP": DDPStrategy, "FSDP2": FSDP2Strategy}
"""Every strategy there is, by the name in `RunConfig.chosen_strategy`."""
