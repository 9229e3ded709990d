"""How calls to an engine over HTTP can fail, beyond what `rollouts.errors` has."""

from grpo_runtime.rollouts.errors import EngineError


class EngineRefusedError(EngineError):
    """The engine answered with an error; `status` is its HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class EngineConflictError(EngineRefusedError):
    """HTTP 409: the engine belongs to a later attempt than ours, or is another process than we meant.
    Only the former ends an attempt."""

    is_superseded = True


class BadAnswerError(Exception):
    """An engine answered something that is not a whole, versioned completion of the newest weights."""
