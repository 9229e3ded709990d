"""Calls of agents that are refused. `server` answers each with its status."""

from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.engines.serve.http import BadRequestError
from grpo_runtime.errors import KnownError


class BadFieldError(BadRequestError):
    """A request that is not served. `field` names what is wrong in it."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field


class LimitReachedError(KnownError):
    """A call goes beyond a limit of its session, which gets no other one."""

    exit_code = ExitCode.USER_ERROR


class UnknownKeyError(Exception):
    """No open session has this key."""
