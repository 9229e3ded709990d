"""A game of several turns whose reward comes only at its end: to find a number by what its guesses are told.

A player that halves what is left finds each of the seven numbers with three guesses. One that does not listen
finds three of them.
"""

import random
from typing import Any

HIGHEST, MOST_GUESSES = 7, 3
OPENING, HIGHER, LOWER, NO_NUMBER = "Guess a number.", "higher", "lower", "?"


async def play(client: Any, prompt: str) -> float:
    """One game, in a job without a dataset: its number is drawn by the prompt, which the policy does not
    see. Episodes of a group have the same one."""
    hidden = random.Random(int(prompt)).randint(1, HIGHEST)
    messages: list[Any] = [{"role": "user", "content": OPENING}]
    for _ in range(MOST_GUESSES):
        answer = await client.chat.completions.create(model="policy", messages=messages)
        guess = answer.choices[0].message.content
        if guess == str(hidden):
            return 1.0
        messages += [
            {"role": "assistant", "content": guess},
            {"role": "user", "content": hint(guess, hidden)},
        ]
    return 0.0


def hint(guess: str, hidden: int) -> str:
    """What a wrong guess is told."""
    if not (guess.isascii() and guess.isdigit()):
        return NO_NUMBER
    return HIGHER if int(guess) < hidden else LOWER
