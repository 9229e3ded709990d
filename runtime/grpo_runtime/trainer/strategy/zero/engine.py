"""DeepSpeed, imported and started among ranks that have met already, with nothing compiled and nothing whole
twice.
"""

import logging
import os
import sys
from typing import Any

import torch
from pydantic import ValidationError

from grpo_runtime.errors import UserError
from grpo_runtime.model.language_model import decoder_layers
from grpo_runtime.trainer.distributed import Ranks, peer_errors
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.placement import place
from grpo_runtime.trainer.strategy.zero.settings import SECTION

# DeepSpeed's autotuner, which nobody uses here, imports MLflow where it is installed, for seconds
_UNUSED = "mlflow"
_is_hidden = _UNUSED not in sys.modules
if _is_hidden:
    # which `import mlflow` takes for a module that is not there
    sys.modules[_UNUSED] = None  # type: ignore[assignment]
try:
    import deepspeed
    import deepspeed.runtime.zero.config

    # or the first optimizer imports it, and with it torch's compiler, which takes seconds in every process
    import deepspeed.runtime.zero.muon.muon_optimizer
finally:
    if _is_hidden:
        del sys.modules[_UNUSED]


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
