"""FSDP2 on two real ranks, against DDP: see `fsdp2_ranks`. Whole runs are in test_strategy_seam.py."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fsdp2_ranks import NUM_STEPS, WORLD_SIZE
from pod_builder import free_port
from rank_script import run_ranks
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_moe import write_tiny_moe
from transformers import AutoConfig, GPT2Config, GPT2LMHeadModel, Qwen2ForCausalLM

from grpo_api.v1alpha1.spec import Dtype
from grpo_runtime.model.load import empty_policy, load_policy
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.trainer.strategy.fsdp2 import decoder_layers

SCRIPT = Path(__file__).with_name("fsdp2_ranks.py")


def write_tied_model(into: Path) -> None:
    """The tiny model with one matrix for embeddings and head, and an odd number of rows to cut."""
    write_tiny_model(into)
    config = AutoConfig.from_pretrained(into)
    config.tie_word_embeddings = True
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(into)


MODELS: dict[str, Callable[[Path], None]] = {
    "plain": write_tiny_model,
    "tied": write_tied_model,
    "experts": write_tiny_moe,
}


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
    fsdp2: Outcome
    files: dict[str, torch.Tensor]
    """What the ranks began with."""


def run_both(write: Callable[[Path], None], folder: Path, dtype: Dtype) -> Runs:
    write(folder / "model")
    run_ranks(SCRIPT, str(free_port()), str(folder / "model"), str(folder), dtype.value)
    files = load_file(folder / "model" / "model.safetensors")
    return Runs(Outcome(folder, "DDP"), Outcome(folder, "FSDP2"), files)


@pytest.fixture(scope="module", params=[pytest.param("plain", marks=pytest.mark.matrix), "tied", "experts"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return run_both(MODELS[request.param], tmp_path_factory.mktemp(request.param), Dtype.FLOAT32)


def test_losses_and_gradients_are_those_of_ddp_also_when_one_rank_has_nothing_to_learn(runs: Runs) -> None:
    steps, expected = (outcome.found()["steps"] for outcome in (runs.fsdp2, runs.ddp))
    assert len(steps) == NUM_STEPS
    for step, others in zip(steps, expected, strict=True):
        assert step == pytest.approx(others, rel=1e-5, abs=1e-5)
    assert steps[-1][0] < 0.9 * steps[0][0]


def test_weights_and_moments_are_those_of_ddp_on_every_rank(runs: Runs) -> None:
    for kind in ("model/", "optimizer/"):
        expected = runs.ddp.tensors(kind)
        for rank in range(WORLD_SIZE):
            found = runs.fsdp2.tensors(kind, rank=rank)
            # DDP gives a tied head a second time, under its own name
            assert expected.keys() - found.keys() <= {"model/lm_head.weight".removeprefix(kind)}
            for name, tensor in found.items():
                torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-5)


def test_engines_are_given_what_the_layout_promises_under_the_names_of_the_files(runs: Runs) -> None:
    found = runs.fsdp2.found()
    assert found["given"] == found["layout"]
    for rank in range(WORLD_SIZE):
        weights = runs.fsdp2.tensors("engine/", rank=rank)
        assert {name: t.shape for name, t in weights.items()} == {n: t.shape for n, t in runs.files.items()}
        for name, tensor in runs.ddp.tensors("engine/").items():
            torch.testing.assert_close(weights[name], tensor, atol=1e-5, rtol=1e-5)


def test_a_rank_holds_its_part_of_the_weights_and_no_more(runs: Runs) -> None:
    whole = runs.ddp.found()["held"]
    for rank in range(WORLD_SIZE):
        assert runs.fsdp2.found(rank=rank)["held"] == pytest.approx(whole / WORLD_SIZE, rel=0.02)


def test_before_the_first_step_the_optimizer_has_its_memory_which_no_engine_takes_then(runs: Runs) -> None:
    for strategy in (runs.ddp, runs.fsdp2):
        for rank in range(WORLD_SIZE):
            found = strategy.found(rank=rank)
            assert found["moments"] == pytest.approx(2 * found["held"], rel=0.02)


def test_a_gradient_that_is_not_finite_on_one_rank_ends_all_before_it_reaches_a_weight(runs: Runs) -> None:
    for rank in range(WORLD_SIZE):
        assert "the gradient of step 11 is not finite" in runs.fsdp2.found(rank=rank)["refusal"]


def test_a_bfloat16_run_learns_what_ddp_learns_as_far_as_bfloat16_tells(tmp_path: Path) -> None:
    runs = run_both(write_tied_model, tmp_path, Dtype.BFLOAT16)
    losses, expected = ([loss for loss, _ in o.found()["steps"]] for o in (runs.fsdp2, runs.ddp))
    assert losses == pytest.approx(expected, rel=0.01)
    assert runs.fsdp2.found()["probe"] == pytest.approx(runs.ddp.found()["probe"], abs=0.05)
    masters, weights = runs.fsdp2.tensors("model/"), runs.fsdp2.tensors("engine/")
    for name, tensor in weights.items():
        assert masters[name].dtype == torch.float32
        assert tensor.equal(masters[name].to(torch.bfloat16)), name


@pytest.mark.parametrize("write", MODELS.values(), ids=MODELS)
def test_a_policy_without_weights_is_the_one_with_weights_but_for_these(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path)
    empty, loaded = (make(tmp_path, dtype="float32") for make in (empty_policy, load_policy))
    for kind in ("named_parameters", "named_buffers"):
        tensors, others = (dict(getattr(model, kind)()) for model in (empty, loaded))
        assert {name: (t.shape, t.dtype) for name, t in tensors.items()} == {
            name: (t.shape, t.dtype) for name, t in others.items()
        }
        assert all(tensor.is_meta for tensor in tensors.values())
    assert empty.config.to_dict() == loaded.config.to_dict()


def test_layers_are_found_by_name_or_as_the_first_list_of_modules(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    model = empty_policy(tmp_path, dtype="float32")
    assert set(decoder_layers(model)) == set(model.model.layers)
    other = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=3, n_head=1, vocab_size=9, n_positions=8))
    assert set(decoder_layers(other)) == set(other.transformer.h)
    other._no_split_modules = None
    assert set(decoder_layers(other)) == set(other.transformer.h)
