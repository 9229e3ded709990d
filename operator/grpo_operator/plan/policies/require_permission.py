"""Policy: a job waits for an operator that allows what its pods ask for."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Policy, Stage
from grpo_operator.settings import PodPermissions


def require_permission(permissions: PodPermissions) -> Policy:
    """The policy for an operator that allows this much.

    Whoever may create GRPOJobs need not be allowed to create pods, and a ServiceAccount or the network of a
    node may mean more than a pod alone. A job that has started goes on.
    """

    def require(draft: Draft, observed: Observed, now: datetime) -> Draft:
        spec = observed.job.spec
        has_started = draft.status.attempt > 0 or draft.stage is not Stage.ACTIVE
        if spec is None or has_started or draft.left_alone:
            return draft
        refusals = _not_permitted(spec, permissions)
        if not refusals:
            return draft
        why = f"{'; '.join(refusals)}. Or create the job anew without them"
        return replace(draft, left_alone=ReasonMessage(Reason.NOT_PERMITTED, why))

    return require


def _not_permitted(spec: GRPOJobSpec, permissions: PodPermissions) -> list[str]:
    """What the job asks for without permission, each with who can give it."""
    found = []
    for role, pods in (("trainer", spec.trainer), ("rollout", spec.rollout)):
        settings = pods.pod_template.spec if pods is not None and pods.pod_template is not None else None
        if settings is None:
            continue
        account = settings.service_account_name
        if account is not None and account not in permissions.service_accounts:
            found.append(
                f"{role}.podTemplate.spec.serviceAccountName ({account}) is not one that this operator "
                "allows: whoever installs it can add it to podTemplates.serviceAccounts of the chart "
                f"(--allow-service-account={account})"
            )
        if settings.host_network and not permissions.has_host_network:
            found.append(
                f"{role}.podTemplate.spec.hostNetwork is not allowed by this operator: whoever installs it "
                "can set podTemplates.hostNetwork=true of the chart (--allow-host-network=true)"
            )
    return found
