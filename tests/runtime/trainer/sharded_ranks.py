"""One of two ranks that train a policy under DDP and then under a sharded strategy, from the same files
and on the same tokens: each on a GPU of its own where there are two, else on the CPU.

`sharded_ranks.py PORT MODEL_FOLDER RESULTS DTYPE STRATEGY [adapter]` writes for each of the two strategies
RESULTS/STRATEGY-RANK.safetensors: the weights after the last step, as a checkpoint and as engines get them,
and as metadata a JSON of what else is asserted. In bfloat16 it recomputes activations. With `adapter` it
trains one, over weights in the run's precision where the strategy is not of DeepSpeed.
"""

import gc
import json
import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from partition_invariance import find_strategy
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from grpo_api.contract.run_config import ResolvedLora
from grpo_api.v1alpha1.spec import Dtype, OptimizerSpec
from grpo_runtime.model.load import empty_policy, load_policy
from grpo_runtime.model.lora import add_adapter
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.device import collective_backend, training_device
from grpo_runtime.trainer.distributed import Command, Ranks, StopRequest
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.strategy.interface import Strategy, TrainingState

WORLD_SIZE = 2
NUM_STEPS = 10
WIDTH = 12
PROBE = torch.tensor([[5, 9, 13, 17, 21]])
OPTIMIZER = OptimizerSpec(learning_rate=1e-3, weight_decay=0.1, max_grad_norm=1.0)


