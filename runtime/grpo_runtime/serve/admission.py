"""Which trainer an engine listens to, and whether it may serve."""

from dataclasses import dataclass, field

from grpo_api.contract.versions import PolicyVersion


class FencedError(Exception):
    """The caller belongs to the past: a newer attempt has spoken, or it means an earlier process."""


@dataclass
class Admission:
    """The memory of one engine process; it starts empty with the process.

    `instance` is unique to the process. An engine is ready from its first admission until it is revoked
    or a higher attempt speaks to it: a weight update in between does not change that.
    """

    instance: str
    name: str
    highest_attempt: int = 0
    admitted: PolicyVersion | None = field(default=None)

    @property
    def is_ready(self) -> bool:
        """Whether a trainer has admitted this engine to its fleet."""
        return self.admitted is not None

    def hear(self, attempt: int) -> None:
        """Note that a trainer of `attempt` speaks.

        Raises FencedError when a later attempt has spoken before.
        """
        if attempt < self.highest_attempt:
            raise FencedError(
                f"attempt {attempt} is over: engine {self.name} belongs to attempt {self.highest_attempt}"
            )
        if attempt > self.highest_attempt:
            self.highest_attempt = attempt
            self.admitted = None

    def require_instance(self, expected: str | None) -> None:
        """Raises FencedError when the caller means another process than this one."""
        if expected is not None and expected != self.instance:
            raise FencedError(
                f"engine {self.name} was restarted: this is instance {self.instance}, not {expected}"
            )

    def admit(self, version: PolicyVersion) -> None:
        """Let the engine serve; its weights are those of `version`."""
        self.admitted = version

    def revoke(self) -> None:
        """Take the engine out of service until it is admitted again."""
        self.admitted = None
