"""What vLLM's registry knows of a model before it is loaded.

vLLM asks the model's class what it can do in a process of its own, so that a GPU is not touched early. That
process imports torch and vLLM once more: 9 s of a core for every start. Where there is no GPU, or where the
engine will live in this very process, the class may as well be asked here.
"""

import json
from pathlib import Path

from vllm.model_executor.models.registry import ModelRegistry


def know_model(model_dir: Path) -> None:
    """Load the class of the model in `model_dir` and register it; one that vLLM lacks is left to it."""
    for architecture in json.loads((model_dir / "config.json").read_text()).get("architectures") or ():
        if known := ModelRegistry.models.get(architecture):
            ModelRegistry.register_model(architecture, known.load_model_cls())
