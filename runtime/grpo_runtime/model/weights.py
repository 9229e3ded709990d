"""The weights of a policy under the names that vLLM expects: Hugging Face's, each tensor once."""

from collections.abc import Iterator

import torch
from transformers import PreTrainedModel


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter of the bare `model` (no DDP wrapper) under its Hugging Face name, in a fixed order.

    The names are those of the safetensors file that the model was loaded from; vLLM fuses q, k and v itself.
    A tied head appears once, under the embedding's name. The tensors are detached and share memory with the
    model, so the next optimizer step changes them: copy what has to stay.
    """
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()
