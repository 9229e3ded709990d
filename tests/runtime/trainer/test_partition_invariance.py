"""However a step is cut into micro-batches and ranks, with or without its sequences of advantage 0, the
gradient is that of the whole step, and so are the weights.

All ranks start from the state of rank 0. The reference is written without ranks, micro-batches and
strategies. To hold a strategy to this, add a row to LAUNCHES.
"""

import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import run_ranks
from partition_invariance import (
    CASES,
    ONCE,
    OPTIMIZER,
    Case,
    a_batch,
    a_policy,
    without_advantages,
)
from pod_builder import free_port
from safetensors import safe_open

from grpo_api.v1alpha1.spec import AlgorithmSpec, LossType
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.types import Denominators, LossInputs
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.trainer.algorithm_options import loss_options
from grpo_runtime.trainer.batch import Batch
from grpo_runtime.trainer.optimizer import PolicyOptimizer
from grpo_runtime.trainer.policy import Policy

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).with_name("partition_invariance.py")
FLOAT32 = tuple(name for name, case in CASES.items() if not case.is_double)
FLOAT64 = tuple(name for name in CASES if name not in FLOAT32)
ONLY_FLOAT64 = tuple(name for name in FLOAT64 if name.replace("float64", "float32") not in FLOAT32)
A_FEW = ("8-by-4-no-zeros-float32", "8-by-4-zeros-float32", "9-by-2-no-zeros-float32")
LAUNCHES = {
    "DDP on one rank": ("DDP", 1, tuple(CASES)),
    "DDP on two ranks": ("DDP", 2, tuple(CASES)),
    "FSDP2 on one rank": ("FSDP2", 1, FLOAT32),
    "FSDP2 on two ranks": ("FSDP2", 2, (*FLOAT32, *ONLY_FLOAT64)),
    "FSDP2 on two ranks in float64": (
        "FSDP2",
        2,
        tuple(name for name in FLOAT64 if name not in ONLY_FLOAT64),
    ),
    "ZeRO-1 on one rank": ("ZeRO1", 1, A_FEW),
    "ZeRO-2 on one rank, offloaded": ("ZeRO2 with its optimizer on the CPU", 1, A_FEW),
    "ZeRO-3 on one rank": ("ZeRO3", 1, A_FEW),
    "ZeRO-1 on two ranks": ("ZeRO1", 2, FLOAT32),
    "ZeRO-2 on two ranks": ("ZeRO2", 2, FLOAT32),
    "ZeRO-3 on two ranks": ("ZeRO3", 2, FLOAT32),
    "ZeRO-2 on two ranks, overlapping": ("ZeRO2 that overlaps", 2, A_FEW),
    "ZeRO-1 on two ranks, offloaded": ("ZeRO1 with its optimizer on the CPU", 2, A_FEW),
    "ZeRO-2 on two ranks, offloaded": ("ZeRO2 with its optimizer on the CPU", 2, A_FEW),
    "ZeRO-3 on two ranks, offloaded": ("ZeRO3 with all on the CPU", 2, A_FEW),
    "a sharded strategy on two ranks": ("sharded", 2, FLOAT32),
}
"""The name of a strategy, the number of ranks, and the cases."""
SELECTED = ("DDP on two ranks", "FSDP2 on two ranks")
"""Of which every part is in `make test`; the others are in `make test-matrix`."""


def in_its_run(launch: str, *values: object) -> Any:
    """The parameters of a test of one launch."""
    return pytest.param(launch, *values, marks=() if launch in SELECTED else pytest.mark.matrix)


EACH = [in_its_run(launch, name) for launch, (_, _, names) in LAUNCHES.items() for name in names]
NO_ZEROS, ZEROS = "8-by-4-no-zeros-float32", "8-by-4-zeros-float32"
WITH_BOTH = [
    in_its_run(launch) for launch, (_, _, names) in LAUNCHES.items() if {NO_ZEROS, ZEROS} <= {*names}
]
"""The launches with a step whose sequences of advantage 0 are left out, and with the same step whole."""


@dataclass(frozen=True)
class Outcome:
    """What came of a case: `gradient` is that of the first step, `first` and `last` are metrics."""

    gradient: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    first: dict[str, float]
    last: dict[str, float]


