"""The names that engines and files know the weights by are the same on every rank, though only rank 0 has
loaded the weights."""

from pathlib import Path

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from grpo_runtime.model.load import empty_policy, load_policy
from grpo_runtime.model.weights import named_weights, weight_shapes

_INSIDE = "model.language_model."
"""What the names begin with in the files of a Qwen3.5: the language model is a part of the whole there."""


def write_tiny_qwen(folder: Path, *, is_part: bool) -> None:
    """The language model of a tiny Qwen3.5, whose files call it a part of a larger model, or the whole."""
    config = Qwen3_5TextConfig(
        vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=32, layer_types=["full_attention"], tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen3_5ForCausalLM(config).save_pretrained(folder)
    if is_part:
        path = folder / "model.safetensors"
        weights = {
            name.replace("model.", _INSIDE, 1) if name.startswith("model.") else name: tensor
            for name, tensor in load_file(path).items()
        }
        save_file(weights, path, metadata={"format": "pt"})


@pytest.mark.parametrize("is_part", [True, False])
def test_a_rank_without_weights_names_them_as_the_files_do(tmp_path: Path, is_part: bool) -> None:
    write_tiny_qwen(tmp_path, is_part=is_part)
    loaded, empty = (make(tmp_path, dtype="float32") for make in (load_policy, empty_policy))
    names = [name for name, _ in named_weights(loaded)]
    assert set(names) == load_file(tmp_path / "model.safetensors").keys()
    assert any(name.startswith(_INSIDE) for name in names) is is_part
    assert [name for name, _ in weight_shapes(empty)] == names
    assert [name for name, _ in named_weights(empty)] == names


def test_a_rank_without_weights_reads_the_names_from_the_index_of_files_in_parts(tmp_path: Path) -> None:
    write_tiny_qwen(tmp_path / "one", is_part=True)
    weights = load_file(tmp_path / "one" / "model.safetensors")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "config.json").write_text((tmp_path / "one" / "config.json").read_text())
    save_torch_state_dict(weights, tmp_path / "parts", max_shard_size=20_000)
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    loaded, empty = (make(tmp_path / "parts", dtype="float32") for make in (load_policy, empty_policy))
    names = [name for name, _ in named_weights(loaded)]
    assert set(names) == weights.keys()
    assert [name for name, _ in named_weights(empty)] == names


def test_a_policy_is_made_from_its_configuration_alone(tmp_path: Path) -> None:
    """As plans of memory are, before the weights are there."""
    write_tiny_qwen(tmp_path, is_part=True)
    (tmp_path / "model.safetensors").unlink()
    assert all(parameter.is_meta for parameter in empty_policy(tmp_path, dtype="float32").parameters())
