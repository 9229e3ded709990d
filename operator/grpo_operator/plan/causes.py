"""Why an attempt is over: every sign of trouble as a cause, and the order that puts causes above effects.

When one process of a gang dies the others die of it a moment later, with broken pipes and exit code 1 or
because somebody stops them. The sentence in status must name the first, not the loudest.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum

from pydantic import ValidationError

from grpo_api.contract.endpoints import ROLLOUT_CONTAINER
from grpo_api.contract.environment import Role
from grpo_api.contract.exit_codes import PEER_LOST_REASON, ExitCode, exit_policy
from grpo_api.contract.progress import TerminationMessage
from grpo_operator.observed import Ending, PodView

OOM_REASON = "OOMKilled"
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a container whose command its node could not run, with an exit code that node made up."""
_LOG_TAIL = 600
_WORD = re.compile(r"^[A-Za-z][A-Za-z0-9]{0,252}$")
_EFFECT = re.compile(
    r"broken pipe|connection (reset|closed|refused)|closed by (the )?(remote )?peer|socket (timeout|closed)",
    re.I,
)


class Rank(IntEnum):
    """How likely this is what started it; lower is likelier."""

    CERTAIN = 0
    """Says itself what is wrong: the user's error, no more data, a corrupt checkpoint, out of memory."""
    DISRUPTION = 1
    """The cluster or a person took the pod away."""
    ERROR = 2
    """Ended by itself."""
    EFFECT = 3
    """Lost its peers, or was asked to stop."""


@dataclass(frozen=True)
class Cause:
    """One sign of trouble. `is_retried` and `is_counted` as in the exit-code table."""

    rank: Rank
    role: Role
    pod: str
    node: str
    container: str
    reason: str
    message: str
    exit_code: int | None
    finished_at: datetime | None
    is_retried: bool
    is_counted: bool


_LATEST = datetime.max.replace(tzinfo=UTC)


def first_cause(causes: Iterable[Cause]) -> Cause | None:
    """The cause to show and to act on: by rank, then by time, then by name."""
    return min(causes, key=lambda c: (c.rank, c.finished_at or _LATEST, c.pod), default=None)


def trainer_causes(pods: Iterable[PodView]) -> list[Cause]:
    """What is wrong with the trainer pods of one attempt."""
    found = []
    for pod in pods:
        if is_done(pod):
            continue
        # An end that names its own cause counts even if the pod is being deleted by now.
        own = _from_ending(pod, pod.ending, role=Role.TRAINER) if pod.ending else None
        if own and own.rank is Rank.CERTAIN:
            found.append(own)
        elif pod.disruption:
            found.append(_disrupted(pod))
        elif own:
            found.append(own)
        elif pod.phase == "Failed":
            found.append(_failed_without_word(pod))
    return found


def is_done(pod: PodView) -> bool:
    """Whether this pod's supervisor says that every step is done.

    Its word stands even where the reason is OOMKilled: cgroup v1 writes that whichever process of the
    container was killed, also when the supervisor came to its end without it.
    """
    return pod.ending is not None and pod.ending.exit_code == ExitCode.DONE


def vanished_causes(names: Iterable[str]) -> list[Cause]:
    """Trainer pods that were there and are gone without a trace."""
    return [
        _disruption(
            pod=name,
            reason="PodDeleted",
            message=f"trainer pod {name} is gone: it was deleted or its node was removed",
        )
        for name in names
    ]


def engine_causes(pods: Iterable[PodView]) -> list[Cause]:
    """Rollout pods that say that a retry is no use; other failures of engines are no matter of the job."""
    found = []
    for pod in pods:
        for ending in (pod.ending, pod.last_ending):
            if ending is not None and ending.exit_code == ExitCode.USER_ERROR:
                found.append(_from_ending(pod, ending, role=Role.ROLLOUT))
                break
    return found


def describe(ending: Ending) -> tuple[str, str]:
    """(reason, message) of a container's end, from its termination message or its last log lines."""
    policy = exit_policy(ending.exit_code)
    try:
        told = TerminationMessage.model_validate_json(ending.message)
    except ValidationError:
        told = None
    if ending.reason == OOM_REASON:
        what = f" ({told.message})" if told and told.message else ""
        section = "rollout" if ending.container == ROLLOUT_CONTAINER else "trainer"
        fix = f"raise {section}.resources.limits.memory or make the work smaller"
        return OOM_REASON, f"the container {ending.container} ran out of memory: {fix}{what}"
    if told:
        return (told.reason if _WORD.match(told.reason) else policy.reason), told.message
    tail = ending.message.strip()[-_LOG_TAIL:]
    if ending.reason in _NOT_STARTED:
        return ending.reason, f"the container cannot be started: is spec.image a runtime image? {tail}"
    ended = f"the container ended with exit code {ending.exit_code} ({policy.meaning})"
    return policy.reason, f"{ended}; last words: {tail}" if tail else ended


def _from_ending(pod: PodView, ending: Ending, *, role: Role) -> Cause:
    reason, message = describe(ending)
    is_oom = ending.reason == OOM_REASON
    policy = exit_policy(ExitCode.KILLED if is_oom else ending.exit_code)
    if is_oom or not policy.is_retried:
        rank = Rank.CERTAIN
    elif ending.exit_code == ExitCode.TERMINATED or reason == PEER_LOST_REASON or _EFFECT.search(message):
        rank = Rank.EFFECT
    else:
        rank = Rank.ERROR
    return Cause(
        rank=rank,
        role=role,
        pod=pod.name,
        node=pod.node,
        container=ending.container,
        reason=reason,
        message=message,
        exit_code=ending.exit_code,
        finished_at=ending.finished_at,
        is_retried=policy.is_retried,
        is_counted=policy.is_counted,
    )


def _disrupted(pod: PodView) -> Cause:
    assert pod.disruption is not None
    return _disruption(
        pod=pod.name,
        node=pod.node,
        reason=pod.disruption.reason,
        message=f"trainer pod {pod.name}: {pod.disruption.message}",
        ending=pod.ending,
    )


def _failed_without_word(pod: PodView) -> Cause:
    """Failed without a container's end: the node gave it up before or while starting it."""
    trouble = pod.trouble.message if pod.trouble else "its node reported no reason"
    return _disruption(
        pod=pod.name,
        node=pod.node,
        reason=pod.trouble.reason if pod.trouble else "PodFailed",
        message=f"trainer pod {pod.name} failed without running: {trouble}",
    )


def _disruption(
    *, pod: str, reason: str, message: str, node: str = "", ending: Ending | None = None
) -> Cause:
    return Cause(
        rank=Rank.DISRUPTION,
        role=Role.TRAINER,
        pod=pod,
        node=node,
        container=ending.container if ending else "",
        reason=reason,
        message=message,
        exit_code=ending.exit_code if ending else None,
        finished_at=ending.finished_at if ending else None,
        is_retried=True,
        is_counted=False,
    )
