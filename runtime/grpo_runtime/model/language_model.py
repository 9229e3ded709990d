"""The part of a model that reads text, where the model takes pictures or sound beside it, and its layers."""

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel


def takes_only_text(model: PreTrainedModel) -> bool:
    """Whether the whole model is a language model: else its configuration nests that of one."""
    return model.config.get_text_config() is model.config


def language_model(model: PreTrainedModel) -> nn.Module:
    """Embeddings, layers and last norm of the language model in `model`, without its head."""
    found: nn.Module = model.base_model if takes_only_text(model) else model.get_decoder()
    return found


def vocabulary_size(config: PreTrainedConfig) -> int:
    """Entries of the vocabulary that a model with this configuration reads and writes."""
    return int(config.get_text_config().vocab_size)


def freeze_other_parts(model: PreTrainedModel) -> None:
    """Leave the parts that a text never reaches, towers of pictures or sound and what projects them, as they
    are: they would have no gradient, and ranks would wait for one. They are saved and given to engines with
    the rest."""
    if takes_only_text(model):
        return
    trained = {*language_model(model).parameters(), *model.get_output_embeddings().parameters()}
    for parameter in model.parameters():
        if parameter not in trained:
            parameter.requires_grad_(False)


def decoder_layers(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """The layers of `model`, inner ones first: the modules that transformers never splits over devices, or
    else the members of its first list of modules. Empty for a model with neither."""
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
        layers = list(next(lists, ()))
    return tuple(reversed(layers))
