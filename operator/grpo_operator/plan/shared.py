"""Policy: what the pods share exists before they do."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_operator.children.shared import config_map, is_up_to_date, service, tokens
from grpo_operator.kinds import PODS
from grpo_operator.observed import Observed
from grpo_operator.plan.draft import Draft, Stage


def provide_shared(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """ConfigMap and Services where they are missing, put before the pods. Colocated engines have neither a
    Service nor tokens, because nobody calls them.

    Secrets cannot be looked at, so the one with the tokens comes with every creation of a pod. New tokens
    are drawn only while no pod is there that knows others; after that the Secret is expected, because one
    made again would leave the new pods and the running ones with tokens that do not match, in silence.
    """
    if draft.stage is not Stage.ACTIVE or draft.run is None:
        return draft
    run = draft.run
    needed = []
    if run.has_rollout and any(child.kind == PODS for child in draft.create):
        needed.append(replace(tokens(run), is_expected=_is_known_to_a_pod(observed)))
    if run.names.config(run.revision) not in observed.config_names:
        needed.append(config_map(run))
    for role in Role if run.has_rollout else (Role.TRAINER,):
        desired = service(run, role)
        found = observed.services.get(desired.name)
        if found is None or not is_up_to_date(desired, found):
            needed.append(replace(desired, is_correction=found is not None))
    return replace(draft, create=(*needed, *draft.create))


def _is_known_to_a_pod(observed: Observed) -> bool:
    return any(not pod.is_over and not pod.is_deleting for pod in (*observed.trainers, *observed.rollouts))
