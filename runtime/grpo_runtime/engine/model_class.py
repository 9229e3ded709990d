"""Registers the class of a model with vLLM before the model is loaded.

vLLM starts a process to ask the model's class what it can do, so that a GPU is not touched early. That
process imports torch and vLLM once more: 9 s of a core for every start. Where there is no GPU, or where the
engine will be in this process anyway, the class is asked here.
"""

import json
from pathlib import Path

from vllm.model_executor.models.registry import ModelRegistry


def register_model(model_dir: Path) -> None:
    """Load the class of the model in `model_dir` and register it. vLLM itself refuses one that it lacks."""
    for architecture in json.loads((model_dir / "config.json").read_text()).get("architectures") or ():
        if found := ModelRegistry.models.get(architecture):
            ModelRegistry.register_model(architecture, found.load_model_cls())
