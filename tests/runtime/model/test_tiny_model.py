"""builtin://tiny: the same bytes everywhere, readable by every user, loaded and saved by transformers."""

import hashlib
import json
import shutil
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_runtime.errors import UserError
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.save import save_policy
from grpo_runtime.model.tiny import CHARACTERS, write_tiny_model
from grpo_runtime.model.weights import named_weights


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny_model(folder)
    return folder


def weights_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def test_its_weights_are_the_same_bytes_on_every_machine(tiny: Path) -> None:
    assert weights_digest(tiny) == "71a029e3c28e525f0dc10f284b20bddb605982e6de031388cfabb53e027502ef"


def test_writing_it_twice_changes_no_file(tiny: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    write_tiny_model(again)
    assert {path.name: path.read_bytes() for path in tiny.iterdir()} == {
        path.name: path.read_bytes() for path in again.iterdir()
    }


def test_every_user_id_can_read_every_file(tiny: Path) -> None:
    for path in [tiny, *tiny.iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444, path


def test_vllm_on_a_cpu_can_serve_its_shape(tiny: Path) -> None:
    config = load_policy(tiny, dtype="float32").config
    assert config.hidden_size // config.num_attention_heads == 32
    assert config.tie_word_embeddings is False
    assert config.vocab_size == len(load_tokenizer(tiny))


def test_a_prompt_is_exactly_its_characters(tiny: Path) -> None:
    tokenizer = load_tokenizer(tiny)
    token_ids = tokenizer(CHARACTERS).input_ids
    assert len(token_ids) == len(CHARACTERS)
    assert tokenizer.decode(token_ids) == CHARACTERS
    assert (
        tokenizer.decode([*tokenizer("3+5=").input_ids, tokenizer.eos_token_id], skip_special_tokens=True)
        == "3+5="
    )


def test_a_saved_policy_loads_with_the_same_weights_and_tokenizer(tiny: Path, tmp_path: Path) -> None:
    model = load_policy(tiny, dtype="float32")
    with torch.no_grad():
        model.lm_head.weight.add_(1.0)
    save_policy(model, tokenizer=load_tokenizer(tiny), into=tmp_path / "saved")
    saved = dict(named_weights(load_policy(tmp_path / "saved", dtype="float32")))
    for name, weight in named_weights(model):
        assert torch.equal(weight, saved[name]), name
    assert load_tokenizer(tmp_path / "saved")("a b").input_ids == load_tokenizer(tiny)("a b").input_ids
    assert (tmp_path / "saved" / "model.safetensors").stat().st_mode & 0o444 == 0o444


def test_weights_carry_the_names_of_the_safetensors_file(tiny: Path) -> None:
    assert {name for name, _ in named_weights(load_policy(tiny, dtype="float32"))} == set(
        load_file(tiny / "model.safetensors")
    )


def test_a_broken_model_file_is_a_user_error(tiny: Path, tmp_path: Path) -> None:
    for path in tiny.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_policy(tmp_path, dtype="float32")


def test_a_model_that_lacks_a_weight_is_refused(tiny: Path, tmp_path: Path) -> None:
    for path in tiny.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tiny / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 1 of its weights, the first is model\.norm\.weight"):
        load_policy(tmp_path, dtype="float32")


def test_a_model_with_a_temperature_but_without_do_sample_can_be_saved(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9}')
    save_policy(
        load_policy(folder, dtype="float32"), tokenizer=load_tokenizer(folder), into=tmp_path / "saved"
    )
    saved = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert (saved["temperature"], saved["top_p"]) == (0.6, 0.9)


def without(token: str, tiny: Path, into: Path) -> Path:
    """The tiny model whose tokenizer does not name this token."""
    shutil.copytree(tiny, into)
    path = into / "tokenizer_config.json"
    config = json.loads(path.read_text())
    # not left out: some classes of tokenizers have a token of their own for that
    path.write_text(json.dumps({**config, token: None}))
    return into


def test_a_model_that_names_no_padding_is_padded_with_its_end_of_sequence(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(without("pad_token", tiny, tmp_path / "model"))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == load_tokenizer(tiny).eos_token_id


def test_a_model_that_names_no_end_of_sequence_is_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no eos_token"):
        load_tokenizer(without("eos_token", tiny, tmp_path / "model"))
