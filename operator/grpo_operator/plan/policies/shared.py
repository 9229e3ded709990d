"""Policies: what the pods share, and what protects them, exists before they do."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_operator.children.config import config_map, content_digest, tokens
from grpo_operator.children.network import (
    is_network_policy_up_to_date,
    is_service_up_to_date,
    network_policy,
    service,
)
from grpo_operator.children.trainer import needs_service
from grpo_operator.cluster.kinds import PODS, KubeObject
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Policy

_JUST_MADE_SECONDS = 10.0
"""How long the Secret is taken to be there because this process has made it."""


def provide_shared(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Put the ConfigMap, Services and Secret that are missing before the pods, and correct a Service that is
    there. Colocated engines have no Service, because nothing calls them, and a trainer of one pod has none
    either.

    The operator may not read Secrets, so the one with the tokens comes with every creation of a pod. New
    tokens are made only while no living pod has others; after that the Secret must be there. One that is made
    again would give the new pods tokens that the running ones refuse, and nothing would say so. Whether it is
    there is asked each time, except for the job's first pods within seconds of its creation by this process.
    """
    snapshot = draft.snapshot
    needed = []
    if snapshot.needs_tokens and any(child.kind == PODS for child in draft.create):
        has_living_pod = any(pod.is_alive for pod in (*observed.trainers, *observed.rollouts))
        if not (has_living_pod and _has_just_made_tokens(observed, now)):
            needed.append(replace(tokens(snapshot), is_expected=has_living_pod))
    if snapshot.names.config(snapshot.revision) not in observed.config_names:
        config = config_map(snapshot)
        # the status is written before it: whatever is found later under this name is held to that
        draft = draft.with_status(config_digest=content_digest(config.body))
        needed.append(config)
    is_needed = {Role.TRAINER: needs_service(snapshot), Role.ROLLOUT: snapshot.has_rollout}
    for role in Role:
        desired = service(snapshot, role)
        found = observed.services.get(desired.name)
        if found is not None and not is_service_up_to_date(desired, found):
            needed.append(replace(desired, is_correction=True))
        elif found is None and is_needed[role]:
            needed.append(desired)
    return replace(draft, create=(*needed, *draft.create))


def provide_network_policy(*, is_wanted: bool, reports_from: Sequence[KubeObject] | None) -> Policy:
    """A policy that creates or corrects the job's NetworkPolicy, before the pods: only the job's own pods
    reach its pods, except for reports. Where none is wanted it does nothing: one that exists stays until its
    job goes."""

    def provide(draft: Draft, observed: Observed, now: datetime) -> Draft:
        if not is_wanted:
            return draft
        desired = network_policy(draft.snapshot, reports_from=reports_from)
        found = observed.network_policies.get(desired.name)
        if found is not None and is_network_policy_up_to_date(desired, found):
            return draft
        child = replace(desired, is_correction=found is not None)
        return replace(draft, create=(child, *draft.create))

    return provide


def _has_just_made_tokens(observed: Observed, now: datetime) -> bool:
    made_at, is_first = observed.remembered.tokens_made_at, not observed.remembered.highest_incarnations
    return is_first and made_at is not None and (now - made_at).total_seconds() < _JUST_MADE_SECONDS
