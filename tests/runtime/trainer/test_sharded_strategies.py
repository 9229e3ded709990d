"""FSDP2 and ZeRO on two real ranks, against DDP: see `sharded_ranks`. Whole runs are in
test_strategy_seam.py.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import run_ranks
from partition_invariance import VARIANTS
from pod_builder import free_port
from safetensors import safe_open
from safetensors.torch import load_file
from sharded_ranks import NUM_STEPS, WORLD_SIZE
from tiny_families import write_tied_model, write_tiny_family
from tiny_moe import write_tiny_moe

from grpo_api.v1alpha1.spec import Dtype
from grpo_runtime.model.tiny import write_tiny_model

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).with_name("sharded_ranks.py")


MODELS: dict[str, Callable[[Path], None]] = {
    "plain": write_tiny_model,
    "tied": write_tied_model,
    "experts": write_tiny_moe,
    "adapter": write_tied_model,
}
"""`adapter` is trained with one."""
PARTLY_TRAINED = {"pictures": partial(write_tiny_family, family="gemma3-pictures")}
"""DeepSpeed refuses it."""
EXTENSIONS = "extensions"
"""Where torch puts what is compiled at run time."""


@dataclass(frozen=True)
class Outcome:
    """What one strategy made of a policy."""

    folder: Path
    strategy: str

    def found(self, *, rank: int = 0) -> dict[str, Any]:
        """What a rank has measured."""
        with safe_open(self.folder / f"{self.strategy}-{rank}.safetensors", framework="pt") as file:
            found: dict[str, Any] = json.loads(file.metadata()["found"])
        return found

    def tensors(self, kind: str, *, rank: int = 0) -> dict[str, torch.Tensor]:
        """The tensors of a kind, as this rank has read them."""
        tensors = load_file(self.folder / f"{self.strategy}-{rank}.safetensors")
        return {name.removeprefix(kind): t for name, t in tensors.items() if name.startswith(kind)}


@dataclass(frozen=True)
class Runs:
    """The outcomes of one model."""

    ddp: Outcome
    sharded: Outcome
    files: dict[str, torch.Tensor]
    """What the ranks began with."""

    @property
    def tolerance(self) -> float:
        """A hundredth of what a step changes: AdamW makes whole steps of gradients that are only noise."""
        return float(self.ddp.found()["learning rate"]) / 100


def run_both(strategy: str, folder: Path, dtype: Dtype, *, model: str) -> Runs:
    (MODELS | PARTLY_TRAINED)[model](folder / "model")
    options = ["adapter"] if model == "adapter" else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(folder / EXTENSIONS))
        run_ranks(
            SCRIPT,
            str(free_port()),
            str(folder / "model"),
            str(folder),
            dtype.value,
            strategy,
            *options,
            strategy=strategy,
        )
    files = load_file(folder / "model" / "model.safetensors")
    return Runs(Outcome(folder, "DDP"), Outcome(folder, strategy), files)


ZERO = ("ZeRO1", "ZeRO2", "ZeRO3")
OF_ONE_MODEL = tuple(name for name in VARIANTS if name not in ZERO)
SELECTED = (("FSDP2", "tied"), ("ZeRO3", "tied"))
"""Which are in `make test`; the others are in `make test-matrix`."""
CASES = [
    pytest.param(
        (strategy, model),
        marks=() if (strategy, model) in SELECTED else pytest.mark.matrix,
        id=f"{strategy}-{model}",
    )
    for strategy in ("FSDP2", *ZERO, *OF_ONE_MODEL)
    for model in (
        ("tied",) if strategy in OF_ONE_MODEL else (*MODELS, *(PARTLY_TRAINED if strategy == "FSDP2" else ()))
    )
]


@pytest.fixture(scope="module", params=CASES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    strategy, model = request.param
    return run_both(strategy, tmp_path_factory.mktemp(model), Dtype.FLOAT32, model=model)


def test_losses_and_gradients_are_those_of_ddp_also_when_one_rank_has_nothing_to_learn(runs: Runs) -> None:
    steps, expected = (outcome.found()["steps"] for outcome in (runs.sharded, runs.ddp))
    assert len(steps) == NUM_STEPS
    for step, others in zip(steps, expected, strict=True):
        assert step == pytest.approx(others, rel=1e-5, abs=1e-5)
    assert steps[-1][0] < 0.9 * steps[0][0]


def test_weights_and_moments_are_those_of_ddp_on_every_rank(runs: Runs) -> None:
    for kind in ("model/", "optimizer/"):
        expected = runs.ddp.tensors(kind)
        for rank in range(WORLD_SIZE):
            found = runs.sharded.tensors(kind, rank=rank)
            # DDP gives a tied head a second time, under its own name
            assert expected.keys() - found.keys() <= {"model/lm_head.weight".removeprefix(kind)}
            for name, tensor in found.items():
                torch.testing.assert_close(tensor, expected[name], atol=runs.tolerance, rtol=1e-5)


def test_engines_are_given_what_the_layout_promises_under_the_names_of_the_files(runs: Runs) -> None:
    found = runs.sharded.found()
    assert found["given"] == found["layout"]
    for rank in range(WORLD_SIZE):
        weights = runs.sharded.tensors("engine/", rank=rank)
        assert {name: t.shape for name, t in weights.items()} == {n: t.shape for n, t in runs.files.items()}
        for name, tensor in runs.ddp.tensors("engine/").items():
            torch.testing.assert_close(weights[name], tensor, atol=runs.tolerance, rtol=1e-5)


def test_before_the_first_step_a_rank_holds_its_part_of_weights_and_moments_and_no_more(runs: Runs) -> None:
    """All of it: a colocated engine takes its memory then, and what is missing would be found in a step."""
    has_all_weights = runs.sharded.strategy.startswith(("ZeRO1", "ZeRO2"))
    whole = runs.ddp.found()
    for rank in range(WORLD_SIZE):
        found = runs.sharded.found(rank=rank)
        num_parts = 1 if has_all_weights else WORLD_SIZE
        assert found["held weights"] == pytest.approx(whole["held weights"] / num_parts, rel=0.02)
        assert found["held moments"] == pytest.approx(whole["held moments"] / WORLD_SIZE, rel=0.02)


def test_a_state_that_rank_0_has_is_that_of_all_ranks_to_the_bit(runs: Runs) -> None:
    for rank in range(WORLD_SIZE):
        assert runs.sharded.found(rank=rank)["goes on"]


def test_nothing_is_compiled_because_a_pod_has_no_compiler(runs: Runs) -> None:
    assert not (runs.sharded.folder / EXTENSIONS).exists()


def test_an_update_with_a_gradient_that_is_not_finite_on_one_rank_is_left_out_by_all(runs: Runs) -> None:
    expected = [runs.ddp.found(rank=rank)["left out"] for rank in range(WORLD_SIZE)]
    assert not math.isfinite(expected[0][0])
    for rank in range(WORLD_SIZE):
        left_out, next_one = runs.sharded.found(rank=rank)["left out"]
        assert not math.isfinite(left_out)
        assert next_one == pytest.approx(expected[rank][1], rel=1e-5)


@pytest.mark.parametrize(
    "strategy", ["FSDP2", *(pytest.param(name, marks=pytest.mark.matrix) for name in ZERO)]
)
def test_a_bfloat16_run_that_recomputes_activations_learns_what_ddp_learns_as_far_as_bfloat16_tells(
    strategy: str, tmp_path: Path
) -> None:
    runs = run_both(strategy, tmp_path, Dtype.BFLOAT16, model="tied")
    losses, expected = ([loss for loss, _ in o.found()["steps"]] for o in (runs.sharded, runs.ddp))
    assert losses == pytest.approx(expected, rel=0.01)
    assert runs.sharded.found()["probe"] == pytest.approx(runs.ddp.found()["probe"], abs=0.05)
    masters, weights = runs.sharded.tensors("model/"), runs.sharded.tensors("engine/")
    for name, tensor in weights.items():
        assert masters[name].dtype == torch.float32
        assert tensor.equal(masters[name].to(torch.bfloat16)), name


@pytest.mark.parametrize(
    "strategy", ["FSDP2", *(pytest.param(name, marks=pytest.mark.matrix) for name in ZERO)]
)
def test_an_adapter_over_weights_in_bfloat16_learns_what_it_does_under_ddp_and_is_summed_in_float32(
    strategy: str, tmp_path: Path
) -> None:
    runs = run_both(strategy, tmp_path, Dtype.BFLOAT16, model="adapter")
    losses, expected = ([loss for loss, _ in o.found()["steps"]] for o in (runs.sharded, runs.ddp))
    assert losses == pytest.approx(expected, rel=0.01)
    assert losses[-1] < 0.9 * losses[0]
    # of ZeRO the weights below are float32, and so is what goes from layer to layer
    assert runs.sharded.found()["probe"] == pytest.approx(runs.ddp.found()["probe"], abs=0.1)
    adapter, weights = runs.sharded.tensors("model/"), runs.sharded.tensors("engine/")
    assert all(tensor.dtype == torch.float32 for tensor in adapter.values())
    for name, tensor in weights.items():
        own = f"{name.removesuffix('.weight')}.lora_A.default.weight"
        wanted = runs.files[name].to(torch.bfloat16).float()
        if own in adapter:
            wanted = wanted + 2 * adapter[own.replace("lora_A", "lora_B")] @ adapter[own]
        torch.testing.assert_close(tensor.float(), wanted, atol=1e-6, rtol=1e-6)
