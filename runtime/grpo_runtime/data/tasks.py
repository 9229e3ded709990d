"""The built-in tasks, small enough for builtin://tiny to learn from random weights on a CPU in minutes.

To add one, write its function and add a row to TASKS. `grpo_api.source.BUILTIN_TASKS` has the same names, and
a test compares them.
"""

import string
from collections.abc import Callable, Iterator
from itertools import product


def copy_task() -> Iterator[tuple[str, str]]:
    """`d=` -> `dddd`, for 16 letters. The easiest task: every position has the same right character."""
    for letter in string.ascii_lowercase[:16]:
        yield f"{letter}=", letter * 4


def reverse_task() -> Iterator[tuple[str, str]]:
    """`abc=` -> `cba`: the 64 words of three letters from a to d."""
    for word in product(string.ascii_lowercase[:4], repeat=3):
        yield f"{''.join(word)}=", "".join(reversed(word))


def add_task() -> Iterator[tuple[str, str]]:
    """`3+5=` -> `8`: the 55 sums of two digits that have one digit."""
    for left, right in product(range(10), repeat=2):
        if left + right < 10:
            yield f"{left}+{right}=", str(left + right)


def numbers_task() -> Iterator[tuple[str, None]]:
    """`0` to `9999`, without answers: agents make a task of each."""
    for number in range(10_000):
        yield str(number), None


TASKS: dict[str, Callable[[], Iterator[tuple[str, str | None]]]] = {
    "copy": copy_task,
    "reverse": reverse_task,
    "add": add_task,
    "numbers": numbers_task,
}
"""Tasks by the name after builtin://. Each yields (prompt, answer), always in the same order; None where
prompts have no answers."""
