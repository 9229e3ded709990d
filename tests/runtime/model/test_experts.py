"""Mixtures of experts: what the trainer computes of their routers, and under which names they are kept."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tiny_families import write_tiny_family
from transformers import AutoModelForCausalLM
from whole_checkpoint import write_checkpoint

from grpo_api.v1alpha1.spec import Dtype, OptimizerSpec
from grpo_bench.live_tensors import LiveTensors
from grpo_runtime.model.load import load_policy, load_tokenizer, saved_parameters
from grpo_runtime.model.source import LocalModel
from grpo_runtime.trainer.checkpoint.contents import RunState, read_training_state
from grpo_runtime.trainer.checkpoint.model_export import export_model, whole_model
from grpo_runtime.trainer.checkpoint.shard import CheckpointCopy, write_shard
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.strategy.ddp import DDPStrategy

TOKENS = torch.arange(6, 246).reshape(6, 40)
EVERYWHERE = torch.ones((6, 39), dtype=torch.bool)
FAMILIES = {
    "qwen3-moe": "model.layers.1.mlp.experts.3.down_proj.weight",
    "mixtral": "model.layers.1.block_sparse_moe.experts.3.w2.weight",
}
"""Each with the name of one matrix of one expert in its files."""


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts") / request.param
    write_tiny_family(folder, family=request.param)
    return folder


def logprobs_and_gradients(folder: Path, *, tells_routers: bool = False) -> dict[str, torch.Tensor]:
    model = load_policy(folder, dtype=MASTER_DTYPE)
    model.config.output_router_logits = tells_routers
    policy = Policy(model, temperature=0.7, dtype=Dtype.FLOAT32)
    logprobs, _ = policy(TOKENS, EVERYWHERE)
    logprobs.sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"logprobs": logprobs.detach()} | {n: g for n, g in gradients.items() if g is not None}


def test_routers_and_experts_compute_the_same_bits_again_on_several_threads(folder: Path) -> None:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first, *others = (logprobs_and_gradients(folder) for _ in range(3))
    finally:
        torch.set_num_threads(num_threads)
    assert any("gate.weight" in name for name in first)
    for other in others:
        assert all(tensor.equal(other[name]) for name, tensor in first.items())


def test_a_model_that_would_add_a_loss_of_its_routers_is_trained_without_it(folder: Path) -> None:
    """The policy gradient is that of the rewards alone, as in TRL; a term that evens out the experts would
    pull the policy away from what was sampled."""
    plain, with_routers = (logprobs_and_gradients(folder, tells_routers=told) for told in (False, True))
    assert plain.keys() == with_routers.keys()
    assert all(tensor.equal(with_routers[name]) for name, tensor in plain.items())


def test_checkpoint_and_export_hold_the_names_of_the_familys_files_and_give_back_the_policys(
    folder: Path, ranks: Ranks, tmp_path: Path
) -> None:
    policy = Policy(load_policy(folder, dtype=MASTER_DTYPE), temperature=1.0, dtype=Dtype.FLOAT32)
    strategy = DDPStrategy(policy, optimizer=OptimizerSpec(), total_steps=2, ranks=ranks)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.25)
    tokenizer = load_tokenizer(folder)
    write_checkpoint(
        tmp_path, model=policy.model, strategy=strategy, tokenizer=tokenizer, state=RunState(step=1)
    )
    origin = LocalModel(folder, f"file://{folder}", commit=None)
    export_model(
        tmp_path / "exported",
        model=policy.model,
        weights=whole_model(strategy),
        tokenizer=tokenizer,
        origin=origin,
    )
    own = dict(policy.model.named_parameters())
    of_one_expert = FAMILIES[folder.name]
    for saved in (tmp_path / "model", tmp_path / "exported"):
        names = names_of(saved)
        assert names == names_of(folder)
        assert of_one_expert in names
        found = saved_parameters(saved, dtype=MASTER_DTYPE)
        assert found.keys() == own.keys()
        assert all(tensor.equal(own[name]) for name, tensor in found.items())
        # by the library that others load it with
        plain = AutoModelForCausalLM.from_pretrained(saved, local_files_only=True)
        assert all(parameter.equal(own[name]) for name, parameter in plain.named_parameters())
    state = read_training_state(tmp_path)
    assert state.model.keys() == own.keys()
    # one moment for all experts of a layer: the optimizer's file has the names of the parameters
    assert f"exp_avg/{_fused(own)}" in state.optimizer


def test_the_experts_of_one_layer_at_a_time_are_copied_for_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    model = load_policy(folder, dtype=MASTER_DTYPE)
    copied = {name: parameter.detach() for name, parameter in model.named_parameters()}
    of_layers = [name for name in copied if "experts" in name]
    num_layers = model.config.num_hidden_layers
    with LiveTensors(known=copied.values()) as live:
        write_shard(tmp_path, CheckpointCopy(copied, {}, {}), model=model, rank=0, num_writers=1)
    assert num_layers == 2
    assert 0 < live.peak_bytes <= sum(copied[name].nbytes for name in of_layers) / num_layers


def names_of(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return set(file.keys())


def _fused(parameters: dict[str, torch.nn.Parameter]) -> str:
    [name] = [name for name in parameters if name.endswith("layers.1.mlp.experts.gate_up_proj")]
    return name