@dataclass(frozen=True)
class Results:
    """The files of a launch."""

    folder: Path
    num_ranks: int

    def of(self, case: Case, *, rank: int = 0) -> Outcome:
        """What this rank has at the end."""
        with safe_open(self.folder / f"{rank}-{case.name}.safetensors", framework="pt") as found:
            tensors: dict[str, dict[str, torch.Tensor]] = {"gradient": {}, "weight": {}}
            for key in found.keys():  # noqa: SIM118 - it is no mapping
                kind, _, name = key.partition("/")
                tensors[kind][name] = found.get_tensor(key)
            metrics = {name: json.loads(text) for name, text in found.metadata().items()}
        return Outcome(tensors["gradient"], tensors["weight"], metrics["first"], metrics["last"])


class Launches:
    """Starts the ranks of a launch, and computes a reference, when a test first asks for it."""

    def __init__(self, model_folder: Path, factory: pytest.TempPathFactory) -> None:
        self._model_folder = model_folder
        self._factory = factory
        self._results: dict[str, Results] = {}
        self._references: dict[tuple[object, ...], Outcome] = {}

    def results(self, name: str) -> Results:
        if name not in self._results:
            self._results[name] = self.launch(name, cases=LAUNCHES[name][2])
        return self._results[name]

    def launch(self, name: str, *, cases: tuple[str, ...]) -> Results:
        strategy, num_ranks, _ = LAUNCHES[name]
        folder = self._factory.mktemp("ranks")
        run_ranks(
            SCRIPT,
            str(free_port()),
            strategy,
            str(num_ranks),
            str(self._model_folder),
            str(folder),
            *cases,
            num_ranks=num_ranks,
            strategy=strategy,
        )
        return Results(folder, num_ranks)

    def reference(self, case: Case) -> Outcome:
        if case.loss_type is LossType.DAPO:
            # every token counts once: an episode that is cut teaches what the whole one does
            case = replace(case, has_episodes=False)
        key = (case.num_rows, case.is_double, case.top_entropy, case.loss_type, case.has_episodes)
        if key not in self._references:
            self._references[key] = whole_step(a_policy(self._model_folder, case), case)
        return self._references[key]


def whole_step(policy: Policy, case: Case) -> Outcome:
    """What a case does, with the whole batch at once, sequences of advantage 0 included."""
    batch, (once, twice) = a_batch(case), case.algorithms
    optimizer = PolicyOptimizer(policy, OPTIMIZER, total_steps=ONCE.steps)
    add_whole(policy, once, batch, None)
    gradient = {
        name: tensor.grad for name, tensor in policy.model.named_parameters() if tensor.grad is not None
    }
    policy.zero_grad()
    train_whole(policy, optimizer, once, batch, step=0)
    for step in range(1, 5):
        train_whole(policy, optimizer, twice, batch, step=step)
    train_whole(policy, optimizer, once, without_advantages(batch), step=5)
    weights = {name: tensor.detach() for name, tensor in policy.model.named_parameters()}
    return Outcome(gradient, weights, {}, {})


def add_whole(
    policy: Policy, algorithm: AlgorithmSpec, batch: Batch, old: torch.Tensor | None
) -> torch.Tensor:
    """Add the gradient of the whole batch in one piece; returns the logprobs."""
    logprobs, entropies = policy(batch.token_ids, batch.loss_mask)
    inputs = LossInputs(
        trainer_logprobs=logprobs,
        old_logprobs=old,
        rollout_logprobs=batch.rollout_logprobs,
        advantages=batch.advantages,
        loss_mask=batch.loss_mask,
        entropies=entropies,
        episode_sizes=batch.episode_sizes,
    )
    denominators = Denominators.of_mask(batch.loss_mask, num_sequences=len(set(batch.episodes.tolist())))
    compute_loss(inputs, options=loss_options(algorithm), denominators=denominators).loss.backward()
    return logprobs.detach()


def train_whole(
    policy: Policy, optimizer: PolicyOptimizer, algorithm: AlgorithmSpec, batch: Batch, *, step: int
) -> None:
    old = None
    for _ in range(algorithm.num_iterations):
        found = add_whole(policy, algorithm, batch, old)
        optimizer.step(step=step)
        old = found if old is None else old


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    model_folder = tmp_path_factory.mktemp("model")
    write_tiny_model(model_folder)
    return Launches(model_folder, tmp_path_factory)


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


