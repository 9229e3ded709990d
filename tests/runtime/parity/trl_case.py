"""From TRL's names to the product's: the only translation of the cases in files of the parity format.

A file has `inputs`, which its cases share, and `cases` by name. Those with a `loss` are about losses, those
with `advantages` about advantages.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from grpo_runtime.algorithm.advantages import compute_advantages, reward_metrics
from grpo_runtime.algorithm.entropy_bonus import EntropyBonus
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.kl import KLPenalty
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.metrics import metric_values
from grpo_runtime.algorithm.types import AdvantageOptions, Denominators, LossInputs, LossOptions

BARS = {torch.float64: 1e-9, torch.float32: 1e-6}
"""How far a loss and each element of its gradient may be from TRL's."""
METRIC_BARS = {torch.float64: 1e-7, torch.float32: 1e-6}
ADVANTAGES_BAR = 1e-6
"""TRL computes advantages in float32."""

_SAME_NAME = frozenset({"loss_type", "delta", "sapo_temperature_pos", "sapo_temperature_neg"}) | {
    f"vespo_{name}" for name in ("k_pos", "k_neg", "lambda_pos", "lambda_neg")
}
_OUR_NAME = {
    "epsilon": "clip_low",
    "epsilon_low": "clip_low",
    "epsilon_high": "clip_high",
    "importance_sampling_level": "ratio_level",
    "off_policy_mask_threshold": "off_policy_threshold",
    "top_entropy_quantile": "top_entropy_quantile",
    "max_completion_length": "max_completion_length",
    "k_pos": "vespo_k_pos",
    "k_neg": "vespo_k_neg",
    "lambda_pos": "vespo_lambda_pos",
    "lambda_neg": "vespo_lambda_neg",
} | {name: name for name in _SAME_NAME}
_OF_A_SECTION = frozenset(
    {"beta", "use_bias_correction_kl", "importance_correction", "floor", "cap", "entropy_coef"}
)
_COUNTS_TOKENS = frozenset({"dapo", "cispo", "vespo"})
"""Losses that TRL divides by `num_items_in_batch`; the others by accumulation steps, and so their bonus."""
_OF_INPUTS = frozenset({"old_logps", "advantages", "has_sampling"})
_OF_DENOMINATORS = frozenset({"gradient_accumulation_steps", "num_items_in_batch"})
LOSS_NAMES = frozenset(_OUR_NAME) | _OF_A_SECTION | _OF_INPUTS | _OF_DENOMINATORS
ADVANTAGE_NAMES = frozenset(
    {"functions", "weights", "scale_rewards", "multi_objective_aggregation", "group_size", "rows"}
)
_MAX_COMPLETION_LENGTH = 8


class UnknownOptionError(Exception):
    """A case has an option that nothing here translates."""


@dataclass(frozen=True)
class Miss:
    """A number that is not TRL's."""

    what: str
    found: float
    expected: float

    def __str__(self) -> str:
        return f"{self.what} is {self.found!r}, not {self.expected!r}"


def misses(inputs: dict[str, Any], case: dict[str, Any]) -> list[Miss]:
    """Every number of a case that the product does not reproduce, in each precision. Raises
    UnknownOptionError."""
    if "loss" in case:
        return [miss for dtype in BARS for miss in loss_misses(inputs, case, dtype=dtype)]
    return advantage_misses(inputs, case)


def loss_misses(inputs: dict[str, Any], case: dict[str, Any], *, dtype: torch.dtype) -> list[Miss]:
    """Of the loss, of each element of its gradient, and of the metrics that TRL logged."""
    theirs = case["options"]
    _require_known(theirs, LOSS_NAMES)
    ours = _loss_inputs(inputs, theirs, dtype)
    output = compute_loss(ours, options=_loss_options(theirs), denominators=_denominators(ours, theirs))
    output.loss.backward()
    gradient = ours.trainer_logprobs.grad
    assert gradient is not None
    assert output.loss.dtype == dtype
    bits = str(dtype).removeprefix("torch.")
    found = [Miss(f"loss in {bits}", output.loss.item(), case["loss"])]
    found += [
        Miss(f"gradient [{row}, {column}] in {bits}", gradient[row, column].item(), value)
        for row, values in enumerate(case["grad"])
        for column, value in enumerate(values)
    ]
    values = metric_values(output.metrics)
    metrics = [
        Miss(f"{name} in {bits}", values.get(name, math.nan), value)
        for name, value in case.get("metrics", {}).items()
    ]
    return _beyond(found, BARS[dtype]) + _beyond(metrics, METRIC_BARS[dtype])


