"""The trained model at the end of a run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from tiny_families import write_tiny_family
from transformers import AutoModelForCausalLM

from grpo_api.contract.run_config import ResolvedLora
from grpo_api.v1alpha1.spec import Dtype, OptimizerSpec
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.lora import add_adapter
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.trainer.checkpoint.model_export import (
    export_merged,
    export_model,
    merged_model,
    whole_model,
)
from grpo_runtime.trainer.checkpoint.tensor_file import INDEX, write_weights
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.strategy.ddp import DDPStrategy


def test_an_export_replaces_the_one_before_as_a_whole_and_says_where_the_model_came_from(
    tmp_path: Path, ranks: Ranks
) -> None:
    write_tiny_model(tmp_path / "tiny")
    policy = Policy(load_policy(tmp_path / "tiny", dtype=MASTER_DTYPE), temperature=1.0, dtype=Dtype.BFLOAT16)
    strategy = DDPStrategy(policy, optimizer=OptimizerSpec(), total_steps=1, ranks=ranks)
    into = tmp_path / "output" / "model"
    into.mkdir(parents=True)
    (into / "model-00001-of-00002.safetensors").write_text("of an earlier attempt")
    (into.parent / ".model.tmp").mkdir()
    (into.parent / ".model.tmp" / "half.safetensors").write_text("of an attempt that was killed")

    origin = LocalModel(tmp_path / "tiny", "hf://org/tiny", "0123abc")
    export_model(
        into,
        model=policy.model,
        weights=whole_model(strategy),
        tokenizer=load_tokenizer(tmp_path / "tiny"),
        origin=origin,
    )
    assert [path.name for path in into.parent.iterdir()] == ["model"]
    assert [path.name for path in into.glob("*.safetensors")] == ["model.safetensors"]
    assert json.loads((into / "origin.json").read_text()) == {"source": "hf://org/tiny", "commit": "0123abc"}
    saved = load_file(into / "model.safetensors")
    # in float32, whatever the engines compute in
    assert all(tensor.equal(saved[name]) for name, tensor in policy.model.named_parameters())
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in into.iterdir())


@pytest.mark.parametrize("max_file_size", ["5GB", "100KB"])
def test_weights_are_in_the_files_that_hugging_face_would_write(tmp_path: Path, max_file_size: str) -> None:
    write_tiny_model(tmp_path / "tiny")
    weights = load_file(tmp_path / "tiny" / "model.safetensors")
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    written: list[int] = []
    write_weights(weights, into=mine, max_file_size=max_file_size, on_bytes=written.append)
    save_torch_state_dict(dict(weights), theirs, max_shard_size=max_file_size)
    names = {path.name for path in theirs.iterdir()}
    assert {path.name for path in mine.iterdir()} == names
    assert ("model.safetensors" in names) == (max_file_size == "5GB")
    for name in names - {INDEX}:
        found, expected = load_file(mine / name), load_file(theirs / name)
        assert found.keys() == expected.keys()
        assert all(tensor.equal(expected[each]) for each, tensor in found.items())
    assert sum(written) == sum(path.stat().st_size for path in mine.glob("*.safetensors"))
    if INDEX in names:
        assert json.loads((mine / INDEX).read_text()) == json.loads((theirs / INDEX).read_text())


@pytest.mark.parametrize("export", [export_model, export_merged])
def test_an_export_has_what_prepares_pictures_and_says_in_which_precision_its_weights_are(
    export: Callable[..., None], ranks: Ranks, tmp_path: Path
) -> None:
    """As DeepSpeed has them: the model in float32, though the run is in bfloat16."""
    folder, into = tmp_path / "model", tmp_path / "exported"
    write_tiny_family(folder, family="gemma3-pictures")
    for name in ("processor_config.json", "preprocessor_config.json"):
        (folder / name).write_text(f'{{"of": "{name}"}}')
    model = load_policy(folder, dtype="float32")
    origin = LocalModel(folder, "hf://org/tiny", commit="0123abc")
    if export is export_merged:
        add_adapter(model, ResolvedLora(rank=4, alpha=8), seed=0, origin=origin)
    policy = Policy(model, temperature=1.0, dtype=Dtype.BFLOAT16)
    strategy = DDPStrategy(policy, optimizer=OptimizerSpec(), total_steps=1, ranks=ranks)
    weights = merged_model(strategy) if export is export_merged else whole_model(strategy)
    export(into, model=model, weights=weights, tokenizer=load_tokenizer(folder), origin=origin)

    expected = {path.name for path in folder.iterdir()} | {"origin.json"}
    assert {path.name for path in into.iterdir()} == expected
    for name in ("processor_config.json", "preprocessor_config.json"):
        assert (into / name).read_text() == (folder / name).read_text()
    dtype = torch.bfloat16 if export is export_merged else torch.float32
    written = load_file(into / "model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {dtype}
    config = json.loads((into / "config.json").read_text())
    assert {config["dtype"], config["text_config"]["dtype"]} == {str(dtype).removeprefix("torch.")}
    assert config["architectures"] == json.loads((folder / "config.json").read_text())["architectures"]
    assert AutoModelForCausalLM.from_pretrained(into, local_files_only=True).dtype == dtype
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in into.iterdir())
