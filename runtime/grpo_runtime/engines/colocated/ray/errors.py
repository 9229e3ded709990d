"""How Ray can fail."""

from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.errors import KnownError


class RayLostError(KnownError):
    """The Ray node of a pod did not start, or has ended: the next attempt starts another one."""

    exit_code = ExitCode.TRANSIENT
