"""The policy as the loss, the engines and the probe see it."""

from pathlib import Path

import pytest
import torch
from pod_builder import run_config
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_api.v1alpha1.spec import Dtype, OptimizerSpec
from grpo_runtime.model.load import load_policy
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.probe import NUM_PROBE_TOKENS, make_probe
from grpo_runtime.trainer.strategy.ddp import DDPStrategy

TOKENS = torch.tensor([[5, 9, 13, 17, 21]])


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """One that is sampled at temperature 0.5, with weights that make it prefer some tokens."""
    write_tiny_model(tmp_path)
    model = load_policy(tmp_path, dtype=MASTER_DTYPE)
    with torch.no_grad():
        model.lm_head.weight.mul_(20.0)
    return Policy(model, temperature=0.5, dtype=Dtype.FLOAT32)


def logprobs(policy: Policy, tokens: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """By transformers and a plain softmax."""
    with torch.no_grad():
        scores = (policy.model(tokens).logits[:, :-1] / temperature).log_softmax(-1)
    return scores.gather(-1, tokens[:, 1:, None])[..., 0]


def test_the_loss_sees_the_probabilities_that_the_tokens_were_sampled_with(policy: Policy) -> None:
    found, _ = policy(TOKENS)
    torch.testing.assert_close(found, logprobs(policy, TOKENS, temperature=0.5))
    assert not torch.allclose(found, logprobs(policy, TOKENS, temperature=1.0), atol=0.1)


def test_a_probe_is_what_an_engine_reports_for_a_prompt_which_no_temperature_changes(
    policy: Policy, ranks: Ranks
) -> None:
    strategy = DDPStrategy(policy, optimizer=OptimizerSpec(), total_steps=1, ranks=ranks)
    run = run_config(model={"source": "builtin://tiny", "dtype": "bfloat16"})
    probe = make_probe(strategy, run)
    assert len(probe.token_ids) == NUM_PROBE_TOKENS
    expected = logprobs(policy, torch.tensor([probe.token_ids]), temperature=1.0)[0].tolist()
    assert list(probe.logprobs) == pytest.approx(expected, abs=1e-5)
    assert probe.tolerance == 0.1
    assert make_probe(strategy, run_config()).tolerance == 1e-4


def test_a_model_with_dropout_computes_the_same_every_time() -> None:
    config = Qwen2Config(
        vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, attention_dropout=0.5, attn_implementation="sdpa",
    )  # fmt: skip
    policy = Policy(Qwen2ForCausalLM(config).train(), temperature=1.0, dtype=Dtype.FLOAT32)
    assert policy(TOKENS)[0].equal(policy(TOKENS)[0])


@pytest.mark.parametrize("gradient_checkpointing", [True, False])
def test_only_with_gradient_checkpointing_activations_are_recomputed(
    tmp_path: Path, gradient_checkpointing: bool
) -> None:
    write_tiny_model(tmp_path)
    policy = Policy(
        load_policy(tmp_path, dtype=MASTER_DTYPE),
        temperature=1.0,
        dtype=Dtype.FLOAT32,
        gradient_checkpointing=gradient_checkpointing,
    )
    assert policy.model.is_gradient_checkpointing is gradient_checkpointing
    assert policy.model.model.layers[0].training is gradient_checkpointing
    assert not policy.model.model.layers[0].self_attn.training
