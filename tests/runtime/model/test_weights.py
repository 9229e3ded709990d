"""The weights that engines get, against the files that transformers writes."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_moe import write_tiny_moe

from grpo_api.v1alpha1.spec import Dtype
from grpo_runtime.model.load import load_policy
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.model.weights import named_weights
from grpo_runtime.trainer.policy import Policy, PolicyWeights


@pytest.mark.parametrize("write", [write_tiny_model, write_tiny_moe])
def test_engines_get_the_tensors_that_save_pretrained_writes(write: object, tmp_path: Path) -> None:
    assert callable(write)
    write(tmp_path / "model")
    policy = load_policy(tmp_path / "model", dtype="float32")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    policy.save_pretrained(tmp_path / "trained")
    wanted = load_file(tmp_path / "trained" / "model.safetensors")
    found = list(named_weights(policy))
    assert sorted(name for name, _ in found) == sorted(wanted)
    for name, weight in found:
        assert torch.equal(weight, wanted[name]), name


def test_of_experts_that_are_one_parameter_each_has_its_own_weights(tmp_path: Path) -> None:
    write_tiny_moe(tmp_path)
    policy = load_policy(tmp_path, dtype="float32")
    assert "model.layers.1.mlp.experts.gate_up_proj" in dict(policy.named_parameters())
    source = PolicyWeights(Policy(policy, temperature=1.0, dtype=Dtype.BFLOAT16))
    layout = {spec.name: spec for spec in source.layout()}
    for part in ("gate_proj", "up_proj", "down_proj"):
        spec = layout[f"model.layers.1.mlp.experts.3.{part}.weight"]
        assert (spec.shape, spec.dtype) == ((64, 64), torch.bfloat16)
    given = [(name, tuple(tensor.shape)) for name, tensor in source.tensors()]
    assert given == [(spec.name, spec.shape) for spec in source.layout()]


def test_a_model_without_experts_is_given_without_a_copy(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    policy = load_policy(tmp_path, dtype="float32")
    own = [(name, parameter.data_ptr()) for name, parameter in policy.named_parameters()]
    assert [(name, weight.data_ptr()) for name, weight in named_weights(policy)] == own
