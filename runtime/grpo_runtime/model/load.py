"""Loads a policy and its tokenizer from a Hugging Face directory, without the network and without running
code of the model."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils.import_utils import is_flash_attn_2_available, is_flash_attn_3_available

from grpo_api.v1alpha1.spec import Attention
from grpo_runtime.errors import UserError
from grpo_runtime.model.head import install_scoring_head, require_same_logprobs
from grpo_runtime.model.language_model import freeze_other_parts
from grpo_runtime.model.weights import name_as_files

MODEL_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_PACKAGES = {
    Attention.FLASH_ATTENTION_2: ("flash-attn", is_flash_attn_2_available),
    Attention.FLASH_ATTENTION_3: ("flash-attn-3", is_flash_attn_3_available),
}


def load_policy(folder: Path, *, dtype: str, attention: Attention = Attention.SDPA) -> PreTrainedModel:
    """The causal language model in `folder` with its weights as `dtype` (a key of MODEL_DTYPES).

    Of a model that takes more than text only the language model is trained (`freeze_other_parts`). Reads
    safetensors only. Raises UserError when the directory does not hold such a model or lacks some of its
    weights, when the model is of a family that makes its logits in a way not known here, and as
    `require_attention` does.
    """
    # flash kernels compute on a GPU only, and in half precision: what is checked here they cannot
    checked = Attention.EAGER if attention.is_flash else attention
    try:
        require_attention(attention, folder=folder)
    except (OSError, ValueError) as error:
        raise UserError(f"the model in {folder} cannot be loaded: {error}") from error
    model = _with_all_weights(folder, dtype=dtype, attention=checked)
    freeze_other_parts(model)
    _compute_as_engines(model, attention)
    _make_savable(model)
    install_scoring_head(model)
    require_same_logprobs(model)
    if attention.is_flash:
        model.set_attn_implementation(attention.value)
    return model


def saved_parameters(folder: Path, *, dtype: str) -> dict[str, torch.Tensor]:
    """The parameters of a policy that `save_policy` wrote to `folder`, as `dtype` (a key of MODEL_DTYPES), by
    the names that the model in memory gives them.

    In the files they have the names of the model's family: transformers takes apart what it keeps as one
    parameter, as the experts of a layer, and puts it together here. Raises UserError as `load_policy` does.
    """
    # nothing is computed with it, and every family has this one
    model = _with_all_weights(folder, dtype=dtype, attention=Attention.EAGER)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def empty_policy(folder: Path, *, dtype: str, attention: Attention = Attention.SDPA) -> PreTrainedModel:
    """The model that `load_policy` returns, without its weights: every tensor is on the meta device.

    Reads `config.json`, and the names of the weights from their files, if there are any, so that all ranks
    use the same names. Raises UserError when the directory does not describe such a model.
    """
    torch_dtype = _torch_dtype(dtype)
    try:
        require_attention(attention, folder=folder)
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=torch_dtype, attn_implementation=attention.value, trust_remote_code=False
            )
        name_as_files(model, folder=folder)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"the model in {folder} cannot be made: {error}") from error
    freeze_other_parts(model)
    _compute_as_engines(model, attention)
    install_scoring_head(model)
    return model


def load_config(folder: Path) -> PreTrainedConfig:
    """The configuration of the model in `folder`. Raises UserError when there is none."""
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise UserError(f"the model in {folder} cannot be loaded: {error}") from error
    return config


def load_generation_config(folder: Path, config: PreTrainedConfig) -> GenerationConfig:
    """What the model in `folder` says about sampling, or `config` where it has no generation_config.json.
    Raises UserError when that file cannot be read."""
    if not (folder / GENERATION_CONFIG_NAME).is_file():
        return GenerationConfig.from_model_config(config)
    try:
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"the model in {folder} cannot be loaded: {error}") from error


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in `folder`. If it has no padding token, the end-of-sequence token is used for padding.

    Raises UserError when there is no tokenizer, or when it has no end-of-sequence token, without which no
    completion could end.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise UserError(f"the tokenizer in {folder} cannot be loaded: {error}") from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer in {folder} has no eos_token: set it in tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def require_attention(attention: Attention, *, folder: Path) -> None:
    """Raise UserError, with the field and what to set it to, when the model in `folder` cannot be computed
    with `attention` in this image. Raises OSError and ValueError as transformers does for a broken
    configuration. Nothing is downloaded: transformers would take a missing flash kernel from the Hub."""
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


def _with_all_weights(folder: Path, *, dtype: str, attention: Attention) -> PreTrainedModel:
    torch_dtype = _torch_dtype(dtype)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=torch_dtype,
            attn_implementation=attention.value,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"the model in {folder} cannot be loaded: {error}") from error
    model: PreTrainedModel
    model, report = loaded
    # transformers would only warn, and use random numbers for weights that the file lacks
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"the model in {folder} lacks {len(missing)} of its weights, the first is {missing[0]}"
        )
    return model


def _compute_as_engines(model: PreTrainedModel, attention: Attention) -> None:
    """Let a model that soft-caps its attention scores, as Gemma 2 does, compute them by transformers' plain
    attention: its sdpa leaves the caps out without a word, and engines apply them."""
    has_caps = getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None
    if has_caps and attention is Attention.SDPA:
        model.set_attn_implementation("eager")


def _torch_dtype(dtype: str) -> torch.dtype:
    if dtype not in MODEL_DTYPES:
        raise UserError(f"model.dtype ({dtype}) must be one of {', '.join(MODEL_DTYPES)}")
    return MODEL_DTYPES[dtype]


def _make_savable(model: PreTrainedModel) -> None:
    """Make the generation config one that transformers agrees to save. Many models set a temperature there
    but not do_sample, which transformers loads with a warning and refuses to save."""
    config = model.generation_config
    try:
        config.validate(strict=True)
    except ValueError:
        config.do_sample = True
