"""Saves a policy as a Hugging Face directory that every user may read."""

import copy
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from huggingface_hub import save_torch_state_dict
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.model.lora import has_adapter, write_adapter_config
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.weights import saved_weights

ORIGIN = "origin.json"
PROCESSORS = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""How a model's pictures and sound are prepared, in files of their own."""
_READ_BY_ALL = 0o444


def save_policy(model: PreTrainedModel, *, tokenizer: PreTrainedTokenizerBase, into: Path) -> None:
    """Write weights (safetensors), config and tokenizer to the directory `into`, made if it is missing.

    `model` is the bare module, which holds all its weights and has no adapter. This is not atomic: a caller
    whose directory must never be incomplete saves to another one and renames it. Not by `save_pretrained`,
    which imports DeepSpeed, for seconds, to see whether the model is one of its engines.
    """
    assert not has_adapter(model), "its weights would be saved under peft's names"
    into.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(saved_weights(model), into)
    save_beside_weights(model, tokenizer=tokenizer, into=into)


def save_beside_weights(model: PreTrainedModel, *, tokenizer: PreTrainedTokenizerBase, into: Path) -> None:
    """Write what `save_policy` writes beside the weights to the directory `into`, which exists: tokenizer and
    config, which of an adapter is its own."""
    if has_adapter(model):
        write_adapter_config(model, into=into)
    else:
        write_config(model, dtype=model.dtype, into=into)
    tokenizer.save_pretrained(into)
    let_all_read(into)


def let_all_read(into: Path) -> None:
    """Let every user read what is in `into`: transformers leaves weights at 0600, which a pod with another
    user id cannot read."""
    into.chmod(into.stat().st_mode | _READ_BY_ALL | 0o111)
    for path in into.rglob("*"):
        path.chmod(path.stat().st_mode | _READ_BY_ALL | (0o111 if path.is_dir() else 0))


def write_config(model: PreTrainedModel, *, dtype: torch.dtype, into: Path) -> None:
    """Write the configs of `model` beside weights that are saved without it, as `dtype`, whatever the model's
    own are."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.dtype = dtype
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            part.dtype = dtype
    config.save_pretrained(into)
    model.generation_config.save_pretrained(into)


def write_what_training_leaves(origin: LocalModel, *, into: Path) -> None:
    """Write beside an exported policy what it has from the model that training started from: how that
    prepares pictures and sound, where it takes these, and `origin.json`."""
    for name in PROCESSORS:
        if (path := origin.file(name)) is not None:
            shutil.copyfile(path, into / name)
            (into / name).chmod(0o644)
    write_origin(origin, into=into)


def write_origin(origin: LocalModel, *, into: Path) -> None:
    """Write `origin.json` beside a saved policy: source and commit of the model that training started
    from."""
    path = into / ORIGIN
    path.write_text(json.dumps({"source": origin.source, "commit": origin.commit}, indent=2) + "\n")
    path.chmod(path.stat().st_mode | _READ_BY_ALL)


def files_beside_weights(
    model: PreTrainedModel, *, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype, origin: LocalModel
) -> dict[str, bytes]:
    """The files that make a folder of the policy's whole weights, of this `dtype`, a model, by name. Also for
    a model with an adapter, whose weights are summed."""
    with TemporaryDirectory(prefix="beside-weights-") as name:
        folder = Path(name)
        write_config(model, dtype=dtype, into=folder)
        # several templates would be a folder of files
        has_several = isinstance(tokenizer.chat_template, dict)
        tokenizer.save_pretrained(folder, save_jinja_files=not has_several)
        write_what_training_leaves(origin, into=folder)
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
