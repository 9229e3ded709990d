"""The layers of a model, which a sharded strategy puts together one at a time."""

from torch import nn
from transformers import PreTrainedModel


def decoder_layers(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """The layers of `model`, inner ones first: the modules that transformers never splits over devices, or
    else the members of its first list of modules. Empty for a model with neither."""
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
        layers = list(next(lists, ()))
    return tuple(reversed(layers))
