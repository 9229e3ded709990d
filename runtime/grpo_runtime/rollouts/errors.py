"""How rollout engines can fail, in either mode."""

from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.errors import KnownError


class RolloutLostError(KnownError):
    """No engine was left for longer than the stated wait."""

    exit_code = ExitCode.ROLLOUT_LOST


class EngineError(KnownError):
    """One engine failed one call; the message names the engine and what it said."""

    exit_code = ExitCode.TRANSIENT


class EngineGoneError(EngineError):
    """The engine cannot be reached, or another process answers at its address."""


class EngineTimeoutError(EngineError):
    """The engine was reached and did not answer before the deadline."""
