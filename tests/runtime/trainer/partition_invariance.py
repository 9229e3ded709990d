"""One step cut in every way. A strategy passes when each gives the gradient and the weights of the whole
step: see test_partition_invariance.

`partition_invariance.py PORT STRATEGY WORLD_SIZE MODEL_FOLDER RESULTS CASE...` runs these cases on one of so
many ranks, which writes RESULTS/RANK-CASE.safetensors: the first gradient, the weights after ten steps of
the optimizer, and as metadata the metrics of the first step and of the last.
"""

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from grpo_api.resolve import resolve_algorithm
from grpo_api.v1alpha1.spec import AlgorithmSpec, DeepSpeedSpec, Dtype, LossType, OptimizerSpec
from grpo_runtime.model.load import load_policy
from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.trainer.batch import Batch, make_batch
from grpo_runtime.trainer.distributed import Ranks, StopRequest
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.strategy.interface import MakeStrategy, Strategy
from grpo_runtime.trainer.strategy.registry import STRATEGIES
from grpo_runtime.trainer.strategy.zero.settings import MakeZero

WIDTH = 12
"""Tokens of the longest sequence."""
LENGTHS = (12, 9, 11, 10, 12, 10, 9, 11, 12)
"""Tokens of the sequences that teach something; all are so long that a micro-batch has room for as many of
them as of the longest."""
LENGTHS_OF_ZEROS = (11, 5, 9)
"""Tokens of the sequences of advantage 0."""
NEAR_ZERO = 1e-30
"""An advantage that is computed and changes no bit that is compared."""

OPTIMIZER = OptimizerSpec(learning_rate=1e-4, weight_decay=0.01, max_grad_norm=1e6)
"""Nothing is clipped, so the first moment after the first step is the gradient times 1 - beta1."""

ONCE, TWICE = (
    resolve_algorithm(AlgorithmSpec(steps=10, num_iterations=num_iterations, optimizer=OPTIMIZER))
    for num_iterations in (1, 2)
)

CUTS_ALL = '{"zero_optimization": {"stage3_param_persistence_threshold": 0}}'
"""DeepSpeed's ZeRO-3 leaves parameters as small as these whole otherwise."""
VARIANTS: dict[str, MakeStrategy] = {
    "ZeRO3": MakeZero(3, DeepSpeedSpec(config=CUTS_ALL)),
    "ZeRO2 that overlaps": MakeZero(2, DeepSpeedSpec(overlap_comm=True, contiguous_gradients=False)),
    "ZeRO1 with its optimizer on the CPU": MakeZero(1, DeepSpeedSpec(offload_optimizer=True)),
    "ZeRO2 with its optimizer on the CPU": MakeZero(2, DeepSpeedSpec(offload_optimizer=True)),
    "ZeRO3 with all on the CPU": MakeZero(
        3, DeepSpeedSpec(offload_optimizer=True, offload_parameters=True, config=CUTS_ALL)
    ),
}
"""Strategies of the product with other options than its own."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A way to cut the step."""

    num_rows: int = 8
    """Sequences that teach something."""
    rows_each: int
    """How many of the longest a micro-batch has room for."""
    computes_zeros: bool = False
    """Whether the sequences of advantage 0 are computed; they change nothing."""
    is_double: bool = False
    """In float64 instead of float32."""
    recomputes: bool = False
    """Whether the backward pass computes the activations again."""
    is_packed: bool = False
    """Whether the sequences of a micro-batch share a row."""
    top_entropy: float | None = None
    """algorithm.topEntropyQuantile: the threshold is that of the tokens of all micro-batches and ranks."""
    loss_type: LossType = LossType.DAPO
    has_episodes: bool = False
    """Whether every second sample is an episode of two sequences, of which the second goes on from all of the
    first."""

    @property
    def algorithms(self) -> tuple[AlgorithmSpec, AlgorithmSpec]:
        """For steps of one update and for steps of two."""
        once, twice = (
            one.model_copy(update={"top_entropy_quantile": self.top_entropy, "loss_type": self.loss_type})
            for one in (ONCE, TWICE)
        )
        return once, twice

    @property
    def name(self) -> str:
        """For the command line and for files."""
        zeros = "zeros" if self.computes_zeros else "no-zeros"
        kept = ("-recomputed" if self.recomputes else "") + ("-packed" if self.is_packed else "")
        kept += "" if self.top_entropy is None else "-top-entropy"
        kept += f"-{self.loss_type.value}-episodes" if self.has_episodes else ""
        dtype = "float64" if self.is_double else "float32"
        return f"{self.num_rows}-by-{self.rows_each}-{zeros}-{dtype}{kept}"


