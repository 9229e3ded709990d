"""The policy as the loss, the engines and the probe see it."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dense_logprobs import dense_logprobs
from pod_builder import run_config
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_api.v1alpha1.spec import Dtype, OptimizerSpec
from grpo_runtime.model.load import load_policy
from grpo_runtime.model.tiny import char_tokenizer, write_tiny_model
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.strategy.ddp import DDPStrategy
from grpo_runtime.trainer.weight_checks import NUM_PROBE_TOKENS, TEXT, make_probe, probe_tokens

TOKENS = torch.tensor([[5, 9, 13, 17, 21]])
TOKENIZER = char_tokenizer(max_length_tokens=256)
ALL = torch.ones((1, 4), dtype=torch.bool)


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """One that is sampled at temperature 0.5, with weights that make it prefer some tokens."""
    write_tiny_model(tmp_path)
    model = load_policy(tmp_path, dtype=MASTER_DTYPE)
    with torch.no_grad():
        model.lm_head.weight.mul_(10.0)
    return Policy(model, temperature=0.5, dtype=Dtype.FLOAT32)


def a_policy(
    *, is_tied: bool, dtype: torch.dtype = torch.float32, run_dtype: Dtype = Dtype.FLOAT32
) -> Policy:
    """A random one, sampled at temperature 0.5, whose logits differ by several nats."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, tie_word_embeddings=is_tied,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).to(dtype)
    with torch.no_grad():
        model.lm_head.weight.mul_(10.0)
    return Policy(model, temperature=0.5, dtype=run_dtype)


def gradient_of(loss: torch.Tensor, policy: Policy) -> torch.Tensor:
    """Of every parameter, as one vector; a parameter that has no part in the loss is an error."""
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(policy.parameters()))])


def logprobs(policy: Policy, tokens: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """By transformers and a plain softmax."""
    with torch.no_grad():
        scores = (policy.model(tokens).logits[:, :-1] / temperature).log_softmax(-1)
    return scores.gather(-1, tokens[:, 1:, None])[..., 0]


def test_the_loss_sees_the_probabilities_that_the_tokens_were_sampled_with(policy: Policy) -> None:
    found, _ = policy(TOKENS, ALL)
    torch.testing.assert_close(found, logprobs(policy, TOKENS, temperature=0.5))
    assert not torch.allclose(found, logprobs(policy, TOKENS, temperature=1.0), atol=0.1)


MASKS = {
    "everywhere": [[True] * 4] * 3,
    "some tokens, and an empty row": [[False, True, True, False], [False] * 4, [False, False, True, True]],
    "one token": [[False] * 4, [False] * 4, [True, False, False, False]],
    "nowhere": [[False] * 4] * 3,
}
IDS = torch.tensor([[5, 9, 13, 17, 21], [4, 4, 8, 8, 1], [60, 3, 20, 40, 0]])
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-6}


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_under_the_mask_values_and_gradients_are_those_of_all_logits_and_0_elsewhere(
    dtype: torch.dtype, mask: list[list[bool]], is_tied: bool
) -> None:
    policy = a_policy(is_tied=is_tied, dtype=dtype)
    where = torch.tensor(mask)
    found = policy(IDS, where)
    dense = dense_logprobs(policy.model(IDS).logits[:, :-1], token_ids=IDS[:, 1:], temperature=0.5)
    expected = [torch.where(where, values, 0.0) for values in dense]
    gradients = [gradient_of(logprobs.square().sum(), policy) for logprobs in (found[0], expected[0])]
    for ours, theirs in (*zip(found, expected, strict=True), gradients):
        assert (ours - theirs).norm() <= TOLERANCES[dtype] * theirs.norm()
    assert all((values[~where] == 0).all() for values in found)


def test_in_bfloat16_values_and_gradients_are_near_those_of_all_logits() -> None:
    policy = a_policy(is_tied=True, run_dtype=Dtype.BFLOAT16)
    where = torch.tensor(MASKS["some tokens, and an empty row"])
    found, _ = policy(IDS, where)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = policy.model(IDS).logits[:, :-1]
    assert logits.dtype == torch.bfloat16
    dense, _ = dense_logprobs(logits, token_ids=IDS[:, 1:], temperature=0.5)
    expected = torch.where(where, dense, 0.0)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    ours, theirs = (gradient_of(logprobs.sum(), policy) for logprobs in (found, expected))
    assert ours.dtype == torch.float32
    assert (ours - theirs).norm() <= 0.01 * theirs.norm()


def test_the_same_batch_gives_the_same_bits() -> None:
    where = torch.tensor(MASKS["some tokens, and an empty row"])

    def bits() -> list[torch.Tensor]:
        policy = a_policy(is_tied=True)
        found = policy(IDS, where)
        return [*found, gradient_of(found[0].sum(), policy)]

    assert all(first.equal(second) for first, second in zip(bits(), bits(), strict=True))


def test_a_probe_is_what_an_engine_reports_for_a_prompt_which_no_temperature_changes(
    policy: Policy, ranks: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("transformers").addHandler(caplog.handler)  # which hands nothing on to the root
    strategy = DDPStrategy(policy, optimizer=OptimizerSpec(), total_steps=1, ranks=ranks)
    run = run_config(model={"source": "builtin://tiny", "dtype": "bfloat16"}, engine={"maxModelLen": 256})
    probe = make_probe(strategy, run, tokenizer=TOKENIZER)
    assert len(probe.token_ids) == NUM_PROBE_TOKENS[Dtype.BFLOAT16] >= 100
    assert TOKENIZER.decode(probe.token_ids[:20]) == TEXT[:20]
    logging.getLogger("transformers").removeHandler(caplog.handler)
    assert len(TEXT) > TOKENIZER.model_max_length and caplog.messages == []
    expected = logprobs(policy, torch.tensor([probe.token_ids]), temperature=1.0)[0].tolist()
    assert list(probe.logprobs) == pytest.approx(expected, abs=1e-5)
    assert probe.tolerance == 0.1
    assert make_probe(strategy, run_config(), tokenizer=TOKENIZER).tolerance == 1e-4


def test_a_probe_is_filled_with_tokens_of_the_whole_vocabulary_where_its_text_is_short() -> None:
    short: Any = SimpleNamespace(encode=lambda text, **options: [7] * 20)

    def probe(max_model_len: int) -> tuple[int, ...]:
        return probe_tokens(short, dtype=Dtype.BFLOAT16, vocab_size=1000, max_model_len=max_model_len)

    assert probe(16) == (7,) * 15
    assert len(probe(4096)) == NUM_PROBE_TOKENS[Dtype.BFLOAT16]
    assert probe(4096) == probe(4096)
    assert max(probe(4096)) > 900


def test_a_model_with_dropout_computes_the_same_every_time() -> None:
    config = Qwen2Config(
        vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, attention_dropout=0.5, attn_implementation="sdpa",
    )  # fmt: skip
    policy = Policy(Qwen2ForCausalLM(config).train(), temperature=1.0, dtype=Dtype.FLOAT32)
    assert policy(TOKENS, ALL)[0].equal(policy(TOKENS, ALL)[0])


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
