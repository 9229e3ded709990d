"""The weights as vLLM wants to hear of them: Hugging Face names, each tensor once."""

from collections.abc import Iterator

import torch
from transformers import PreTrainedModel


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter of the bare `model` (no DDP wrapper) under its Hugging Face name, in a fixed order.

    Detached. The names are those of the safetensors file the model was loaded from; vLLM fuses q, k and
    v itself. A tied head appears once, under the embedding's name. Tensors share memory with the model:
    copy what must outlive the next optimizer step.
    """
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()
