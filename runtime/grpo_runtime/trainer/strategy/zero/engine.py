"""Starts DeepSpeed among ranks that have met already, with nothing compiled and nothing sharded twice."""

import logging
import os
from typing import Any

import deepspeed
import torch

from grpo_runtime.trainer.distributed import Ranks, peer_errors
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.placement import place
from grpo_runtime.trainer.strategy.units import decoder_layers


def start_engine(
    policy: Policy,
    adamw: torch.optim.AdamW,
    *,
    config: dict[str, Any],
    device: torch.device,
) -> Any:
    """DeepSpeed's engine for a policy that is on `device`. All ranks call it at the same time."""
    _join_process_group(device)
    with peer_errors():
        engine, *_ = deepspeed.initialize(model=policy, optimizer=adamw, config=config)
    return engine


def shard(policy: Policy, *, config: dict[str, Any], device: torch.device, ranks: Ranks) -> None:
    """Bring one decoder layer after the other to `device`, and then the rest, and cut their parameters as
    ZeRO-3 does: no more than one is whole there."""
    _join_process_group(device)
    with peer_errors():
        for unit in (*decoder_layers(policy.model), policy):
            place(unit, device=device, ranks=ranks)
            deepspeed.zero.Init(module=unit, config_dict_or_path=config, dtype=torch.float32)


def _join_process_group(device: torch.device) -> None:
    """Give DeepSpeed torch's process group, in which the ranks have met.

    It would also build an extension with a C++ compiler, which a pod does not have, for reductions of its
    inference in shared memory. It does so where its table of the operators that this machine can build says
    yes; an empty table is found before it asks the compiler.
    """
    deepspeed.ops.__compatible_ops__ = {}
    # where it looks for the index of its GPU, also in the middle of a pass
    os.environ.setdefault("LOCAL_RANK", str(device.index or 0))
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    deepspeed.init_distributed(verbose=False)
