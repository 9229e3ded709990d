"""Sequences that share a row. Flash kernels need a GPU; transformers' other kernels keep the sequences apart
too, by a mask, and are computed here."""

from pathlib import Path

import pytest
import torch
from tiny_families import FAMILIES, write_tiny_family
from transformers import GPT2Config, GPT2LMHeadModel, Lfm2Config, PreTrainedModel, Qwen3NextConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from grpo_api.v1alpha1.spec import Dtype
from grpo_runtime.model.load import load_policy
from grpo_runtime.model.packing import can_pack, pack
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy

TOKENS = torch.arange(4 * 20).reshape(4, 20) % 60 + 6
MASK = torch.zeros((4, 19), dtype=torch.bool)
MASK[0, 3:19] = True
MASK[1, 5:8] = True
# nothing of the third is scored
MASK[3, [2, 11]] = True


def test_a_row_has_the_tokens_that_reach_a_scored_one_and_no_others() -> None:
    row = pack(TOKENS, MASK)
    lengths = [19, 8, 12]
    assert row.token_ids.tolist() == [[*TOKENS[0, :19], *TOKENS[1, :8], *TOKENS[3, :12]]]
    assert row.position_ids.tolist() == [[place for length in lengths for place in range(length)]]
    assert row.scored.tolist() == [*range(3, 19), *(19 + place for place in (5, 6, 7)), 27 + 2, 27 + 11]


def test_a_micro_batch_of_which_nothing_is_scored_is_one_token() -> None:
    row = pack(TOKENS, torch.zeros_like(MASK))
    assert (row.token_ids.tolist(), row.position_ids.tolist(), row.scored.tolist()) == ([[6]], [[0]], [])


def scores_and_gradient(model: PreTrainedModel, *, is_packed: bool) -> torch.Tensor:
    """Logprobs, entropies and the gradient of every trained parameter, as one vector."""
    policy = Policy(model, temperature=0.7, dtype=Dtype.FLOAT32, is_packed=is_packed)
    logprobs, entropies = policy(TOKENS, MASK)
    weights = torch.linspace(1, 2, logprobs.numel(), dtype=logprobs.dtype).reshape(logprobs.shape)
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    gradient = torch.autograd.grad((logprobs * weights).sum(), trained)
    return torch.cat([logprobs.flatten(), entropies.flatten(), *(part.flatten() for part in gradient)])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_scores_and_learns_in_one_row_as_in_a_rectangle(family: str, tmp_path: Path) -> None:
    write_tiny_family(tmp_path, family=family)
    model = load_policy(tmp_path, dtype=MASTER_DTYPE).double()
    # the faster way to compute experts has no float64
    model.set_experts_implementation("eager")
    found, expected = (scores_and_gradient(model, is_packed=is_packed) for is_packed in (True, False))
    # the formulas of a family stay in float32 where it says so
    assert (found - expected).norm() <= 1e-6 * expected.norm()
    assert not torch.equal(found, expected), "it was not computed in another way"


def test_positions_that_are_learned_begin_anew_too() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=2, n_head=1, vocab_size=99, n_positions=20))
    found, expected = (scores_and_gradient(model.eval(), is_packed=packed) for packed in (True, False))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def with_flash(model: PreTrainedModel) -> PreTrainedModel:
    """A model that says that it computes with a flash kernel, which cannot be set without a GPU."""
    model.config._attn_implementation_internal = "flash_attention_2"
    return model


def test_only_flash_kernels_and_layers_of_attention_share_a_row(tmp_path: Path) -> None:
    write_tiny_family(tmp_path, family="gemma3")
    assert not can_pack(load_policy(tmp_path, dtype=MASTER_DTYPE))
    assert can_pack(with_flash(load_policy(tmp_path, dtype=MASTER_DTYPE)))
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "vocab_size": 32}
    mixed = ["conv", "full_attention"] * 2
    for config in (Qwen3NextConfig(**sizes), Lfm2Config(**sizes, layer_types=mixed)):
        with torch.device("meta"):
            assert not can_pack(with_flash(AutoModelForCausalLM.from_config(config)))
