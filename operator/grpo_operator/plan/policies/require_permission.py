"""Policy: a job waits for an operator that allows what it asks for."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_operator.observe.observed import Observed
from grpo_operator.permissions import Permissions, not_permitted
from grpo_operator.plan.draft import Draft, Policy, Stage


def require_permission(permissions: Permissions) -> Policy:
    """The policy for an operator that allows this much. A job that has started goes on."""

    def require(draft: Draft, observed: Observed, now: datetime) -> Draft:
        spec = observed.job.spec
        has_started = draft.status.attempt > 0 or draft.stage is not Stage.ACTIVE
        if spec is None or has_started or draft.left_alone:
            return draft
        refusals = not_permitted(spec, permissions)
        if not refusals:
            return draft
        why = f"{'; '.join(refusals)}. Or create the job anew without them"
        return replace(draft, left_alone=ReasonMessage(Reason.NOT_PERMITTED, why))

    return require
