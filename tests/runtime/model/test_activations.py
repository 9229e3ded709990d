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

from grpo_runtime.errors import UserError
from grpo_runtime.model.activations import recompute_activations

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


def model_of(make: Callable[[], PreTrainedModel], *, is_recomputed: bool) -> PreTrainedModel:
    """A model in evaluation mode, with the same random weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = make().train().eval()
    if is_recomputed:
        recompute_activations(model)
    return model


def logprobs(model: PreTrainedModel) -> torch.Tensor:
    return model(input_ids=TOKENS, use_cache=False).logits.log_softmax(-1)


def count_calls(model: PreTrainedModel) -> list[torch.nn.Module]:
    """A list that grows with each forward pass of the first part of the first layer."""
    calls: list[torch.nn.Module] = []
    layers = next(part for part in model.modules() if isinstance(part, torch.nn.ModuleList))
    first = next(layers[0].children())
    first.register_forward_hook(lambda module, inputs, output: calls.append(module))
    return calls


@pytest.mark.parametrize("make", MODELS)
def test_logprobs_and_gradients_are_those_of_evaluation_mode_bit_for_bit(
    make: Callable[[], PreTrainedModel],
) -> None:
    kept, again = (model_of(make, is_recomputed=which) for which in (False, True))
    expected, found = logprobs(kept), logprobs(again)
    assert found.equal(expected)
    with torch.no_grad():
        assert logprobs(again).equal(expected)
    for computed in (expected, found):
        # not their sum over the vocabulary, whose gradient is nearly 0
        computed[..., 7].sum().backward()
    gradients = {name: parameter.grad for name, parameter in again.named_parameters()}
    for name, parameter in kept.named_parameters():
        assert (parameter.grad is None) == (gradients[name] is None), name
        assert parameter.grad is None or parameter.grad.equal(gradients[name]), name
    assert (
        sum(parameter.grad.abs().sum() for parameter in kept.parameters() if parameter.grad is not None) > 1
    )


def test_in_bfloat16_the_second_time_gives_the_same_bits_as_the_first() -> None:
    gradients = []
    for is_recomputed in (False, True):
        model = model_of(llama, is_recomputed=is_recomputed)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            computed = logprobs(model)
        computed[..., 7].sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(kept.equal(again) for kept, again in zip(*gradients, strict=True))


@pytest.mark.parametrize("make", MODELS)
def test_the_backward_pass_computes_each_layer_again(make: Callable[[], PreTrainedModel]) -> None:
    num_calls = {}
    for is_recomputed in (False, True):
        model = model_of(make, is_recomputed=is_recomputed)
        calls = count_calls(model)
        computed = logprobs(model)
        assert len(calls) == 1
        computed.sum().backward()
        num_calls[is_recomputed] = len(calls)
    assert num_calls == {False: 1, True: 2}


@pytest.mark.parametrize("make", MODELS)
def test_training_mode_as_a_whole_would_compute_something_else(make: Callable[[], PreTrainedModel]) -> None:
    """So that the tests above are about models for which it matters."""
    model = model_of(make, is_recomputed=False)
    assert not logprobs(model.train()).equal(logprobs(model.eval()))


def test_the_configuration_that_is_saved_with_the_model_keeps_its_dropout() -> None:
    config = model_of(falcon, is_recomputed=True).config
    assert (config.hidden_dropout, config.attention_dropout) == (0.5, 0.5)


def test_a_model_that_cannot_do_it_names_the_field() -> None:
    model = llama().eval()
    model.supports_gradient_checkpointing = False
    with pytest.raises(UserError, match=r"Llama.* Set trainer\.gradientCheckpointing to false"):
        recompute_activations(model)