def advantage_misses(inputs: dict[str, Any], case: dict[str, Any]) -> list[Miss]:
    """Of each advantage and of the metrics of rewards."""
    theirs = case["options"]
    _require_known(theirs, ADVANTAGE_NAMES)
    columns = [[math.nan if r is None else r for r in inputs[name]] for name in theirs["functions"]]
    rewards = torch.tensor(columns, dtype=torch.float64).T[: theirs["rows"] * theirs["group_size"]]
    chosen = AdvantageOptions(group_size=theirs["group_size"], weights=tuple(theirs["weights"]))
    if "scale_rewards" in theirs:
        chosen = replace(chosen, scale_rewards=theirs["scale_rewards"])
    if "multi_objective_aggregation" in theirs:
        chosen = replace(chosen, aggregation=theirs["multi_objective_aggregation"])
    result = compute_advantages(rewards, options=chosen)
    values = reward_metrics(rewards, names=theirs["functions"], advantages=result)
    found = [
        Miss(f"advantage {index}", ours, value)
        for index, (ours, value) in enumerate(
            zip(result.advantages.tolist(), case["advantages"], strict=True)
        )
    ]
    found += [
        Miss(name, values.get(name, math.nan), value) for name, value in case.get("metrics", {}).items()
    ]
    return _beyond(found, ADVANTAGES_BAR)


def _require_known(theirs: dict[str, Any], known: frozenset[str]) -> None:
    unknown = sorted(set(theirs) - known)
    if unknown:
        raise UnknownOptionError(f"unknown option {', '.join(unknown)}")


def _loss_options(theirs: dict[str, Any]) -> LossOptions:
    given = {"max_completion_length": _MAX_COMPLETION_LENGTH}
    given |= {_OUR_NAME[name]: value for name, value in theirs.items() if name in _OUR_NAME}
    options = LossOptions(**given)
    if theirs.get("beta"):
        is_corrected = theirs.get("use_bias_correction_kl", False)
        options = replace(options, kl=KLPenalty(beta=theirs["beta"], is_bias_corrected=is_corrected))
    if coefficient := theirs.get("entropy_coef"):
        options = replace(options, entropy=EntropyBonus(coefficient=coefficient))
    if mode := theirs.get("importance_correction"):
        level, bounding = mode.split("_")
        correction = ImportanceCorrection(
            level=level, mode=bounding, floor=theirs.get("floor"), cap=theirs.get("cap")
        )
        options = replace(options, importance_correction=correction)
    return options


def _loss_inputs(inputs: dict[str, Any], theirs: dict[str, Any], dtype: torch.dtype) -> LossInputs:
    def tensor(name: str) -> torch.Tensor:
        return torch.tensor(inputs[name], dtype=dtype)

    has_sampling = bool(theirs.get("importance_correction") or theirs.get("has_sampling"))
    has_old = theirs.get("old_logps", True) is not None
    return LossInputs(
        trainer_logprobs=tensor("logp_cur").requires_grad_(),
        advantages=tensor(theirs.get("advantages", "adv_group")),
        loss_mask=tensor("mask").bool(),
        old_logprobs=tensor("logp_old") if has_old else None,
        rollout_logprobs=tensor("logp_vllm") if has_sampling else None,
        ref_logprobs=tensor("logp_ref"),
        entropies=tensor("entropy"),
    )


def _denominators(ours: LossInputs, theirs: dict[str, Any]) -> Denominators:
    """A step of n micro-batches has n times the sequences of this one. Its tokens are `num_items_in_batch`,
    a number or `4 x the mask's sum`, and without it the mask's sum whatever n is; of a loss that does not
    divide by them, n times those of this one."""
    n = theirs.get("gradient_accumulation_steps", 1)
    one = Denominators.of_mask(ours.loss_mask)
    said = theirs.get("num_items_in_batch", one.num_tokens)
    if theirs.get("loss_type", "dapo") not in _COUNTS_TOKENS:
        said = n * one.num_tokens
    if isinstance(said, str):
        times, of, what = said.partition(" x ")
        if not of or what != "the mask's sum":
            raise UnknownOptionError(f"unknown num_items_in_batch {said}")
        said = float(times) * one.num_tokens
    return Denominators(num_tokens=float(said), num_sequences=n * one.num_sequences, num_micro_batches=n)


def _beyond(found: list[Miss], bar: float) -> list[Miss]:
    # a number that is not there, or not finite, is none of TRL's
    return [miss for miss in found if not abs(miss.found - miss.expected) < bar]
