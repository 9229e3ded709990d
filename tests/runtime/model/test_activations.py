"""Gradient checkpointing changes what is kept, and nothing that is computed: no dropout, no noise."""

from collections.abc import Callable

import pytest
import torch
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from grpo_api.v1alpha1.spec import Dtype
from grpo_runtime.errors import UserError
from grpo_runtime.model.activations import recompute_activations
from grpo_runtime.trainer.policy import Policy

TOKENS = torch.tensor([[5, 9, 13, 17, 21, 3], [7, 7, 2, 40, 41, 42]])


def llama() -> PreTrainedModel:
    """Dropout is an attribute of its attention."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, attention_dropout=0.5,
        )
    )  # fmt: skip


def gpt2() -> PreTrainedModel:
    """Dropout is modules of its own."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=99, n_positions=32, n_embd=32, n_layer=2, n_head=2,
            resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5,
        )
    )  # fmt: skip


def falcon() -> PreTrainedModel:
    """The layers look the dropout up in the configuration, each time."""
    return FalconForCausalLM(
        FalconConfig(
            vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            attention_dropout=0.5, hidden_dropout=0.5,
        )
    )  # fmt: skip


def opt() -> PreTrainedModel:
    """It leaves out whole layers, too, and its layers are where that happens."""
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=99, hidden_size=32, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=32, word_embed_proj_dim=32,
            dropout=0.5, attention_dropout=0.5, layerdrop=0.5,
        )
    )  # fmt: skip


def mixtral() -> PreTrainedModel:
    """Its routers multiply what comes in by noise."""
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, num_local_experts=4, router_jitter_noise=0.5, attention_dropout=0.5,
        )
    )  # fmt: skip


MODELS = (llama, gpt2, falcon, opt, mixtral)


def policy_of(make: Callable[[], PreTrainedModel], *, gradient_checkpointing: bool) -> Policy:
    """A policy with the same random weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = make().train()
    return Policy(model, temperature=1.0, dtype=Dtype.FLOAT32, gradient_checkpointing=gradient_checkpointing)


def count_calls(policy: Policy) -> list[torch.nn.Module]:
    """A list that grows with each forward pass of the first part of the first layer."""
    calls: list[torch.nn.Module] = []
    layers = next(part for part in policy.model.modules() if isinstance(part, torch.nn.ModuleList))
    first = next(layers[0].children())
    first.register_forward_hook(lambda module, inputs, output: calls.append(module))
    return calls


@pytest.mark.parametrize("make", MODELS)
def test_logprobs_and_gradients_are_those_of_evaluation_mode_bit_for_bit(
    make: Callable[[], PreTrainedModel],
) -> None:
    kept, again = (policy_of(make, gradient_checkpointing=which) for which in (False, True))
    assert not kept.model.training
    found = []
    for policy in (kept, again):
        logprobs, _ = policy(TOKENS)
        logprobs.sum().backward()
        found.append((logprobs, {name: value.grad for name, value in policy.named_parameters()}))
    (logprobs, gradients), (same_logprobs, same_gradients) = found
    assert logprobs.equal(same_logprobs)
    assert logprobs.equal(again.logprobs_at_one(TOKENS))
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients.values())
    for name, gradient in gradients.items():
        same = same_gradients[name]
        assert (gradient is None and same is None) or gradient.equal(same), name


@pytest.mark.parametrize("make", MODELS)
def test_the_backward_pass_computes_each_layer_again(make: Callable[[], PreTrainedModel]) -> None:
    num_calls = {}
    for gradient_checkpointing in (False, True):
        policy = policy_of(make, gradient_checkpointing=gradient_checkpointing)
        calls = count_calls(policy)
        logprobs, _ = policy(TOKENS)
        assert len(calls) == 1
        logprobs.sum().backward()
        num_calls[gradient_checkpointing] = len(calls)
    assert num_calls == {False: 1, True: 2}


def test_the_configuration_that_is_saved_with_the_model_keeps_its_dropout() -> None:
    policy = policy_of(falcon, gradient_checkpointing=True)
    assert (policy.model.config.hidden_dropout, policy.model.config.attention_dropout) == (0.5, 0.5)


def test_a_model_that_cannot_do_it_names_the_field() -> None:
    model = llama().eval()
    model.supports_gradient_checkpointing = False
    with pytest.raises(UserError, match=r"Llama.* Set trainer\.gradientCheckpointing to false"):
        recompute_activations(model)
