"""Policy: what the pods share exists before they do."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_operator.children.config import config_map, content_digest
from grpo_operator.children.shared import is_up_to_date, service, tokens
from grpo_operator.children.trainer import needs_service
from grpo_operator.cluster.kinds import PODS
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Stage

_JUST_MADE_SECONDS = 10.0
"""How long the Secret is taken to be there because this process has made it."""


def provide_shared(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """ConfigMap and Services where they are missing, put before the pods. Colocated engines have no
    Service, because nothing calls them, and tokens only with Ray; a trainer of one pod has no Service either.
    One that is there is put right.

    The operator may not read Secrets, so the one with the tokens comes with every creation of a pod. New
    tokens are made only while no living pod knows others; after that the Secret must be there. One made
    again would give the new pods tokens that the running ones refuse, and nothing would say so. It is asked
    for, but for the job's first pods seconds after this process made it.
    """
    frozen = draft.frozen
    if draft.stage is not Stage.ACTIVE or frozen is None:
        return draft
    needed = []
    if frozen.needs_tokens and any(child.kind == PODS for child in draft.create):
        has_living_pod = any(pod.is_alive for pod in (*observed.trainers, *observed.rollouts))
        if not (has_living_pod and _has_just_made_tokens(observed, now)):
            needed.append(replace(tokens(frozen), is_expected=has_living_pod))
    if frozen.names.config(frozen.revision) not in observed.config_names:
        config = config_map(frozen)
        # the status is written before it: whatever is found later under this name is held to that
        draft = draft.with_status(config_digest=content_digest(config.body))
        needed.append(config)
    is_needed = {Role.TRAINER: needs_service(frozen), Role.ROLLOUT: frozen.has_rollout}
    for role in Role:
        desired = service(frozen, role)
        found = observed.services.get(desired.name)
        if found is not None and not is_up_to_date(desired, found):
            needed.append(replace(desired, is_correction=True))
        elif found is None and is_needed[role]:
            needed.append(desired)
    return replace(draft, create=(*needed, *draft.create))


def _has_just_made_tokens(observed: Observed, now: datetime) -> bool:
    made_at, is_first = observed.remembered.tokens_made_at, not observed.remembered.highest_incarnations
    return is_first and made_at is not None and (now - made_at).total_seconds() < _JUST_MADE_SECONDS
