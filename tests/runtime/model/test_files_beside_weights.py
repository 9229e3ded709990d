"""The files that make a folder of weights a model."""

from pathlib import Path

import pytest
import torch
from policy_builder import changed_policy

from grpo_runtime.model.load import load_tokenizer
from grpo_runtime.model.save import files_beside_weights
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.tiny import write_tiny_model


@pytest.mark.parametrize(
    "template", ["{{ messages }}", {"default": "{{ messages }}", "tool_use": "{{ tools }}"}]
)
def test_a_tokenizer_is_loaded_from_them_with_each_of_its_chat_templates(
    template: str | dict[str, str], tmp_path: Path
) -> None:
    model_dir, into = tmp_path / "model", tmp_path / "loaded"
    write_tiny_model(model_dir)
    tokenizer = load_tokenizer(model_dir)
    tokenizer.chat_template = template
    files = files_beside_weights(
        changed_policy(model_dir, seed=0),
        tokenizer=tokenizer,
        dtype=torch.float32,
        origin=LocalModel(model_dir, "builtin://tiny", commit=None),
    )
    into.mkdir()
    for name, data in files.items():
        (into / name).write_bytes(data)
    assert load_tokenizer(into).chat_template == template
