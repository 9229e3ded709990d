"""The weights of a policy as its checkpoint has them, which is what vLLM loads: each tensor once."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    rename_source_key,
    revert_weight_conversion,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

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


def saved_weights(
    model: PreTrainedModel, state: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """All of `named_weights` at once, also those of a family whose files join several parameters. `state` is
    the state dict, where the model itself has only a part of each tensor.

    No two share memory, which safetensors would take for one weight under two names: what is a part of a
    larger tensor is copied.
    """
    parameters = dict(model.named_parameters())
    second_names = dict(model.named_parameters(remove_duplicate=False)).keys() - parameters.keys()
    tensors = parameters if state is None else state
    whole = {name: tensor.detach() for name, tensor in tensors.items() if name not in second_names}
    return {name: _alone(weight) for name, weight in revert_weight_conversion(model, whole).items()}


class WeightsByName:
    """All of `named_weights`, each made when it is read. transformers takes a parameter of many experts apart
    by copying it, and all of these copies at once are as large as the experts."""

    def __init__(self, model: PreTrainedModel, parameters: Mapping[str, torch.Tensor]) -> None:
        """`parameters` are whole, and must not change before all weights were read."""
        self._model = model
        self._parameters = parameters
        self._parameter_of: dict[str, str] = {}
        self._unread: dict[str, dict[str, torch.Tensor]] = {}
        """Weights that nobody has read yet, by the parameter that they are made of."""
        self.layout: dict[str, torch.Tensor] = {}
        """By name, a tensor on the device meta with the weight's dtype and shape."""
        for name, parameter in parameters.items():
            for saved_name, weight in _as_saved(model, name, parameter.to("meta")):
                self.layout[saved_name] = weight
                self._parameter_of[saved_name] = name

    def read(self, name: str) -> torch.Tensor:
        """A weight of the layout, once."""
        of = self._parameter_of[name]
        if of not in self._unread:
            self._unread[of] = dict(_as_saved(self._model, of, self._parameters[of].detach()))
        weight = self._unread[of].pop(name)
        if not self._unread[of]:
            del self._unread[of]
        return weight


def weight_shapes(
    model: PreTrainedModel, parameters: NamedTensors | None = None
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each of `named_weights`, without copying any. The parameters may be sharded."""
    for name, parameter in model.named_parameters() if parameters is None else parameters:
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
        for saved_name, weight in _as_saved(model, name, whole):
            yield saved_name, tuple(weight.shape)


def name_as_files(model: PreTrainedModel, *, folder: Path) -> None:
    """Let `named_weights` of a model that was made without its weights use the names that are in the files of
    `folder`, as it does once they are loaded. Reads names only; without files nothing changes.

    Files of some families have a prefix that the model has not, and others of the same family do not.
    transformers learns that while it loads them.
    """
    conversions = get_model_conversion_mapping(model)
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    converters = [each for each in conversions if isinstance(each, WeightConverter)]
    if names := _names_in_files(folder):
        for name in names:
            # which marks those that it uses
            rename_source_key(name, renamings, converters)
        vars(model)["_weight_conversions"] = [each for each in conversions if each.was_used()]


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _names_in_files(folder: Path) -> Iterable[str]:
    """Names of the weights that transformers loads: of one file, or else of those in an index."""
    if (folder / SAFE_WEIGHTS_NAME).is_file():
        with safe_open(folder / SAFE_WEIGHTS_NAME, framework="pt") as file:
            return list(file.keys())
    if (folder / SAFE_WEIGHTS_INDEX_NAME).is_file():
        return list(json.loads((folder / SAFE_WEIGHTS_INDEX_NAME).read_text())["weight_map"])
    return []


def _as_saved(model: PreTrainedModel, name: str, parameter: torch.Tensor) -> NamedTensors:
    """What transformers saves of one parameter, which is given whole. One that it would join with others is
    taken alone, and the engines refuse its shape."""
    yield from revert_weight_conversion(model, {name: parameter}).items()
