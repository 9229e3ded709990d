"""How talking to rollout engines can fail."""


class RolloutLostError(Exception):
    """No engine was left for longer than the stated wait. Ends the trainer with exit code 43."""


class EngineError(Exception):
    """One engine failed one call; the message names the engine and what it said."""


class EngineGoneError(EngineError):
    """The engine cannot be reached, or another process answers at its address."""


class EngineTimeoutError(EngineError):
    """The engine was reached and did not answer before the deadline."""


class EngineRefusedError(EngineError):
    """The engine answered with an error; `status` is its HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class FencedOffError(EngineRefusedError):
    """The engine belongs to a later attempt than ours, or to another process than we meant."""