@pytest.mark.parametrize(("launch", "name"), EACH)
def test_every_cut_gives_the_gradient_and_the_weights_of_the_whole_step(
    launch: str, name: str, launches: Launches
) -> None:
    case, results = CASES[name], launches.results(launch)
    expected = launches.reference(case)
    for rank in range(results.num_ranks):
        found = results.of(case, rank=rank)
        assert found.gradient.keys() == expected.gradient.keys()
        gradient, whole = flat(found.gradient).double(), flat(expected.gradient).double()
        assert (gradient - whole).norm() <= (1e-12 if case.is_double else 1e-6) * whole.norm()
        assert found.first["grad_norm"] == pytest.approx(float(whole.norm()), rel=1e-6)
        # in float32 Adam makes a tenth of a step of what rounding leaves of a gradient that is nearly 0
        change = flat(found.weights).double() - flat(expected.weights).double()
        assert change.abs().max() <= (1e-9 if case.is_double else 1e-5)


@pytest.mark.parametrize(("launch", "name"), EACH)
def test_the_ranks_end_with_the_same_bits(launch: str, name: str, launches: Launches) -> None:
    results = launches.results(launch)
    mine, *others = (results.of(CASES[name], rank=rank) for rank in range(results.num_ranks))
    for other in others:
        assert flat(mine.weights).equal(flat(other.weights))
        assert (mine.first, mine.last) == (other.first, other.last)


@pytest.mark.parametrize(
    ("launch", "name", "num_micro_batches"),
    [
        in_its_run("DDP on one rank", "8-by-8-no-zeros-float32", 1),
        in_its_run("DDP on one rank", "8-by-4-no-zeros-float32", 2),
        in_its_run("DDP on one rank", "8-by-2-no-zeros-float32", 4),
        ("DDP on two ranks", "8-by-8-no-zeros-float32", 1),
        ("DDP on two ranks", "8-by-4-no-zeros-float32", 1),
        ("DDP on two ranks", "8-by-2-no-zeros-float32", 2),
        # five sequences on one rank and four on the other
        ("DDP on two ranks", "9-by-2-no-zeros-float32", 3),
    ],
)
def test_the_cases_are_cut_as_they_say(
    launch: str, name: str, num_micro_batches: int, launches: Launches
) -> None:
    assert launches.results(launch).of(CASES[name]).first["batch/micro_batches"] == num_micro_batches


@pytest.mark.parametrize("launch", WITH_BOTH)
def test_a_step_says_which_share_of_its_tokens_was_computed(launch: str, launches: Launches) -> None:
    results = launches.results(launch)
    num_tokens = a_batch(CASES[NO_ZEROS]).loss_mask.sum(1)
    shares = [results.of(CASES[name]).first["batch/computed_share"] for name in (NO_ZEROS, ZEROS)]
    assert shares == pytest.approx([float(num_tokens[:8].sum() / num_tokens.sum()), 1.0])


@pytest.mark.parametrize("launch", WITH_BOTH)
def test_a_step_that_teaches_nothing_still_steps_and_reports_nothing_it_has_not_computed(
    launch: str, launches: Launches
) -> None:
    # that its weights are those of the reference is in the test of all cases
    last = launches.results(launch).of(CASES[NO_ZEROS]).last
    assert last == {
        "batch/micro_batches": 1,
        "batch/padding_share": 1,
        "batch/computed_share": 0,
        "loss": 0,
        "grad_norm": 0,
        "skipped_updates": 0,
        "learning_rate": OPTIMIZER.learning_rate,
    }


@pytest.mark.parametrize("launch", ["DDP on two ranks"])
def test_a_run_that_is_repeated_has_the_same_bits(launch: str, launches: Launches) -> None:
    case = CASES["9-by-2-no-zeros-float32"]
    again = launches.launch(launch, cases=(case.name,))
    for rank, kind in itertools.product(range(again.num_ranks), ("gradient", "weights")):
        first, second = (
            flat(getattr(results.of(case, rank=rank), kind)) for results in (launches.results(launch), again)
        )
        assert first.equal(second)
