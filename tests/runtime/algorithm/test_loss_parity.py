"""Losses against TRL 1.16.0: the loss, every element of its gradient, and the metrics it logged.

fixtures/losses.json are published numbers; fixtures/losses_more.json were made with TRL's own code on the
same inputs for the options that the first file does not cover.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.kl import KLPenalty
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.metrics import metric_values
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions

FIXTURES = Path(__file__).parent / "fixtures"
PUBLISHED = json.loads((FIXTURES / "losses.json").read_text())
CASES = PUBLISHED["cases"] | json.loads((FIXTURES / "losses_more.json").read_text())["cases"]
SAME_NAME = {"sapo_temperature_pos", "sapo_temperature_neg", "loss_type", "delta", "top_entropy_quantile"}
OUR_NAME = {
    "epsilon_low": "clip_low",
    "epsilon_high": "clip_high",
    "importance_sampling_level": "ratio_level",
    "off_policy_mask_threshold": "off_policy_threshold",
    "k_pos": "vespo_k_pos",
    "k_neg": "vespo_k_neg",
    "lambda_pos": "vespo_lambda_pos",
    "lambda_neg": "vespo_lambda_neg",
}
TRANSLATED_BELOW = {
    "beta",
    "use_bias_correction_kl",
    "importance_correction",
    "floor",
    "cap",
    "old_logps",
    "advantages",
    "has_sampling",
    "gradient_accumulation_steps",
    "num_items_in_batch",
}


def tensor(name: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(PUBLISHED["inputs"][name], dtype=dtype)


def our_options(theirs: dict[str, Any]) -> LossOptions:
    unknown = set(theirs) - SAME_NAME - set(OUR_NAME) - TRANSLATED_BELOW
    assert not unknown, f"the test does not translate {unknown}"
    fields = {OUR_NAME.get(name, name): theirs[name] for name in theirs if name in SAME_NAME | set(OUR_NAME)}
    if theirs.get("beta"):
        is_corrected = theirs.get("use_bias_correction_kl", False)
        fields["kl"] = KLPenalty(beta=theirs["beta"], is_bias_corrected=is_corrected)
    if mode := theirs.get("importance_correction"):
        level, bounding = mode.split("_")
        fields["importance_correction"] = ImportanceCorrection(
            level=level, mode=bounding, floor=theirs.get("floor"), cap=theirs.get("cap")
        )
    return LossOptions(max_completion_length=8, **fields)


def our_inputs(theirs: dict[str, Any], dtype: torch.dtype) -> LossInputs:
    has_sampling = "importance_correction" in theirs or "has_sampling" in theirs
    return LossInputs(
        trainer_logprobs=tensor("logp_cur", dtype).requires_grad_(),
        advantages=tensor(theirs.get("advantages", "adv_group"), dtype),
        loss_mask=tensor("mask", dtype).bool(),
        old_logprobs=None if "old_logps" in theirs else tensor("logp_old", dtype),
        rollout_logprobs=tensor("logp_vllm", dtype) if has_sampling else None,
        ref_logprobs=tensor("logp_ref", dtype),
        entropies=tensor("entropy", dtype),
    )


def our_denominators(theirs: dict[str, Any]) -> Denominators:
    """A step of n micro-batches like this one has n times its tokens and sequences."""
    n = theirs.get("gradient_accumulation_steps", 1)
    one = Denominators.of_mask(tensor("mask", torch.float64).bool())
    return Denominators(
        num_tokens=n * one.num_tokens, num_sequences=n * one.num_sequences, num_micro_batches=n
    )


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-9), (torch.float32, 1e-6)])
@pytest.mark.parametrize("case", CASES)
def test_loss_gradient_and_metrics_are_those_of_trl(case: str, dtype: torch.dtype, bar: float) -> None:
    expected = CASES[case]
    inputs = our_inputs(expected["options"], dtype)
    output = compute_loss(
        inputs, options=our_options(expected["options"]), denominators=our_denominators(expected["options"])
    )
    output.loss.backward()

    assert output.loss.dtype == dtype
    assert abs(output.loss.item() - expected["loss"]) < bar
    error = (inputs.trainer_logprobs.grad - torch.tensor(expected["grad"], dtype=dtype)).abs().max()
    assert error < bar
    values = metric_values(output.metrics)
    for name, value in expected["metrics"].items():
        assert values[name] == pytest.approx(value, abs=1e-7 if dtype == torch.float64 else 1e-6), name


def test_the_published_cases_are_all_here() -> None:
    assert len(PUBLISHED["cases"]) == 16
    assert len(CASES) == 42
