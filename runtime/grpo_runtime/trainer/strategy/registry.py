"""The table of strategies. A new one is a file with a Strategy, and a row here."""

from grpo_runtime.trainer.strategy.ddp import DDPStrategy
from grpo_runtime.trainer.strategy.interface import MakeStrategy

STRATEGIES: dict[str, MakeStrategy] = {"DDP": DDPStrategy}
"""Every strategy there is, by the name in `RunConfig.strategy`."""
