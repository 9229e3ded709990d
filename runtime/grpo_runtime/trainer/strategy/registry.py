"""The table of strategies. A new one is a file with a Strategy, and a row here."""

from dataclasses import replace

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.trainer.strategy.ddp import DDPStrategy
from grpo_runtime.trainer.strategy.fsdp2 import FSDP2Strategy
from grpo_runtime.trainer.strategy.interface import MakeStrategy
from grpo_runtime.trainer.strategy.zero.settings import MakeZero

STRATEGIES: dict[str, MakeStrategy] = {
    "DDP": DDPStrategy,
    "FSDP2": FSDP2Strategy,
    "ZeRO1": MakeZero(1),
    "ZeRO2": MakeZero(2),
    "ZeRO3": MakeZero(3),
}
"""Every strategy there is, by the name in `RunConfig.strategy`."""


def strategy_of(run_config: RunConfig) -> MakeStrategy:
    """The one that a run has chosen, with its options."""
    make = STRATEGIES[run_config.strategy]
    if isinstance(make, MakeZero) and run_config.deepspeed:
        return replace(make, spec=run_config.deepspeed)
    return make
