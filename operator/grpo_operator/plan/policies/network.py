"""Policy: only a job's own pods reach its pods, except for reports."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from grpo_operator.children.network_policy import is_up_to_date, network_policy
from grpo_operator.cluster.kinds import KubeObject
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Policy, Stage


def provide_network_policy(*, is_wanted: bool, reports_from: Sequence[KubeObject] | None) -> Policy:
    """A policy that creates or corrects the job's NetworkPolicy, before the pods. Where none is wanted it
    does nothing: one that exists stays until its job goes."""

    def provide(draft: Draft, observed: Observed, now: datetime) -> Draft:
        if not is_wanted or draft.stage is not Stage.ACTIVE or draft.frozen is None:
            return draft
        desired = network_policy(draft.frozen, reports_from=reports_from)
        found = observed.network_policies.get(desired.name)
        if found is not None and is_up_to_date(desired, found):
            return draft
        child = replace(desired, is_correction=found is not None)
        return replace(draft, create=(child, *draft.create))

    return provide
