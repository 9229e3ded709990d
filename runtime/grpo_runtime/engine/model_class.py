"""Registers the class of a model with vLLM before the model is loaded, where vLLM can run it.

vLLM starts a process to ask the model's class what it can do, so that a GPU is not touched early. That
process imports torch and vLLM once more: 9 s of a core for every start. Where there is no GPU, or where the
engine will be in this process anyway, the class is asked here.
"""

import json
from pathlib import Path

from transformers import AutoConfig
from vllm.model_executor.models.registry import ModelRegistry
from vllm.platforms import current_platform

from grpo_runtime.errors import UserError


def register_model(model_dir: Path) -> None:
    """Load the class of the model in `model_dir` and register it. vLLM itself refuses one that it lacks.

    Raises UserError when the class needs a package that this image lacks, as those of pictures do, and when
    attention on CPU has no kernel for the model's heads.
    """
    _require_head_size(model_dir)
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


def _require_head_size(model_dir: Path) -> None:
    """vLLM would find out at the first request, and end its process."""
    if not current_platform.is_cpu():
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    config = AutoConfig.from_pretrained(model_dir, local_files_only=True).get_text_config()
    num_heads = getattr(config, "num_attention_heads", None)
    if num_heads is None or getattr(config, "kv_lora_rank", None) is not None:
        # it has no attention, or one whose heads have several sizes
        return
    size = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    known = CPUAttentionBackend.get_supported_head_sizes()
    if size not in known:
        raise UserError(
            f"model.source: the model's heads have head_dim {size}, for which vLLM has no attention on CPU: "
            f"take a model with one of {', '.join(map(str, known))}, or run it on GPUs"
        )
