"""The game of `make bench-learning` whose reward comes at its end."""

from collections.abc import Callable, Sequence
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_learning.guessing_game import HIGHER, LOWER, NO_NUMBER, OPENING, hint, play

NUM_GAMES = 700


class Player:
    """A client, which is a fake: its policy says what `says` makes of the messages of the user."""

    def __init__(self, says: Callable[[Sequence[str]], str]) -> None:
        self.chat = SimpleNamespace(completions=self)
        self.num_calls = 0
        self._says = says

    async def create(self, *, messages: Sequence[Any], **_: Any) -> Any:
        self.num_calls += 1
        told = [message["content"] for message in messages if message["role"] == "user"]
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=self._says(told)))])


def halves(told: Sequence[str]) -> str:
    low, high = 1, 7
    for word in told[1:]:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if word == HIGHER else (low, middle - 1)
    return str((low + high) // 2)


async def mean_reward(says: Callable[[Sequence[str]], str]) -> float:
    return fmean([await play(Player(says), f"{number}") for number in range(NUM_GAMES)])


async def test_who_halves_what_is_left_always_wins_and_who_does_not_listen_finds_three_of_seven() -> None:
    assert await mean_reward(halves) == 1.0
    assert await mean_reward(lambda told: "246"[len(told) - 1]) == pytest.approx(3 / 7, abs=0.05)
    assert await mean_reward(lambda told: "") == 0.0


async def test_a_game_is_the_same_each_time_and_ends_with_the_right_guess() -> None:
    games = [Player(halves) for _ in range(20)]
    rewards = [await play(game, "5") for game in games]
    assert set(rewards) == {1.0} and len({game.num_calls for game in games}) == 1
    asked: list[str] = []
    await play(Player(lambda told: asked.extend(told) or "x"), "5")
    assert asked[:3] == [OPENING, OPENING, NO_NUMBER]


def test_a_guess_is_told_where_the_number_is() -> None:
    assert [hint(guess, 4) for guess in ("2", "7", "42", "", "four", "-1", "²")] == [
        *(HIGHER, LOWER, LOWER),
        *[NO_NUMBER] * 4,
    ]
