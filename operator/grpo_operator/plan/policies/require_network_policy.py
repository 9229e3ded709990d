"""Policy: a job whose pods nothing but a NetworkPolicy protects waits for an operator that makes one."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Policy, Stage


def require_network_policy(*, is_made: bool) -> Policy:
    """The policy for an operator that gives each job a NetworkPolicy, or none.

    The channels of vLLM between the pods of an engine carry pickles and ask for no token: whoever reaches
    them runs code there. A job that has started goes on, with the NetworkPolicy that it got then.
    """

    def require(draft: Draft, observed: Observed, now: datetime) -> Draft:
        spec = observed.job.spec
        has_started = draft.status.attempt > 0 or draft.stage is not Stage.ACTIVE
        if is_made or has_started or spec is None or spec.rollout is None or spec.rollout.num_nodes == 1:
            return draft
        why = (
            f"rollout.nodesPerReplica ({spec.rollout.num_nodes}) needs the job's NetworkPolicy, because "
            "vLLM's channels between the pods of an engine ask for no token, and this operator makes none: "
            "start it with --network-policies=true (networkPolicies.jobs=true of the chart), or create the "
            "job anew with rollout.nodesPerReplica 1"
        )
        return replace(draft, left_alone=ReasonMessage(Reason.NETWORK_POLICIES_OFF, why))

    return require
