"""From the cache to one frozen snapshot of a job."""

from datetime import datetime
from typing import Any

from pydantic import ValidationError

from grpo_api.problems import problems_of
from grpo_api.v1alpha1.job import ObjectMeta
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.cache import Cache, Key
from grpo_operator.children.shared import frozen_spec
from grpo_operator.kinds import Manifest
from grpo_operator.memory import Memory
from grpo_operator.names import Names, rollout_position, trainer_position
from grpo_operator.observed import JobView, Observed, PodView
from grpo_operator.plan.causes import trainer_causes
from grpo_operator.pod_view import pod_view


class UnreadableStatusError(Exception):
    """A job's status was written by another release; acting on a guess could break a run."""


def observe(cache: Cache, key: Key, memory: Memory, *, now: datetime) -> Observed | None:
    """The job as it is known now, or None when there is no such job.

    Notes in `memory` when a failing pod was first seen and how the attempts went.
    Raises UnreadableStatusError.
    """
    item = cache.job(key)
    if item is None:
        return None
    job = job_view(item)
    names = Names.of(job=job.name, uid=job.uid)
    trainers, rollouts = _pods(cache, uid=job.uid)
    configs = {config["metadata"]["name"]: config for config in cache.config_maps(job.uid)}
    frozen = configs.get(names.config(job.status.revision)) if job.status.revision else None
    current = [pod for pod in trainers if pod.position[0] == job.status.attempt]
    run_spec, frozen_problem = _frozen(frozen) if frozen else (None, "")
    is_failing = bool(trainer_causes(current))
    heard = memory.heard(key, uid=job.uid, attempt=job.status.attempt)
    return Observed(
        job=job,
        trainers=trainers,
        rollouts=rollouts,
        highest_incarnations=memory.highest_incarnations(
            key, uid=job.uid, seen=(pod.position for pod in rollouts)
        ),
        services={service["metadata"]["name"]: service for service in cache.services(job.uid)},
        network_policies={found["metadata"]["name"]: found for found in cache.network_policies(job.uid)},
        config_names=frozenset(configs),
        frozen_spec=run_spec,
        frozen_problem=frozen_problem,
        progress=heard.progress,
        complaint=heard.complaint,
        is_news=heard.is_news,
        signs=heard.signs,
        failures_in_a_row=memory.failures_in_a_row(key, job.status, now=now),
        failing_since=memory.failing_since(key, attempt=job.status.attempt, is_failing=is_failing, now=now),
        refusal=memory.refusal(key),
    )


def job_view(item: Manifest) -> JobView:
    """A job object as the planner sees it. Raises UnreadableStatusError."""
    meta = ObjectMeta.from_object(item["metadata"])
    spec, problem, is_skewed = _spec(item.get("spec", {}))
    try:
        status = GRPOJobStatus.from_object(item.get("status") or {})
    except ValidationError as error:
        raise UnreadableStatusError(
            f"the status of GRPOJob {meta.namespace}/{meta.name} was written by another release of the "
            f"operator ({_sentence(error, at='status')}): run the newer release"
        ) from error
    return JobView(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        generation=meta.generation,
        resource_version=item["metadata"]["resourceVersion"],
        is_deleting=meta.deletion_timestamp is not None,
        spec=spec,
        problem=problem,
        is_skewed=is_skewed,
        status=status,
    )


_UNHEARD_OF = frozenset({"extra_forbidden", "enum", "string_pattern_mismatch"})
"""Faults that the API server's schema leaves no room for, unless it is of a newer release than we are."""


def _spec(data: Any) -> tuple[GRPOJobSpec | None, str, bool]:
    """(spec, why it cannot be read, whether a newer operator might)."""
    try:
        return GRPOJobSpec.from_object(data), "", False
    except ValidationError as error:
        is_skewed = any(details["type"] in _UNHEARD_OF for details in error.errors(include_url=False))
        return None, _sentence(error, at="spec"), is_skewed


def _frozen(config: Manifest) -> tuple[GRPOJobSpec | None, str]:
    """(the spec in a ConfigMap of ours, why it cannot be read)."""
    try:
        return frozen_spec(config), ""
    except ValidationError as error:
        why = _sentence(error, at="spec")
    except KeyError as error:
        why = f"key {error} is missing"
    return None, f"ConfigMap {config['metadata']['name']}: {why}"


def _sentence(error: ValidationError, *, at: str) -> str:
    return "; ".join(str(problem) for problem in problems_of(error, at=at))


def _pods(cache: Cache, *, uid: str) -> tuple[tuple[PodView, ...], tuple[PodView, ...]]:
    """(trainer pods, rollout pods), each by position."""
    found = (pod_view(item, cache.events(item["metadata"]["uid"])) for item in cache.pods(uid))
    views = sorted((view for view in found if view), key=lambda pod: pod.position)
    trainers = tuple(pod for pod in views if trainer_position(pod.name))
    return trainers, tuple(pod for pod in views if rollout_position(pod.name))