def micro_batches(rank: int, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Token ids and mask of this rank's parts of every step. In the last one rank 1 has nothing to learn."""
    generator = torch.Generator().manual_seed(rank)
    parts = []
    for index in range(3):
        ids = torch.randint(3, 90, (2, WIDTH), generator=generator)
        mask = torch.rand((2, WIDTH - 1), generator=generator) < 0.6
        mask &= rank == 0 or index < 2
        parts.append((ids.to(device), mask.to(device)))
    return parts


def train_step(strategy: Strategy, rank: int, *, step: int, scale: float = 1.0) -> tuple[float, float]:
    """The loss of all ranks in one step, and its gradient norm."""
    total = torch.zeros((), device=strategy.device)
    parts = micro_batches(rank, strategy.device)
    for index, (ids, mask) in enumerate(parts):
        with strategy.micro_batch(is_last=index == len(parts) - 1):
            logprobs, entropies = strategy.score(ids, mask)
            loss = -torch.where(mask, logprobs + 0.1 * entropies, 0.0).sum() * scale / 60
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
        strategy.probe_logprobs(PROBE.to(strategy.device))
    _read(strategy.model_state())
    thread.join()
    return weights


def goes_on_from_its_state(strategy: Strategy, rank: int) -> bool:
    """Whether a step has the same bits again after rank 0 has given all ranks the state before it."""
    tensors = [
        {name: tensor.clone() for name, tensor in named}
        for named in (strategy.model_state(), strategy.optimizer_state())
    ]
    first = train_step(strategy, rank, step=NUM_STEPS)
    strategy.load(TrainingState(*tensors) if rank == 0 else None)
    restored = [dict(named) for named in (strategy.model_state(), strategy.optimizer_state())]
    for saved, found in zip(tensors, restored, strict=True):
        assert saved.keys() == found.keys()
        assert all(tensor.equal(found[name]) for name, tensor in saved.items())
    return first == train_step(strategy, rank, step=NUM_STEPS)


def _read(tensors: NamedTensors) -> None:
    for _ in tensors:
        pass


def leaves_out_what_is_not_finite(strategy: Strategy, rank: int) -> list[float]:
    """The gradient norm of an update in which rank 1 has an infinite loss. It changes nothing, and the one
    after it, whose norm is the second, is as if it had not been."""

    def state() -> dict[str, torch.Tensor]:
        return {
            name: tensor.clone()
            for named in (strategy.model_state(), strategy.optimizer_state())
            for name, tensor in named
        }

    before = state()
    _, norm = train_step(strategy, rank, step=NUM_STEPS, scale=float("inf") if rank == 1 else 1.0)
    after = state()
    assert all(tensor.equal(after[name]) for name, tensor in before.items())
    return [norm, train_step(strategy, rank, step=NUM_STEPS)[1]]


def held_weights(policy: Policy) -> int:
    """Bytes of the weights in this rank's memory."""
    storages: dict[int, int] = {}
    for parameter in policy.model.parameters():
        # ZeRO-3 keeps its part of a parameter beside it
        part = getattr(parameter, "ds_tensor", parameter)
        storage = (part.to_local() if isinstance(part, DTensor) else part).untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def held_moments() -> int:
    """Elements of AdamW's moments in this rank's memory."""
    gc.collect()
    (adamw,) = (found for found in gc.get_objects() if isinstance(found, torch.optim.AdamW))
    moments = (state["exp_avg"] for state in adamw.state.values())
    return sum((m.to_local() if isinstance(m, DTensor) else m).numel() for m in moments)


def device_of(rank: int) -> torch.device:
    """Where a rank trains."""
    if torch.cuda.device_count() < WORLD_SIZE:
        return torch.device("cpu")
    return training_device(local_rank=rank)


def run(
    name: str, ranks: Ranks, *, model_folder: Path, dtype: Dtype, result: Path, has_adapter: bool
) -> None:
    """Train under one strategy and write what came of it."""
    rank = ranks.rank
    model_dtype = dtype.value if has_adapter and not name.startswith("ZeRO") else MASTER_DTYPE
    model = (load_policy if rank == 0 else empty_policy)(model_folder, dtype=model_dtype)
    optimizer = OPTIMIZER
    if has_adapter:
        add_adapter(
            model, ResolvedLora(rank=4, alpha=8), seed=5, origin=LocalModel(model_folder, "", commit=None)
        )
        optimizer = optimizer.model_copy(update={"learning_rate": 1e-2})
    recomputes = name != "DDP" and dtype is Dtype.BFLOAT16
    policy = Policy(
        model,
        temperature=1.0,
        dtype=dtype,
        gradient_checkpointing=recomputes,
        has_entropy_gradient=True,
    )
    strategy = find_strategy(name)(
        policy, optimizer=optimizer, total_steps=100, ranks=ranks, device=device_of(rank)
    )
    strategy.load(None)
    found: dict[str, object] = {"held weights": held_weights(policy), "held moments": held_moments()}
    found["learning rate"] = optimizer.learning_rate
    found["steps"] = [train_step(strategy, rank, step=step) for step in range(NUM_STEPS)]
    found["probe"] = strategy.probe_logprobs(PROBE.to(strategy.device))[0].tolist()
    found["layout"] = [[spec.name, *spec.shape] for spec in strategy.engine_weights().layout()]
    engine = read_while_ranks_meet(strategy, ranks)
    if rank == 0 and name.startswith(("DDP", "ZeRO1", "ZeRO2")):
        # would hang if it met the other rank: an engine of its own process is started again by its rank alone
        _read(strategy.engine_weights().tensors())
    found["given"] = [[name, *tensor.shape] for name, tensor in engine.items()]
    tensors = {f"engine/{name}": tensor for name, tensor in engine.items()}
    tensors |= {f"model/{name}": tensor.detach().clone() for name, tensor in strategy.model_state()}
    tensors |= {f"optimizer/{name}": tensor.clone() for name, tensor in strategy.optimizer_state()}
    found["left out"] = leaves_out_what_is_not_finite(strategy, rank)
    found["goes on"] = goes_on_from_its_state(strategy, rank)
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    save_file(tensors, result, metadata={"found": json.dumps(found)})


def main(
    rank: int,
    *,
    port: int,
    model_folder: Path,
    results: Path,
    dtype: Dtype,
    strategy: str,
    has_adapter: bool,
) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    backend = collective_backend(device_of(rank))
    ranks = Ranks.meet(
        rank=rank, world_size=WORLD_SIZE, address="127.0.0.1", port=port, backend=backend, stop=StopRequest()
    )
    for name in ("DDP", strategy):
        result = results / f"{name}-{rank}.safetensors"
        run(name, ranks, model_folder=model_folder, dtype=dtype, result=result, has_adapter=has_adapter)
    ranks.leave()


if __name__ == "__main__":
    main(
        int(os.environ["RANK"]),
        port=int(sys.argv[1]),
        model_folder=Path(sys.argv[2]),
        results=Path(sys.argv[3]),
        dtype=Dtype(sys.argv[4]),
        strategy=sys.argv[5],
        has_adapter="adapter" in sys.argv[6:],
    )
