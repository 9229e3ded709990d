"""Policy: a job's pods are reached by each other, and by others only for reports."""

from dataclasses import replace
from datetime import datetime

from grpo_operator.children.network_policy import network_policy, says_the_same
from grpo_operator.observed import Observed
from grpo_operator.plan.draft import Draft, Policy, Stage


def close_ports(*, is_wanted: bool) -> Policy:
    """A policy that makes or puts right the job's NetworkPolicy, before the pods. Not wanted, it does
    nothing: one that is there stays until its job goes."""

    def decide(draft: Draft, observed: Observed, now: datetime) -> Draft:
        if not is_wanted or draft.stage is not Stage.ACTIVE or draft.run is None:
            return draft
        desired = network_policy(draft.run)
        found = observed.network_policies.get(desired.name)
        if found is not None and says_the_same(desired, found):
            return draft
        child = replace(desired, is_correction=found is not None)
        return replace(draft, create=(child, *draft.create))

    return decide
