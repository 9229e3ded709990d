"""The formulas against what a real training step of the product keeps alive, on the CPU."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from planned_job import SIZES
from tiny_families import write_tiny_family
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MambaConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from grpo_api.contract.run_config import ResolvedLora
from grpo_api.resolve import resolve_algorithm
from grpo_api.v1alpha1.spec import AlgorithmSpec, Attention, Dtype, LoraSpec, OptimizerSpec
from grpo_bench.live_tensors import LiveTensors
from grpo_runtime.algorithm.logprobs import CHUNK_LOGITS
from grpo_runtime.errors import UserError
from grpo_runtime.memory_plan.formulas import DDP, StepSizes, fsdp2, training_bytes
from grpo_runtime.memory_plan.model_sizes import model_sizes, sizes_of_folder
from grpo_runtime.model.load import MODEL_DTYPES
from grpo_runtime.model.lora import add_adapter
from grpo_runtime.model.source import LocalModel
from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.trainer.batch import make_batch
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.registry import STRATEGIES

MOST_TOO_MUCH, MOST_TOO_LITTLE = 1.25, 0.9
"""Bounds of the plan's bytes over the measured ones. Too little is worse: a job would run out of memory."""
PROMPT, COMPLETION = 8, 120
NUM_PASSES = 2
"""Micro-batches of a step: the second begins with the gradient of the first."""
_SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    # logits take more than a layer
    "qwen3": Qwen3Config(vocab_size=2048, tie_word_embeddings=True, **_SHAPE),
    # a layer takes more than logits
    "llama": LlamaConfig(vocab_size=256, tie_word_embeddings=False, **_SHAPE),
    # a layer has the weights of all experts, and a token goes through two of them
    "qwen3-moe": Qwen3MoeConfig(
        vocab_size=256, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128, **_SHAPE
    ),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    strategy: str = "DDP"
    dtype: Dtype = Dtype.FLOAT32
    lora: LoraSpec | None = None

    def __str__(self) -> str:
        words = f"{self.name}-{self.strategy}-{self.dtype}"
        return f"{words}-lora" if self.lora else words


CASES = (
    Case(name="qwen3"),
    Case(name="llama"),
    Case(name="qwen3-moe"),
    Case(name="qwen3-moe", dtype=Dtype.BFLOAT16),
    Case(name="qwen3-moe", strategy="FSDP2"),
    Case(name="qwen3", dtype=Dtype.BFLOAT16),
    Case(name="qwen3", strategy="FSDP2"),
    Case(name="qwen3", strategy="FSDP2", dtype=Dtype.BFLOAT16),
    Case(name="llama", lora=ResolvedLora(rank=8, alpha=16)),
    Case(name="qwen3", lora=ResolvedLora(rank=8, alpha=16), dtype=Dtype.BFLOAT16),
    Case(name="qwen3", lora=ResolvedLora(rank=8, alpha=16), strategy="FSDP2", dtype=Dtype.BFLOAT16),
)


def measured_and_planned(ranks: Ranks, case: Case, *, is_recomputed: bool, budget: int) -> tuple[int, int]:
    """Bytes at the peak of the second step, when AdamW has its moments."""
    spec = resolve_algorithm(AlgorithmSpec(steps=10, optimizer=OptimizerSpec(learning_rate=1e-3)))
    with LiveTensors() as live:
        model = AutoModelForCausalLM.from_config(CONFIGS[case.name]).float()
        if case.lora is not None:
            model = model.to(MODEL_DTYPES[case.dtype.value])
            add_adapter(model, case.lora, seed=0, origin=LocalModel(Path(), "", commit=None))
        policy = Policy(model, temperature=1.0, dtype=case.dtype, gradient_checkpointing=is_recomputed)
        sizes = model_sizes(model)
        made = STRATEGIES[case.strategy](
            policy, optimizer=spec.optimizer, total_steps=spec.steps, ranks=ranks
        )
        learner = Learner(made, spec, micro_batch_tokens=budget, ranks=ranks)
        one = Rollout(tuple(range(PROMPT)), (9,) * COMPLETION, (-7.0,) * COMPLETION, (), True, "fake")
        num_sequences = NUM_PASSES * budget // (PROMPT + COMPLETION)
        batch = make_batch(
            [one] * num_sequences,
            group_sizes=[num_sequences],
            advantages=torch.linspace(-1, 1, num_sequences),
            pad_id=0,
        )
        learner.update(batch, step=0)
        live.peak_bytes = 0
        learner.update(batch, step=1)
    step = StepSizes(
        num_tokens=budget,
        longest=PROMPT + COMPLETION,
        compute_bytes=2 if case.dtype is Dtype.BFLOAT16 else 4,
        is_recomputed=is_recomputed,
        spread=fsdp2(ranks.world_size) if case.strategy == "FSDP2" else DDP,
        chunk_logits=CHUNK_LOGITS,
    )
    return live.peak_bytes, training_bytes(sizes, step).peak


