"""Gradient checkpointing: the backward pass computes the activations of a layer again instead of keeping
them.

transformers does so only in modules that are in training mode, where dropout and the noise of routers would
make the trainer's probabilities differ from the engines'. So the model stays in evaluation mode; only the
modules that decide on checkpointing, the layers as such without what is inside them, are in training mode,
and no module has any dropout.
"""

import copy
from typing import Any

import torch
from transformers import PreTrainedModel

from grpo_runtime.errors import UserError


def recompute_activations(model: PreTrainedModel) -> None:
    """Let `model`, which is in evaluation mode, keep only what enters each layer until the backward pass.

    Raises UserError when transformers cannot do so for this class of models.
    """
    # the layers have no dropout, so there is no random state to keep for the second time
    how = {"use_reentrant": False, "preserve_rng_state": False}
    try:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    except ValueError as error:
        raise UserError(
            f"{error} Set trainer.gradientCheckpointing to false to keep the activations of this model"
        ) from error
    _remove_dropout(model)
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True


def _remove_dropout(model: torch.nn.Module) -> None:
    """Set every probability of dropping something to 0, in the modules and in the configuration that their
    `forward` reads. The configuration of `model` itself, which is saved with it, stays as it is."""
    without: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        _zero_probabilities(module)
        config = getattr(module, "config", None)
        if module is model or config is None:
            continue
        if id(config) not in without:
            without[id(config)] = copy.deepcopy(config)
            _zero_probabilities(without[id(config)])
        module.config = without[id(config)]


def _zero_probabilities(owner: Any) -> None:
    """`attention_dropout`, `resid_pdrop`, `layerdrop` and the like."""
    for name, value in vars(owner).items():
        if "drop" in name and isinstance(value, float):
            setattr(owner, name, 0.0)
