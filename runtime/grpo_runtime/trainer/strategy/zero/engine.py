"""Starts DeepSpeed among ranks that have met already, with nothing compiled and nothing whole twice."""

import logging
import os
from typing import Any

import torch
from pydantic import ValidationError

from grpo_runtime.errors import UserError
from grpo_runtime.model.layers import decoder_layers
from grpo_runtime.trainer.distributed import Ranks, peer_errors
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.placement import place
from grpo_runtime.trainer.strategy.zero.deepspeed_import import deepspeed
from grpo_runtime.trainer.strategy.zero.settings import SECTION


def join_ranks(config: dict[str, Any], *, device: torch.device) -> None:
    """Give DeepSpeed the process group in which the ranks have met. Raises UserError when it refuses what the
    job tunes.

    DeepSpeed would also build an extension with a C++ compiler, which a pod does not have, for reductions of
    its inference in shared memory. It does so where its table of the operators that this machine can build
    says yes; an empty table is found before it asks the compiler.
    """
    try:
        deepspeed.runtime.zero.config.DeepSpeedZeroConfig(**config[SECTION])
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UserError(f"DeepSpeed refuses trainer.deepspeed.config: {problems}") from error
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    deepspeed.ops.__compatible_ops__ = {}
    # where it looks for the index of its GPU, also in the middle of a pass
    os.environ.setdefault("LOCAL_RANK", str(device.index or 0))
    with peer_errors():
        deepspeed.init_distributed(verbose=False)


def shard(policy: Policy, *, config: dict[str, Any], device: torch.device, ranks: Ranks) -> None:
    """Bring one decoder layer after the other to `device`, and then the rest, and cut their parameters as
    ZeRO-3 does: no more than one is whole there. All ranks call it at the same time."""
    for unit in (*decoder_layers(policy.model), policy):
        place(unit, device=device, ranks=ranks)
        with peer_errors():
            deepspeed.zero.Init(module=unit, config_dict_or_path=config, dtype=torch.float32)


def start_engine(policy: Policy, adamw: torch.optim.AdamW, *, config: dict[str, Any]) -> Any:
    """DeepSpeed's engine for a policy that is on its device. All ranks call it at the same time."""
    with peer_errors():
        engine, *_ = deepspeed.initialize(model=policy, optimizer=adamw, config=config)
    return engine
