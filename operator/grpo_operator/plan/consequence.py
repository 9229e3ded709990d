"""The one place that decides what follows from a failure: another attempt or not, and whether it counts."""

from dataclasses import dataclass

from grpo_api.contract.exit_codes import ExitCode, is_uncounted
from grpo_api.contract.reasons import Reason
from grpo_operator.observe.observed import ContainerTermination
from grpo_operator.plan.termination import is_out_of_memory, policy_of, termination_message_of


@dataclass(frozen=True)
class Consequence:
    """`is_retried`: another attempt follows. `is_counted`: it uses up one of failurePolicy.maxRestarts."""

    is_retried: bool
    is_counted: bool


def consequence_of(
    termination: ContainerTermination | None, *, is_disruption: bool, has_worked: bool = False
) -> Consequence:
    """What follows when a container ended so, or hangs or was evicted for its own storage (None), or the
    cluster took its pod away. `has_worked` as in `exit_policy`.

    The exit-code table decides, with three exceptions. A disruption is retried and never counted, whatever
    the exit code of the container. A trainer that was asked to stop (143) although its pod was not taken away
    is counted: most likely its own liveness probe stopped it, and uncounted that could repeat without limit.
    For the same reason an eviction that the pod caused by its own use of storage is no disruption. One that
    could not reach the Hub is not counted. The reason in its termination message tells, which our own process
    writes as it chooses its exit code.
    """
    if is_disruption:
        return Consequence(is_retried=True, is_counted=False)
    if termination is None:
        return Consequence(is_retried=True, is_counted=True)
    policy = policy_of(termination, has_worked=has_worked)
    if _is_uncounted(termination):
        return Consequence(is_retried=True, is_counted=False)
    was_asked_to_stop = termination.exit_code == ExitCode.TERMINATED
    return Consequence(is_retried=policy.is_retried, is_counted=policy.is_counted or was_asked_to_stop)


def without_room(consequence: Consequence, *, exit_code: int | None, reason: str) -> Consequence:
    """What follows for an attempt that never had all the nodes it needs: that its trainer gave up waiting for
    engines, or a rank for the others, is not counted."""
    has_given_up = exit_code == ExitCode.ROLLOUT_LOST or reason == Reason.PEER_LOST
    is_counted = consequence.is_counted and not has_given_up
    return Consequence(is_retried=consequence.is_retried, is_counted=is_counted)


def _is_uncounted(termination: ContainerTermination) -> bool:
    written = termination_message_of(termination)
    if written is None or is_out_of_memory(termination):
        return False
    return is_uncounted(termination.exit_code, reason=written.reason)
