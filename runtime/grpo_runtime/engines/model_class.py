"""Registers the class of a model with vLLM before the model is loaded, where vLLM can run it.

vLLM starts a process to ask the model's class what it can do, so that a GPU is not touched early. That
process imports torch and vLLM once more: 9 s of a core for every start. Where there is no GPU, or where the
engine will be in this process anyway, the class is asked here.
"""

import json
from pathlib import Path

from vllm.model_executor.models.registry import ModelRegistry
from vllm.platforms import current_platform

from grpo_runtime.errors import UserError
from grpo_runtime.model.fit import require_cpu_heads
from grpo_runtime.model.load import load_config


def register_model(model_dir: Path) -> None:
    """Load the class of the model in `model_dir` and register it. vLLM itself refuses one that it lacks.

    Raises UserError when the class needs a package that this image lacks, as those of pictures do, and when
    attention on CPU has no kernel for the model's heads.
    """
    if current_platform.is_cpu():
        # vLLM would find out at the first request, and end its process
        require_cpu_heads(load_config(model_dir))
    for architecture in json.loads((model_dir / "config.json").read_text()).get("architectures") or ():
        if not (found := ModelRegistry.models.get(architecture)):
            continue
        try:
            ModelRegistry.register_model(architecture, found.load_model_cls())
        except ModuleNotFoundError as error:
            raise UserError(
                f"vLLM's {architecture} needs the package {error.name}, which this image lacks: set image to "
                "one that has it, as that for GPUs, or model.source to a model of text alone"
            ) from error
