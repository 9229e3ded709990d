"""Tools of the tests, as users write them."""

import asyncio
import threading

MEETS = threading.Event()


class Counter:
    """A number that is counted up to `goal`."""

    def __init__(self):
        self.count = 0
        self.threads = []

    def reset(self, goal, prompt):
        """Begin at zero."""
        self.goal = goal
        self.threads.append(threading.get_ident())
        return f" Count to {goal}."

    def get_reward(self):
        """Whether the goal is reached."""
        assert set(self.threads) == {threading.get_ident()}
        return float(self.count == self.goal)

    def up(self, by: int) -> int:
        """Count on.

        Args:
            by: How far.
        """
        self.threads.append(threading.get_ident())
        self.count += by
        return self.count

    async def later(self) -> dict:
        """Count on by one, after a while."""
        await asyncio.sleep(0)
        self.count += 1
        return {"count": self.count}

    def breaks(self) -> str:
        """Does not work."""
        raise OSError("the disk is full")

    def waits(self) -> str:
        """Wait for the other episode."""
        assert MEETS.wait(30)
        return "met"

    async def meets(self) -> str:
        """Let the other episode go on."""
        MEETS.set()
        return "met"

    def _hidden(self):
        pass


class Judged(Counter):
    """Its reward comes from elsewhere."""

    async def get_reward(self):
        await asyncio.sleep(0)
        return 0.25


class TellsItsState(Counter):
    def get_reward(self):
        return {"reward": 0.5, "state": {"count": self.count}}


class FailsAtReset(Counter):
    def reset(self):
        raise ConnectionError("no game server")


class HasNoNumber(Counter):
    def get_reward(self):
        return "good"


class NeedsMore(Counter):
    def reset(self, goal, level):
        pass


class NeedsArguments(Counter):
    def __init__(self, size):
        self.size = size


class HasNoTools:
    def reset(self):
        pass


class HasStaticTool:
    @staticmethod
    def double(a: int) -> int:
        """Double a number.

        Args:
            a: The number.
        """
        return 2 * a


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


async def echo(text: str) -> str:
    """Say it again.

    Args:
        text: What to say.
    """
    return text


def undescribed(a: int) -> int:
    return a


def untyped(a):
    """Has a text.

    Args:
        a: A number.
    """
    return a


def _plus(a: int) -> int:
    """Has the name of another one.

    Args:
        a: A number.
    """
    return a


_plus.__name__ = "add"
BOTH = [add, echo]
TWICE = [add, _plus]
NUMBER = 3
