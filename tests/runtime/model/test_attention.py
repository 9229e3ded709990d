"""What computes attention: PyTorch's own, or what the spec names, or a sentence; never a download."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import GptOssConfig, PreTrainedModel
from transformers.utils import import_utils

from grpo_api.v1alpha1.spec import Attention
from grpo_runtime.errors import UserError
from grpo_runtime.model import load
from grpo_runtime.model.load import load_policy
from grpo_runtime.model.tiny import write_tiny_model

FLASH = (Attention.FLASH_ATTENTION_2, Attention.FLASH_ATTENTION_3)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path)
    return tmp_path


@pytest.fixture
def gpt_oss(tmp_path: Path) -> Path:
    """A model whose class has neither sdpa nor flash_attention_2; its weights are not needed."""
    GptOssConfig(num_hidden_layers=1, architectures=["GptOssForCausalLM"]).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def image_with_flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stands in for an image with the packages, on a machine with a GPU."""
    for which, (package, _) in list(load._PACKAGES.items()):
        monkeypatch.setitem(load._PACKAGES, which, (package, lambda: True))
    yield


def test_sdpa_is_meant_without_a_name(tiny: Path) -> None:
    assert load_policy(tiny, dtype="float32").config._attn_implementation == "sdpa"


def test_eager_computes_the_same(tiny: Path) -> None:
    tokens = torch.tensor([[5, 9, 13, 17, 21]])
    sdpa, eager = (
        load_policy(tiny, dtype="float32", attention=which).eval()
        for which in (Attention.SDPA, Attention.EAGER)
    )
    assert eager.config._attn_implementation == "eager"
    torch.testing.assert_close(eager(tokens).logits, sdpa(tokens).logits)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU may have the packages")
@pytest.mark.parametrize("which", FLASH)
def test_flash_without_its_package_names_the_field_and_downloads_nothing(
    tiny: Path, which: Attention, monkeypatch: pytest.MonkeyPatch
) -> None:
    # with the package `kernels`, transformers would take it from the Hub
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda *args, **kwargs: True)
    with pytest.raises(
        UserError, match=rf"model\.attention {which.value} needs a GPU and the package .*sdpa"
    ):
        load_policy(tiny, dtype="float32", attention=which)


@pytest.mark.usefixtures("image_with_flash")
def test_a_model_for_which_transformers_would_take_another_kernel_is_refused(gpt_oss: Path) -> None:
    with pytest.raises(UserError, match=r"GptOssForCausalLM has no flash_attention_2 .*model\.attention to"):
        load_policy(gpt_oss, dtype="float32", attention=Attention.FLASH_ATTENTION_2)


def test_a_model_without_sdpa_is_told_to_take_eager(gpt_oss: Path) -> None:
    with pytest.raises(UserError, match=r"has no sdpa attention.*: set model\.attention to eager"):
        load_policy(gpt_oss, dtype="float32")


@pytest.mark.usefixtures("image_with_flash")
def test_a_model_that_lists_no_kernels_takes_the_package_of_the_image(tiny: Path) -> None:
    load.require_attention(Attention.FLASH_ATTENTION_2, folder=tiny)


@pytest.mark.usefixtures("image_with_flash")
def test_a_model_is_checked_without_flash_which_needs_a_gpu_and_computes_with_it_from_then_on(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        load, "require_same_logprobs", lambda model: seen.append(model.config._attn_implementation)
    )
    # stands in for transformers, which has no such kernel here
    monkeypatch.setattr(PreTrainedModel, "set_attn_implementation", lambda self, name: seen.append(name))
    load_policy(tiny, dtype="float32", attention=Attention.FLASH_ATTENTION_2)
    assert seen == ["eager", "flash_attention_2"]
