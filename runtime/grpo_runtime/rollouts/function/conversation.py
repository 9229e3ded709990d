"""What the user's function gets: one completion that is being made."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Turn:
    """What the policy has sampled in one turn."""

    token_ids: list[int]
    logprobs: list[float]
    """The sampler's, in nats, one per token."""
    text: str
    """Without special tokens."""
    is_terminated: bool
    """False when it was cut at a limit of tokens."""


Ask = Callable[[list[str | list[int]], int | None], Awaitable[Turn]]
"""Takes what was added since the last turn, and the turn's longest length."""


@dataclass(kw_only=True)
class Conversation:
    """One completion of one prompt. What is sampled is trained; what is added is not."""

    prompt: str | list[dict[str, Any]]
    """The prompt as in the dataset."""
    prompt_ids: list[int]
    """The prompt as the policy gets it."""
    columns: dict[str, Any]
    """The other columns of the row, by name."""
    sample_index: int
    """Its index in the group, from 0."""
    seed: int
    """Seed for the function's own random choices: the same in every run and after every resume."""
    ask: Ask = field(repr=False)
    added: list[str | list[int]] = field(default_factory=list, repr=False)

    def add(self, what: str | Sequence[int]) -> None:
        """Continue with a text, or with token ids, that no policy sampled: what a tool or an environment
        says. A text is encoded alone, without special tokens but those that are written in it."""
        self.added.append(what if isinstance(what, str) else [int(token) for token in what])

    async def sample(self, *, max_tokens: int | None = None) -> Turn:
        """Let the policy continue from the prompt and everything so far, for at most `max_tokens`.

        Where sampling.maxTokens or maxTurns leaves no room for a turn, the completion ends here, cut, and the
        function is cancelled (asyncio.CancelledError).
        """
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}: a turn has at least one token")
        added, self.added = self.added, []
        return await self.ask(added, max_tokens)