KEPT, RECOMPUTED = (False, 256), (True, 1024)
"""Whether activations are computed again, and how many tokens are computed at a time."""
KEPT_IN_MAKE_TEST = {"qwen3-DDP-float32", "qwen3-moe-DDP-bfloat16", "qwen3-FSDP2-bfloat16"}
KEPT_IN_MAKE_TEST |= {"llama-DDP-float32-lora", "qwen3-FSDP2-float32"}
"""Which keep their activations in `make test`, where the others compute them again: either way has every
strategy, every dtype, and an adapter."""


def ways_of(case: Case) -> Iterator[Any]:
    """One in `make test`, and the others in the matrix."""
    selected = KEPT if str(case) in KEPT_IN_MAKE_TEST else RECOMPUTED
    for is_recomputed, budget in (KEPT, RECOMPUTED, (False, 1024), (True, 256)):
        yield pytest.param(
            case,
            is_recomputed,
            budget,
            id=f"{case}-{'recomputed' if is_recomputed else 'kept'}-{budget}",
            marks=() if (is_recomputed, budget) == selected else pytest.mark.matrix,
        )


@pytest.mark.parametrize(
    ("case", "is_recomputed", "budget"), [way for case in CASES for way in ways_of(case)]
)
def test_the_plan_is_what_a_step_holds_at_its_peak(
    ranks: Ranks, case: Case, is_recomputed: bool, budget: int
) -> None:
    measured, planned = measured_and_planned(ranks, case, is_recomputed=is_recomputed, budget=budget)
    assert MOST_TOO_LITTLE * measured <= planned <= MOST_TOO_MUCH * measured


@pytest.mark.parametrize(("num_root", "num_summed"), [(50, 100), (150, 150)])
def test_fsdp2_sums_the_gradient_of_the_larger_of_layer_and_root_in_float32(
    num_root: int, num_summed: int
) -> None:
    sizes = replace(SIZES, num_layers=2, num_layer_parameters=100, num_parameters=2 * 100 + num_root)
    step = StepSizes(
        num_tokens=8, longest=8, compute_bytes=2, is_recomputed=True, spread=fsdp2(2), chunk_logits=8
    )
    # the root and two layers put together, and the gradient of a layer
    assert training_bytes(sizes, step).units == 2 * (num_root + 2 * 100) + 2 * 100 + 4 * num_summed


def test_the_meter_counts_a_view_once_and_forgets_what_is_freed() -> None:
    with LiveTensors() as live:
        kept = torch.zeros(1000)
        view = kept[10:].view(-1)
        freed = torch.ones(500)
        del freed
    assert (live.peak_bytes, live.live_bytes, len(view)) == (6000, 4000, 990)


def test_a_flash_kernel_that_this_machine_lacks_is_planned_as_sdpa(tmp_path: Path) -> None:
    write_tiny_family(tmp_path, family="llama")
    flash, sdpa = (
        sizes_of_folder(tmp_path, attention=attention)
        for attention in (Attention.FLASH_ATTENTION_2, Attention.SDPA)
    )
    assert flash == sdpa


def test_a_model_whose_sizes_are_not_named_is_refused_with_a_sentence() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1)
        )
    with pytest.raises(UserError, match="its config has no num_attention_heads"):
        model_sizes(model)


def test_sizes_are_read_from_the_configuration_alone(tmp_path: Path) -> None:
    write_tiny_family(tmp_path, family="qwen3")
    for weights in tmp_path.glob("*.safetensors"):
        weights.unlink()
    sizes = sizes_of_folder(tmp_path, attention=Attention.SDPA)
    config = json.loads((tmp_path / "config.json").read_text())
    # the head is that of the embeddings
    assert sizes.num_root_parameters == (config["vocab_size"] + 1) * config["hidden_size"]
    assert (sizes.num_layers, sizes.num_norms, sizes.has_query_norm) == (2, 2, True)
    assert (sizes.query_width, sizes.key_width) == (4 * 32, 2 * 32)
    assert not sizes.keeps_scores
