"""Whether a model's class and this image can compute attention as `model.attention` asks. Nothing is ever
downloaded for it: transformers would take a missing flash kernel from the Hub."""

from pathlib import Path
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig
from transformers.utils.import_utils import is_flash_attn_2_available, is_flash_attn_3_available

from grpo_api.v1alpha1.spec import Attention
from grpo_runtime.errors import UserError

_PACKAGES = {
    Attention.FLASH_ATTENTION_2: ("flash-attn", is_flash_attn_2_available),
    Attention.FLASH_ATTENTION_3: ("flash-attn-3", is_flash_attn_3_available),
}


def require_attention(attention: Attention, *, folder: Path) -> None:
    """Raise UserError, with the field and what to set it to, when the model in `folder` cannot be computed
    with `attention`. Raises OSError and ValueError as transformers does for a broken configuration."""
    if attention in _PACKAGES:
        package, is_available = _PACKAGES[attention]
        if not is_available():
            raise UserError(
                f"model.attention {attention} needs a GPU and the package {package} in the image: use an "
                "image that has it, or set model.attention to sdpa"
            )
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model_class is not None and not _is_supported(attention, model_class):
        raise UserError(
            f"{model_class.__name__} has no {attention} attention in transformers: set model.attention to "
            f"{'eager' if attention is Attention.SDPA else 'sdpa or eager'}"
        )


def _is_supported(attention: Attention, model_class: Any) -> bool:
    if attention is Attention.SDPA:
        return bool(getattr(model_class, "_supports_sdpa", False))
    if attention.is_flash:
        # in place of one that is not listed, transformers takes the first that is, mostly from the Hub
        listed = getattr(model_class, "_compatible_flash_implementations", None) or [attention.value]
        return bool(getattr(model_class, "_supports_flash_attn", False)) and attention.value in listed
    return True
