"""Two ranks that train a policy under DDP and then under FSDP2, from the same files and on the same tokens.

`python fsdp2_ranks.py PORT MODEL_FOLDER RESULTS DTYPE` writes RESULTS/STRATEGY-RANK.safetensors: the weights
after the last step, as a checkpoint and as engines get them, and as metadata a JSON of what else is asserted.
"""

import json
import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from grpo_api.v1alpha1.spec import Dtype, OptimizerSpec
from grpo_runtime.errors import UserError
from grpo_runtime.model.load import empty_policy, load_policy
from grpo_runtime.trainer.commands import Command
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.stop import StopRequest
from grpo_runtime.trainer.strategy.ddp import DDPStrategy
from grpo_runtime.trainer.strategy.fsdp2 import FSDP2Strategy
from grpo_runtime.trainer.strategy.interface import Strategy
from grpo_runtime.trainer.strategy.registry import STRATEGIES

WORLD_SIZE = 2
NUM_STEPS = 10
WIDTH = 12
PROBE = torch.tensor([[5, 9, 13, 17, 21]])
OPTIMIZER = OptimizerSpec(learning_rate=1e-3, weight_decay=0.1, max_grad_norm=1.0)


def micro_batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Token ids and mask of this rank's parts of every step. In the last one rank 1 has nothing to learn."""
    generator = torch.Generator().manual_seed(rank)
    parts = []
    for index in range(3):
        ids = torch.randint(3, 90, (2, WIDTH), generator=generator)
        mask = torch.rand((2, WIDTH - 1), generator=generator) < 0.6
        parts.append((ids, mask & (rank == 0 or index < 2)))
    return parts


def train_step(strategy: Strategy, rank: int, *, step: int, scale: float = 1.0) -> tuple[float, float]:
    """The loss of all ranks in one step, and its gradient norm."""
    total = torch.zeros(())
    parts = micro_batches(rank)
    for index, (ids, mask) in enumerate(parts):
        with strategy.micro_batch(is_last=index == len(parts) - 1):
            logprobs, _ = strategy.score(ids, mask)
            loss = -torch.where(mask, logprobs, 0.0).sum() * scale / 60
            strategy.backward(loss)
        total += loss.detach()
    norm, _ = strategy.optimizer_step(step=step)
    dist.all_reduce(total)
    return float(total), norm


def read_while_ranks_meet(strategy: Strategy, ranks: Ranks) -> dict[str, torch.Tensor]:
    """The engines' weights, read in a thread as in mode Colocated, while the main threads do other things in
    which ranks meet."""
    weights: dict[str, torch.Tensor] = {}

    def read() -> None:
        weights.update((name, tensor.clone()) for name, tensor in strategy.engine_weights().tensors())

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(20):
        if ranks.rank == 0:
            ranks.announce(Command.PROBE)
        else:
            ranks.next_command(on_tick=lambda: None)
        strategy.probe_logprobs(PROBE)
    for _ in strategy.model_state():
        pass
    thread.join()
    return weights


def refuses_what_is_not_finite(strategy: Strategy, rank: int) -> str:
    """What a step says in which rank 1 has an infinite loss; it changes no weight."""
    before = {name: tensor.clone() for name, tensor in strategy.model_state()}
    try:
        train_step(strategy, rank, step=NUM_STEPS, scale=float("inf") if rank == 1 else 1.0)
    except UserError as error:
        assert all(tensor.equal(before[name]) for name, tensor in strategy.model_state())
        return str(error)
    return ""


def held_elements(policy: Policy) -> int:
    """Elements of the parameters in this rank's memory."""
    tensors = (p.to_local() if isinstance(p, DTensor) else p for p in policy.model.parameters())
    return sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in tensors)


def held_moments(strategy: Strategy) -> int:
    """Elements of AdamW's moments in this rank's memory, of what is there without a step."""
    assert isinstance(strategy, DDPStrategy | FSDP2Strategy)
    states = strategy._optimizer._adamw.state.values()
    tensors = [state[kind] for state in states for kind in ("exp_avg", "exp_avg_sq")]
    return sum((t.to_local() if isinstance(t, DTensor) else t).numel() for t in tensors)


def run(name: str, ranks: Ranks, *, model_folder: Path, dtype: Dtype, result: Path) -> None:
    """Train under one strategy and write what came of it."""
    rank = ranks.rank
    model = (load_policy if rank == 0 else empty_policy)(model_folder, dtype=MASTER_DTYPE)
    policy = Policy(model, temperature=1.0, dtype=dtype)
    strategy = STRATEGIES[name](
        policy, optimizer=OPTIMIZER, total_steps=100, ranks=ranks, device=torch.device("cpu")
    )
    strategy.load(None)
    found: dict[str, object] = {"held": held_elements(policy), "moments": held_moments(strategy)}
    found["steps"] = [train_step(strategy, rank, step=step) for step in range(NUM_STEPS)]
    found["probe"] = strategy.probe_logprobs(PROBE)[0].tolist()
    found["layout"] = [[spec.name, *spec.shape] for spec in strategy.engine_weights().layout()]
    engine = read_while_ranks_meet(strategy, ranks)
    found["given"] = [[name, *tensor.shape] for name, tensor in engine.items()]
    tensors = {f"engine/{name}": tensor for name, tensor in engine.items()}
    tensors |= {f"model/{name}": tensor.detach().clone() for name, tensor in strategy.model_state()}
    tensors |= {f"optimizer/{name}": tensor.clone() for name, tensor in strategy.optimizer_state()}
    found["refusal"] = refuses_what_is_not_finite(strategy, rank)
    save_file(tensors, result, metadata={"found": json.dumps(found)})


def main(rank: int, *, port: int, model_folder: Path, results: Path, dtype: Dtype) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    ranks = Ranks.meet(
        rank=rank, world_size=WORLD_SIZE, address="127.0.0.1", port=port, backend="gloo", stop=StopRequest()
    )
    for name in ("DDP", "FSDP2"):
        result = results / f"{name}-{rank}.safetensors"
        run(name, ranks, model_folder=model_folder, dtype=dtype, result=result)
    ranks.leave()


if __name__ == "__main__":
    # a fork, so that the imports are paid once
    own_rank = 1 if os.fork() else 0
    main(
        own_rank,
        port=int(sys.argv[1]),
        model_folder=Path(sys.argv[2]),
        results=Path(sys.argv[3]),
        dtype=Dtype(sys.argv[4]),
    )
    if own_rank == 1:
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
