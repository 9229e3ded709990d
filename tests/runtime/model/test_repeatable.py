"""Which kernels torch is told to choose while a policy is trained. What they compute: trainer/test_gpu.py."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from grpo_bench.random_model import random_model
from grpo_gpu.shapes import SHAPES
from grpo_runtime.model.activations import recompute_activations
from grpo_runtime.model.repeatable import choose_repeatable_kernels, repeatable_sums

BESIDE_ATTENTION = {"aten.transpose.int", "aten.clone.default", "aten.detach.default", "aten.view.default"}
"""Copies and views, in the same call of transformers."""


class Choices(TorchDispatchMode):
    """The operators that torch refuses if they have no repeatable kernel, and the others."""

    def __init__(self) -> None:
        super().__init__()
        self.may_be_refused: list[str] = []
        self.others: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert torch.are_deterministic_algorithms_enabled()
        only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
        (self.others if only_warns else self.may_be_refused).append(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def choices_of_passes(*, is_recomputed: bool) -> Iterator[Choices]:
    model = random_model(SHAPES["tiny"], vocabulary=128, num_kv_heads=2)
    if is_recomputed:
        recompute_activations(model)
    with Choices() as choices:
        model(input_ids=torch.arange(8)[None], use_cache=False).logits.sum().backward()
    yield choices


@pytest.mark.parametrize(("is_recomputed", "num_passes"), [(False, 2), (True, 3)])
def test_only_attention_may_be_refused_in_both_passes(is_recomputed: bool, num_passes: int) -> None:
    with repeatable_sums(), choices_of_passes(is_recomputed=is_recomputed) as choices:
        of_attention = [name for name in choices.may_be_refused if name not in BESIDE_ATTENTION]
        assert len(of_attention) == SHAPES["tiny"].num_layers * num_passes
        assert all("scaled_dot_product" in name for name in of_attention)
        assert len(choices.others) > 100
        assert not any("scaled_dot_product" in name for name in choices.others)


def test_what_is_computed_afterwards_is_as_before_also_when_training_fails() -> None:
    attention = ALL_ATTENTION_FUNCTIONS["sdpa"]
    with pytest.raises(ValueError, match="fails"), repeatable_sums():
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is not attention
        raise ValueError("training fails")
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is attention
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_a_user_has_set_for_libraries_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.delenv("FLASH_ATTENTION_DETERMINISTIC", raising=False)
    choose_repeatable_kernels()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ.pop("FLASH_ATTENTION_DETERMINISTIC") == "1"
