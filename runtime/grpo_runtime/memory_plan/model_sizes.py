"""The sizes of a model from its configuration: transformers makes it on the meta device, without memory."""

from collections.abc import Iterable
from pathlib import Path

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from grpo_api.contract.run_config import ResolvedLora
from grpo_api.v1alpha1.spec import Attention
from grpo_runtime.errors import UserError
from grpo_runtime.memory_plan.formulas import ModelSizes
from grpo_runtime.model.language_model import decoder_layers, language_model
from grpo_runtime.model.load import empty_policy
from grpo_runtime.model.lora import add_adapter, is_of_adapter
from grpo_runtime.model.source import LocalModel
from grpo_runtime.trainer.policy import MASTER_DTYPE

_NEEDED = ("hidden_size", "num_attention_heads", "vocab_size")


def sizes_of_folder(folder: Path, *, attention: Attention, lora: ResolvedLora | None = None) -> ModelSizes:
    """Read `config.json` in `folder`, and no weights. Raises UserError as `empty_policy`, `add_adapter` and
    `model_sizes` do.

    This machine need not have a flash kernel that the job names: it keeps what sdpa keeps.
    """
    usable = Attention.SDPA if attention.is_flash else attention
    model = empty_policy(folder, dtype=MASTER_DTYPE, attention=usable)
    if lora is not None:
        add_adapter(model, lora, seed=0, origin=LocalModel(folder, source="", commit=None))
    return model_sizes(model)


def model_sizes(model: PreTrainedModel) -> ModelSizes:
    """The sizes of `model`, which may be on the meta device. Raises UserError when its configuration does not
    name them, as those of models without attention."""
    config = model.config.get_text_config()
    if lacking := [name for name in _NEEDED if not isinstance(getattr(config, name, None), int)]:
        raise UserError(
            f"the memory of {type(model).__name__} cannot be estimated: its config has no {lacking[0]}"
        )
    inside = set(language_model(model).modules())
    layers = [layer for layer in decoder_layers(model) if layer in inside]
    largest = max(layers, key=_num_parameters, default=nn.Module())
    hidden, num_heads = int(config.hidden_size), int(config.num_attention_heads)
    head_width = int(getattr(config, "head_dim", None) or hidden // num_heads)
    num_key_heads = int(getattr(config, "num_key_value_heads", None) or num_heads)
    adapter = [p.numel() for name, p in model.named_parameters() if is_of_adapter(name)]
    norm_widths = [_width(module) for module in largest.modules() if _is_norm(module)]
    return ModelSizes(
        num_parameters=_num_parameters(model),
        num_layers=len(layers),
        num_layer_parameters=_num_parameters(largest),
        num_largest_parameters=max((p.numel() for _, p in _of_model(largest)), default=0),
        hidden=hidden,
        intermediate=_intermediate(config),
        query_width=num_heads * head_width,
        key_width=num_key_heads * head_width,
        num_heads=num_heads,
        vocabulary=int(config.vocab_size),
        num_norms=norm_widths.count(hidden),
        has_query_norm=any(width != hidden for width in norm_widths),
        keeps_scores=config._attn_implementation == "eager",
        num_adapter_parameters=sum(adapter),
        num_largest_adapter_parameters=max(adapter, default=0),
        num_chosen_experts=int(getattr(config, "num_experts_per_tok", None) or 0),
    )


def _intermediate(config: PreTrainedConfig) -> int:
    """Intermediate values of one token; a model that does not say has four times the hidden size."""
    of_expert = getattr(config, "moe_intermediate_size", None)
    num_experts = getattr(config, "num_experts_per_tok", None) or 1
    own = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    widths = of_expert or own
    # a few families have one for each layer
    return int(num_experts * (max(widths) if isinstance(widths, list | tuple) else widths))


def _num_parameters(module: nn.Module) -> int:
    """Each parameter once, also one that two modules share, without those of an adapter."""
    return sum(parameter.numel() for _, parameter in _of_model(module))


def _of_model(module: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    return ((name, tensor) for name, tensor in module.named_parameters() if not is_of_adapter(name))


def _is_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Norm") and bool(_weights(module))


def _width(module: nn.Module) -> int:
    return _weights(module)[0].numel()


def _weights(module: nn.Module) -> list[nn.Parameter]:
    found: Iterable[nn.Parameter] = module.parameters(recurse=False)
    return list(found)
