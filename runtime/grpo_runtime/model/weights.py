"""The weights of a policy as its checkpoint has them, which is what vLLM loads: each tensor once."""

from collections.abc import Iterator

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

NamedTensors = Iterator[tuple[str, torch.Tensor]]


def named_weights(model: PreTrainedModel, parameters: NamedTensors | None = None) -> NamedTensors:
    """Every weight of the bare `model` (no DDP wrapper) as `save_pretrained` writes it, in a fixed order.

    The names and shapes are those of the safetensors file that the model was loaded from. transformers makes
    one parameter of all experts of a layer, for example, and takes it apart again here. A tied head appears
    once, under the embedding's name. The tensors are detached. A weight that is a parameter shares its
    memory, so the next optimizer step changes it; one that is a part of a parameter may be a copy.
    `parameters` are the whole ones, where the model itself has only a part of each.
    """
    for name, parameter in model.named_parameters() if parameters is None else parameters:
        yield from _as_saved(model, name, parameter.detach())


def weight_shapes(model: PreTrainedModel) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each of `named_weights`, without copying any. The parameters may be sharded."""
    for name, parameter in model.named_parameters():
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
        for saved_name, weight in _as_saved(model, name, whole):
            yield saved_name, tuple(weight.shape)


def _as_saved(model: PreTrainedModel, name: str, parameter: torch.Tensor) -> NamedTensors:
    """What transformers saves of one parameter, which is given whole. One that it would join with others is
    taken alone, and the engines refuse its shape."""
    yield from revert_weight_conversion(model, {name: parameter}).items()
