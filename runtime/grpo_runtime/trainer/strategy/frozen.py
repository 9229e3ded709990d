"""A policy that is not trained, such as the reference policy of a KL penalty. B sequences, T tokens."""

from collections.abc import Callable

import torch

from grpo_runtime.trainer.distributed import peer_errors
from grpo_runtime.trainer.policy import Policy


class FrozenPolicy:
    """Scores tokens without gradients, on the device of the strategy that has spread it."""

    def __init__(self, policy: Policy, *, after_pass: Callable[[], None] = lambda: None) -> None:
        """`after_pass` gives back what a forward pass has put together."""
        self._policy = policy
        self._after_pass = after_pass

    @torch.no_grad()
    def logprobs(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logprobs [B, T-1] of tokens 1.. of `token_ids` [B, T] where `mask` [B, T-1] is true, 0 elsewhere.
        All ranks call it equally often."""
        with peer_errors():
            found: torch.Tensor = self._policy(token_ids, mask)[0]
        self._after_pass()
        return found
