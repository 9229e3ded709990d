"""The weights of a policy as its checkpoint has them, which is what vLLM loads: each tensor once."""

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
_SHAPES: WeakKeyDictionary[PreTrainedModel, Shapes] = WeakKeyDictionary()
"""Of the models that there are: a sync asks several times, and transformers takes milliseconds to answer."""


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight of the bare `model` (no DDP wrapper) as `save_pretrained` writes it, in a fixed order.

    The names and shapes are those of the safetensors file that the model was loaded from. transformers makes
    one parameter of all experts of a layer, for example, and takes it apart again here. A tied head appears
    once, under the embedding's name. The tensors are detached. A weight that is a parameter shares its
    memory, so the next optimizer step changes it; one that is a part of a parameter may be a copy.
    """
    for name, parameter in model.named_parameters():
        yield from _as_saved(model, name, parameter.detach())


def weight_shapes(model: PreTrainedModel) -> Shapes:
    """Name and shape of each of `named_weights`, without copying any. They are those of the first call: the
    parameters of a model keep their names and shapes."""
    if model not in _SHAPES:
        _SHAPES[model] = tuple(
            (saved_name, tuple(weight.shape))
            for name, parameter in model.named_parameters()
            for saved_name, weight in _as_saved(model, name, torch.empty_like(parameter, device="meta"))
        )
    return _SHAPES[model]


def _as_saved(
    model: PreTrainedModel, name: str, parameter: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """What transformers saves of one parameter. One that it would join with others is taken alone, and the
    engines refuse its shape."""
    yield from revert_weight_conversion(model, {name: parameter}).items()