CASES = {
    case.name: case
    for is_double in (False, True)
    for case in (
        *(
            Case(rows_each=rows_each, computes_zeros=computes_zeros, is_double=is_double)
            for rows_each in (8, 4, 2)
            for computes_zeros in (False, True)
        ),
        # of two ranks one has an empty micro-batch
        Case(num_rows=9, rows_each=2, is_double=is_double),
        Case(rows_each=2, is_double=is_double, recomputes=True),
        # as on GPUs with a flash kernel
        Case(rows_each=2, is_double=is_double, recomputes=True, is_packed=True),
        Case(rows_each=2, is_double=is_double, loss_type=LossType.GRPO, has_episodes=True),
        # compared with episodes that are whole: norms are in float32 always, and round the parts one by one
        *([] if is_double else [Case(rows_each=2, loss_type=LossType.DAPO, has_episodes=True)]),
        # in float32 rounding decides which tokens are above the threshold
        *([Case(num_rows=9, rows_each=2, is_double=True, top_entropy=0.3)] if is_double else []),
    )
}


def find_strategy(name: str) -> MakeStrategy:
    """One of the product, or the one that the tests made."""
    if name == "sharded":
        from sharded_strategy import ShardedStrategy

        return ShardedStrategy
    return VARIANTS.get(name) or STRATEGIES[name]


def a_policy(model_folder: Path, case: Case) -> Policy:
    """The same on every rank."""
    model = load_policy(model_folder, dtype=MASTER_DTYPE)
    if case.is_double:
        model = model.double()
    return Policy(
        model,
        temperature=1.0,
        dtype=Dtype.FLOAT32,
        gradient_checkpointing=case.recomputes,
        is_packed=case.is_packed,
    )


def a_batch(case: Case) -> Batch:
    """Sequences of different lengths and advantages, so that no part of the batch is like another."""
    lengths = (*LENGTHS[: case.num_rows], *LENGTHS_OF_ZEROS)
    samples = []
    for index, length in enumerate(lengths):
        completion = tuple(10 + (7 * index + place) % 60 for place in range(length - 2))
        cut = index + 1 if case.has_episodes and index % 2 else len(completion)
        sample, *branches = (
            Rollout((7, 8, *completion[:start]), part, (-4.6,) * len(part), (), True, "fake")
            for start, part in ((0, completion[:cut]), (cut, completion[cut:]))
            if part
        )
        samples.append(replace(sample, branches=tuple(branches)))
    zero = NEAR_ZERO if case.computes_zeros else 0.0
    advantages = [(-1.0) ** index * (1 + index / 4) for index in range(case.num_rows)]
    return make_batch(
        samples,
        group_sizes=[len(samples)],
        advantages=torch.tensor([*advantages, *[zero] * len(LENGTHS_OF_ZEROS)]),
        pad_id=0,
    )


def without_advantages(batch: Batch) -> Batch:
    """The same step, from which nothing is learned."""
    return replace(batch, advantages=torch.zeros_like(batch.advantages))


@torch.no_grad()
def spoil(policy: Policy, strategy: Strategy) -> None:
    """Weights and moments as no run ever has them."""
    for tensor in (*policy.parameters(), *(tensor for _, tensor in strategy.optimizer_state())):
        tensor.fill_(0.75)


def run(strategy: Strategy, case: Case, *, ranks: Ranks, result: Path) -> None:
    """Train on the batch of a case, cut as it says: once for the gradient, four times twice, and once with
    every advantage 0. Writes what came of it."""
    once, twice = (
        Learner(
            strategy,
            algorithm,
            micro_batch_tokens=case.rows_each * WIDTH,
            ranks=ranks,
            is_packed=case.is_packed,
        )
        for algorithm in case.algorithms
    )
    batch = a_batch(case)
    first = once.update(batch, step=0)
    moments = {name: tensor.clone() for name, tensor in strategy.optimizer_state()}
    gradient = {
        name.replace("exp_avg/", "gradient/"): moment / (1 - OPTIMIZER.beta1)
        for name, moment in moments.items()
        if name.startswith("exp_avg/")
    }
    for step in range(1, 5):
        twice.update(batch, step=step)
    last = once.update(without_advantages(batch), step=5)
    weights = {f"weight/{name}": tensor.detach().clone() for name, tensor in strategy.model_state()}
    save_file(gradient | weights, result, metadata={"first": json.dumps(first), "last": json.dumps(last)})


def main(rank: int, *, port: int, strategy: str, world_size: int, folders: list[Path]) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    model_folder, results = folders
    ranks = Ranks.meet(
        rank=rank, world_size=world_size, address="127.0.0.1", port=port, backend="gloo", stop=StopRequest()
    )
    for case in (CASES[name] for name in sys.argv[6:]):
        policy = a_policy(model_folder, case)
        made = find_strategy(strategy)(policy, optimizer=OPTIMIZER, total_steps=ONCE.steps, ranks=ranks)
        if ranks.rank != 0 and not made.is_sharded:
            # when a run resumes, only rank 0 has read the checkpoint
            spoil(policy, made)
        made.load(None)
        run(made, case, ranks=ranks, result=results / f"{rank}-{case.name}.safetensors")
    ranks.leave()


if __name__ == "__main__":
    main(
        int(os.environ["RANK"]),
        port=int(sys.argv[1]),
        strategy=sys.argv[2],
        world_size=int(sys.argv[3]),
        folders=[Path(folder) for folder in sys.argv[4:6]],
    )
