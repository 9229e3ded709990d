"""Training that repeats to the last bit on a GPU too.

Some kernels of a GPU add in the order in which its threads arrive. torch has others, which
`use_deterministic_algorithms` chooses. For an operator that has none, torch raises or only warns, as it is
told. A run is not to end for that, so here it warns. But torch takes the repeatable backward pass of
attention only where it would raise. So it is set to raise while attention is computed, and there alone.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from grpo_api.v1alpha1.spec import Attention

_ENVIRONMENT = {
    # cuBLAS's workspace is then the same in each call, however many streams there are
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # read by transformers for the flash-attn packages
    "FLASH_ATTENTION_DETERMINISTIC": "1",
}
_SDPA = Attention.SDPA.value
_FURTHEST_NODE = 4
"""How many nodes are between the output of transformers' attention and that of torch's."""


def choose_repeatable_kernels() -> None:
    """Set what libraries read once, before their first call. What is set already stays."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@contextmanager
def repeatable_sums() -> Iterator[None]:
    """Makes sums repeatable in all passes of this process within the block, on every device."""
    # it would overwrite memory that is about to be overwritten
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # a property of the module
    attention = ALL_ATTENTION_FUNCTIONS[_SDPA]
    ALL_ATTENTION_FUNCTIONS[_SDPA] = _repeatable(attention)
    _only_warn()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        ALL_ATTENTION_FUNCTIONS[_SDPA] = attention


def _repeatable(attention: Callable[..., Any]) -> Callable[..., Any]:
    """The same attention, by kernels whose backward pass is repeatable."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        _raise()
        found = attention(*args, **kwargs)
        _only_warn()
        node = _node_of(found[0])
        if node is not None:
            node.register_prehook(lambda grad_outputs: _raise())
            node.register_hook(lambda grad_inputs, grad_outputs: _only_warn())
        return found

    return compute


def _node_of(output: torch.Tensor) -> torch.autograd.graph.Node | None:
    """The node of torch's attention in the graph of an output; None where it is made of other operators."""
    node = output.grad_fn
    for _ in range(_FURTHEST_NODE):
        if node is None or node.name().startswith("ScaledDotProduct"):
            return node
        node = node.next_functions[0][0] if node.next_functions else None
    return None


def _raise() -> None:
    torch.use_deterministic_algorithms(True)


def _only_warn() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
