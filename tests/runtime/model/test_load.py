"""A policy as it is loaded: with its weights, and without them on the ranks that are given them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tiny_families import FAMILIES, write_tied_model, write_tiny_family
from tiny_moe import write_tiny_moe
from transformers import GPT2Config, GPT2LMHeadModel

from grpo_runtime.model.language_model import decoder_layers
from grpo_runtime.model.load import empty_policy, load_policy
from grpo_runtime.model.tiny import write_tiny_model

EVERY_MODEL: dict[str, Callable[[Path], None]] = {
    "plain": write_tiny_model,
    "tied": write_tied_model,
    "experts": write_tiny_moe,
    **{family: partial(write_tiny_family, family=family) for family in FAMILIES},
}


@pytest.mark.parametrize("write", EVERY_MODEL.values(), ids=EVERY_MODEL)
def test_a_policy_without_weights_is_the_one_with_weights_but_for_these(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path)
    empty, loaded = (make(tmp_path, dtype="float32") for make in (empty_policy, load_policy))
    for kind in ("named_parameters", "named_buffers"):
        tensors, others = (dict(getattr(model, kind)()) for model in (empty, loaded))
        assert {name: (t.shape, t.dtype) for name, t in tensors.items()} == {
            name: (t.shape, t.dtype) for name, t in others.items()
        }
        assert all(tensor.is_meta for tensor in tensors.values())
    assert empty.config.to_dict() == loaded.config.to_dict()
    assert empty.config._attn_implementation == loaded.config._attn_implementation


def test_layers_are_found_by_name_or_as_the_first_list_of_modules(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    model = empty_policy(tmp_path, dtype="float32")
    assert set(decoder_layers(model)) == set(model.model.layers)
    other = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=3, n_head=1, vocab_size=9, n_positions=8))
    assert set(decoder_layers(other)) == set(other.transformer.h)
    other._no_split_modules = None
    assert set(decoder_layers(other)) == set(other.transformer.h)
