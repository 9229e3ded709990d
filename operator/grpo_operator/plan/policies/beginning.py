"""Policies: what this operator asks of a job before it begins. Each leaves it alone and says what a person
can do; a job that has started continues."""

from dataclasses import dataclass
from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_operator.observe.observed import Observed
from grpo_operator.permissions import Permissions, not_permitted
from grpo_operator.plan.draft import Draft, Policy


def require_network_policy(*, is_made: bool) -> Policy:
    """The policy for an operator that gives each job a NetworkPolicy, or none.

    The channels of vLLM between the pods of an engine, and those of Ray, carry pickles: a client of theirs
    runs code there. vLLM's ask for no token, and Ray's token travels in the clear. A job that has started
    has the NetworkPolicy that it got then.
    """

    def require(draft: Draft, observed: Observed, now: datetime) -> Draft:
        spec = observed.job.spec
        need = None if is_made or spec is None else _need(spec)
        if need is None:
            return draft
        why = (
            f"{need.field} needs the job's NetworkPolicy, because {need.because}, and this operator makes "
            "none: start it with --network-policies=true (networkPolicies.jobs=true of the chart), or create "
            f"the job anew with {need.instead}"
        )
        return draft.leaving_alone(ReasonMessage(Reason.NETWORK_POLICIES_OFF, why))

    return require


@dataclass(frozen=True)
class _Need:
    """A field that only a NetworkPolicy makes safe, why, and what to set where there is none."""

    field: str
    because: str
    instead: str


def _need(spec: GRPOJobSpec) -> _Need | None:
    if spec.rollout is not None and spec.rollout.nodes_per_replica > 1:
        return _Need(
            f"rollout.nodesPerReplica ({spec.rollout.nodes_per_replica})",
            "vLLM's channels between the pods of an engine ask for no token",
            "rollout.nodesPerReplica 1",
        )
    if spec.is_on_ray:
        return _Need(
            "colocated.executor (Ray)",
            "Ray unpickles what it is sent, and its token travels in the clear",
            "colocated.executor Processes",
        )
    return None


def require_permission(permissions: Permissions) -> Policy:
    """The policy for an operator that allows jobs this much."""

    def require(draft: Draft, observed: Observed, now: datetime) -> Draft:
        refusals = not_permitted(observed.job.spec, permissions) if observed.job.spec else []
        if not refusals:
            return draft
        why = f"{'; '.join(refusals)}. Or create the job anew without them"
        return draft.leaving_alone(ReasonMessage(Reason.NOT_PERMITTED, why))

    return require
