"""Conditions of a status: read them, set them, and keep their transition time while nothing changes."""

from dataclasses import dataclass
from datetime import datetime

from grpo_api.v1alpha1.status import Condition, ConditionStatus, ConditionType, GRPOJobStatus

LONGEST_MESSAGE = 1024


@dataclass(frozen=True)
class ConditionState:
    """What a condition says."""

    is_met: bool
    reason: str
    message: str = ""

    @classmethod
    def of(cls, known: Condition) -> "ConditionState":
        """What this condition says already."""
        return cls(known.status == ConditionStatus.TRUE, known.reason, known.message)


def condition(status: GRPOJobStatus, kind: ConditionType) -> Condition | None:
    """The condition of this type, if it was ever written."""
    return next((c for c in status.conditions if c.type == kind), None)


def is_true(status: GRPOJobStatus, kind: ConditionType) -> bool:
    """Whether the condition is True."""
    found = condition(status, kind)
    return found is not None and found.status == ConditionStatus.TRUE


def with_condition(
    status: GRPOJobStatus,
    kind: ConditionType,
    state: ConditionState,
    *,
    generation: int,
    now: datetime,
    is_new_transition: bool = False,
) -> GRPOJobStatus:
    """The status with this condition set. Conditions keep the order of ConditionType; those of types that
    only a newer release knows stay as they are, behind the others.

    `is_new_transition` sets a new transition time although the condition stays True or False.
    """
    value = ConditionStatus.TRUE if state.is_met else ConditionStatus.FALSE
    known = condition(status, kind)
    since = known.last_transition_time if known and known.status == value and not is_new_transition else now
    new = Condition(
        type=kind,
        status=value,
        reason=state.reason,
        message=state.message[:LONGEST_MESSAGE],
        last_transition_time=since,
        observed_generation=generation,
    )
    others = {c.type: c for c in status.conditions} | {kind: new}
    of_ours = [others.pop(kind) for kind in ConditionType if kind in others]
    return status.model_copy(update={"conditions": (*of_ours, *others.values())})
