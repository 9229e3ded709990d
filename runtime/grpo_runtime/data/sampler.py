"""Which prompts come next, epoch after epoch, and the position that a checkpoint holds."""

import hashlib
import json
import struct
from typing import Any

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.reasoning_gym import without_day
from grpo_runtime.errors import UserError


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
        self._fingerprint = _fingerprint(prompts)

    @property
    def first_row(self) -> Prompt:
        """The first of the dataset, wherever the position is."""
        return self._prompts[0]

    @property
    def epoch(self) -> float:
        """Finished epochs, plus the fraction of the current one."""
        return self._epoch + self._position / len(self._prompts)

    def next_prompts(self, count: int) -> list[Prompt]:
        """The next `count` prompts. The position is then behind them."""
        chosen = []
        for _ in range(count):
            if self._position == len(self._order):
                self._epoch += 1
                self._position = 0
                self._order = self._order_of(self._epoch)
            chosen.append(self._prompts[self._order[self._position]])
            self._position += 1
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """The position as JSON-like data, with what identifies the dataset and its order."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "seed": self._seed,
            "is_shuffled": self._is_shuffled,
            "fingerprint": self._fingerprint,
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
