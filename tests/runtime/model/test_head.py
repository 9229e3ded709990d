"""The head of each family gives the logprobs that the model's own forward pass gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from dense_logprobs import dense_logprobs
from transformers import PreTrainedModel

from grpo_runtime.errors import UserError
from grpo_runtime.model.head import (
    ScoringHead,
    install_scoring_head,
    last_hidden_states,
    require_same_logprobs,
)
from grpo_runtime.model.load import load_policy

V = 67
SHAPE: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen2": {},
    "Qwen3": {"tie_word_embeddings": True},
    "Llama": {"tie_word_embeddings": True},
    "Phi": {},  # its head has a bias
    "Gemma2": {"final_logit_softcapping": 2.0},
    "Gemma3": {"final_logit_softcapping": None, "architecture": "Gemma3ForCausalLM"},
    "Cohere": {"logit_scale": 0.25},
    "Granite": {"logits_scaling": 8.0},
}
TOKENS = torch.tensor([[5, 9, 13, 17, 21, 25, 4], [8, 7, 6, 5, 4, 3, 2]])


def tiny(family: str, **options: Any) -> PreTrainedModel:
    """A random model whose logits differ by several nats."""
    torch.manual_seed(0)
    settings = SHAPE | FAMILIES.get(family, {}) | options
    settings.pop("architecture", None)
    config_class = getattr(transformers, f"{family}TextConfig", None) or getattr(
        transformers, f"{family}Config"
    )
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(config_class(**settings)).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_of_a_family_are_those_of_its_own_logits(family: str) -> None:
    model = tiny(family)
    own = model(TOKENS).logits[:, :-1]
    expected = dense_logprobs(own, token_ids=TOKENS[:, 1:], temperature=0.7)
    head = install_scoring_head(model)
    hidden = last_hidden_states(model, TOKENS)[:, :-1]
    found = head(hidden.flatten(0, 1), TOKENS[:, 1:].flatten(), 0.7)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs.flatten(), atol=1e-5, rtol=1e-5)
    require_same_logprobs(model)
    assert model(TOKENS).logits[:, :-1].equal(own)


def test_a_tied_head_stays_tied_and_no_parameter_gets_another_name() -> None:
    model = tiny("Llama")
    names = [name for name, _ in model.named_parameters()]
    head = install_scoring_head(model)
    assert head.weight is model.get_input_embeddings().weight
    assert [name for name, _ in model.named_parameters()] == names
    assert install_scoring_head(model) is head


@pytest.mark.parametrize(
    ("family", "options"), [("Cohere", {"logit_scale": 0.25}), ("Gemma2", {"final_logit_softcapping": 2.0})]
)
def test_a_family_that_makes_other_logits_is_refused_by_name(family: str, options: dict[str, Any]) -> None:
    model = tiny(family, **options)
    head = install_scoring_head(model)
    head._scale, head._softcap = 1.0, None  # as if the option were not known here
    with pytest.raises(UserError, match=f"{family}ForCausalLM cannot be trained"):
        require_same_logprobs(model)


def test_a_model_that_has_more_between_hidden_states_and_logits_is_refused_when_it_is_loaded(
    tmp_path: Path,
) -> None:
    config = transformers.ModernBertDecoderConfig(**SHAPE, bos_token_id=1, eos_token_id=2)
    transformers.ModernBertDecoderForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="ModernBertDecoderForCausalLM cannot be trained"):
        load_policy(tmp_path, dtype="float32")


def test_a_model_without_a_linear_head_is_refused() -> None:
    model = tiny("Qwen2")
    model.lm_head = torch.nn.Identity()
    with pytest.raises(UserError, match="Qwen2ForCausalLM cannot be trained: it has no linear head"):
        install_scoring_head(model)


def test_a_head_is_installed_before_there_are_weights() -> None:
    with torch.device("meta"):
        model = tiny("Qwen2")
    assert isinstance(install_scoring_head(model), ScoringHead)
    assert model.lm_head.weight.is_meta
