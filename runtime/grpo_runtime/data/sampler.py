"""Which prompts come next, epoch after epoch, and the position that a checkpoint holds."""

import hashlib
import json
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.reasoning_gym import without_day
from grpo_runtime.errors import UserError


@dataclass(frozen=True)
class Drawn:
    """A prompt, and how many prompts the run had drawn before it: its ordinal."""

    ordinal: int
    prompt: Prompt


class PromptSampler:
    """Gives every prompt once in each epoch, in an order that depends only on the seed and the epoch.

    A batch may span the end of an epoch. `state_dict` is the position where the next batch starts, so a
    resumed run neither skips nor repeats a prompt.
    """

    def __init__(self, prompts: tuple[Prompt, ...], *, seed: int, is_shuffled: bool) -> None:
        if not prompts:
            raise ValueError("a sampler needs at least one prompt")
        self._prompts = prompts
        self._seed = seed
        self._is_shuffled = is_shuffled
        self._epoch = 0
        self._position = 0
        self._order = self._order_of(0)
        self._again: deque[int] = deque()
        """Ordinals that are drawn once more, before the others."""
        self._fingerprint = _fingerprint(prompts)

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """All that it draws from."""
        return self._prompts

    @property
    def first_row(self) -> Prompt:
        """The first of the dataset, wherever the position is."""
        return self._prompts[0]

    @property
    def epoch(self) -> float:
        """Finished epochs, plus the fraction of the current one."""
        return self._epoch + self._position / len(self._prompts)

    @property
    def num_drawn(self) -> int:
        """Prompts that were drawn, each once however often it was drawn again."""
        return self._epoch * len(self._prompts) + self._position

    @property
    def has_again(self) -> bool:
        """Whether a prompt that was drawn and not used comes next."""
        return bool(self._again)

    def next_prompts(self, count: int) -> list[Prompt]:
        """The next `count` prompts. The position is then behind them."""
        return [self.draw().prompt for _ in range(count)]

    def draw(self) -> Drawn:
        """The next prompt. The position is then behind it."""
        if self._again:
            ordinal = self._again.popleft()
            epoch, position = divmod(ordinal, len(self._prompts))
            order = self._order if epoch == self._epoch else self._order_of(epoch)
            return Drawn(ordinal, self._prompts[order[position]])
        if self._position == len(self._order):
            self._epoch += 1
            self._position = 0
            self._order = self._order_of(self._epoch)
        drawn = Drawn(self.num_drawn, self._prompts[self._order[self._position]])
        self._position += 1
        return drawn

    def give_back(self, ordinals: Sequence[int]) -> None:
        """These prompts were drawn and are not used: they are drawn again before others."""
        self._again = deque(sorted([*ordinals, *self._again]))

    def state_dict(self, *, not_trained: Sequence[int] = ()) -> dict[str, Any]:
        """The position as JSON-like data, with what identifies the dataset and its order. The prompts with
        the ordinals `not_trained` are drawn and not used yet: a run that continues from here draws them
        first."""
        again = sorted([*not_trained, *self._again])
        return {
            "epoch": self._epoch,
            "position": self._position,
            "seed": self._seed,
            "is_shuffled": self._is_shuffled,
            "fingerprint": self._fingerprint,
            **({"again": again} if again else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position that `state_dict` returned.

        Raises UserError when the dataset, its shuffling or the seed has changed, because the position would
        then mean other prompts.
        """
        if state["fingerprint"] != self._fingerprint:
            raise UserError(
                "the dataset is not the one the checkpoint was made with: bring it back, or start a new job"
            )
        if (state["seed"], state["is_shuffled"]) != (self._seed, self._is_shuffled):
            raise UserError(
                "algorithm.seed or dataset.shuffle is not what the checkpoint was made with: "
                "set it back, or start a new job"
            )
        self._epoch = state["epoch"]
        self._position = state["position"]
        self._order = self._order_of(self._epoch)
        self._again = deque(state.get("again", ()))

    def _order_of(self, epoch: int) -> list[int]:
        """Indexes sorted by a hash of (seed, epoch, index). No version of a library changes this shuffle."""
        indexes = range(len(self._prompts))
        if not self._is_shuffled:
            return list(indexes)
        return sorted(
            indexes, key=lambda index: hashlib.sha256(struct.pack("<3q", self._seed, epoch, index)).digest()
        )


def _fingerprint(prompts: tuple[Prompt, ...]) -> str:
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(json.dumps([prompt.content, without_day(prompt.columns)], sort_keys=True).encode())
    return digest.hexdigest()
