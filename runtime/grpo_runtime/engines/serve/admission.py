"""Which attempt's trainer an engine accepts calls from, and whether the engine may serve."""

from dataclasses import dataclass, field

from grpo_api.contract.versions import PolicyVersion


class RefusedCallerError(Exception):
    """The caller is of an attempt that is over, or means an earlier process of this engine."""


@dataclass
class EngineAdmission:
    """What one engine process remembers of its callers; a new process starts empty.

    `instance` is unique to the process. An engine is ready from its first admission until it is revoked
    or a higher attempt calls it: a weight update in between does not change that.
    """

    instance: str
    name: str
    highest_attempt: int = 0
    admitted: PolicyVersion | None = field(default=None)

    @property
    def is_ready(self) -> bool:
        """Whether a trainer has admitted this engine to its fleet."""
        return self.admitted is not None

    def note_attempt(self, attempt: int) -> None:
        """Note a call from a trainer of `attempt`.

        Raises RefusedCallerError when a later attempt has called before.
        """
        if attempt < self.highest_attempt:
            raise RefusedCallerError(
                f"attempt {attempt} is over: engine {self.name} belongs to attempt {self.highest_attempt}"
            )
        if attempt > self.highest_attempt:
            self.highest_attempt = attempt
            self.admitted = None

    def require_instance(self, expected: str | None) -> None:
        """Raises RefusedCallerError when the caller means another process than this one."""
        if expected is not None and expected != self.instance:
            raise RefusedCallerError(
                f"engine {self.name} was restarted: this is instance {self.instance}, not {expected}"
            )

    def admit(self, version: PolicyVersion) -> None:
        """Let the engine serve; its weights are those of `version`."""
        self.admitted = version

    def revoke(self) -> None:
        """Take the engine out of service until it is admitted again."""
        self.admitted = None
