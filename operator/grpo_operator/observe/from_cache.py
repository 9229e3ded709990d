"""A job and its children as they are observed: from the cache, which is read and not changed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from grpo_api.contract import labels
from grpo_api.problems import problems_of
from grpo_api.v1alpha1.job import ObjectMeta
from grpo_api.v1alpha1.spec import MANAGED_BY_US, GRPOJobSpec
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.children.config import pod_templates, stored_spec
from grpo_operator.children.gangs import WOKEN_AT_FORMAT
from grpo_operator.children.names import Names, rollout_position, trainer_position
from grpo_operator.cluster.kinds import Kind, KubeObject
from grpo_operator.observe.cache import Cache, Key
from grpo_operator.observe.engine_pods import as_engines
from grpo_operator.observe.observed import (
    JobAndPods,
    JobView,
    Observed,
    OtherJob,
    PodGroupView,
    PodSetView,
    Remembered,
    WorkloadView,
)
from grpo_operator.observe.pod_view import pod_view, time_of
from grpo_operator.observe.stored import DIGEST
from grpo_operator.observe.tracking import tracked_by


class UnreadableStatusError(Exception):
    """A job's status was written by another release. Acting on a guess could break a job that trains."""


def job_and_pods(cache: Cache, key: Key) -> JobAndPods | None:
    """The job with its pods, or None when there is no such job. Raises UnreadableStatusError."""
    item = cache.job(key)
    if item is None:
        return None
    job = job_view(item)
    spec = job.spec or _stored_of(job, _configs(cache, job)).spec
    has_default_image = spec is not None and spec.image is None
    found = (
        pod_view(pod, cache.events(pod["metadata"]["uid"]), has_default_image=has_default_image)
        for pod in cache.pods(job.identity)
    )
    pods = sorted((pod for pod in found if pod), key=lambda pod: (pod.position, pod.node_index))
    rollouts = [pod for pod in pods if rollout_position(pod.name)]
    # where no spec can be read, as many as there are
    num_nodes = 1 + max((pod.node_index for pod in rollouts), default=0)
    if spec is not None:
        num_nodes = spec.rollout.nodes_per_replica if spec.rollout else 1
    return JobAndPods(
        job=job,
        trainers=tuple(pod for pod in pods if trainer_position(pod.name)),
        rollouts=as_engines(rollouts, num_nodes=num_nodes),
    )


def observe(cache: Cache, found: JobAndPods, remembered: Remembered) -> Observed:
    """All of it: `found`, the other children in the cache, and what this process knows of the job."""
    job = found.job
    configs = _configs(cache, job)
    stored = _stored_of(job, configs)
    return Observed(
        job=job,
        trainers=found.trainers,
        rollouts=found.rollouts,
        services={service["metadata"]["name"]: service for service in cache.services(job.identity)},
        network_policies={
            policy["metadata"]["name"]: policy for policy in cache.network_policies(job.identity)
        },
        pod_groups={
            item["metadata"]["name"]: _pod_group_view(kind, item)
            for kind, item in cache.pod_groups(job.identity)
        },
        workloads={item["metadata"]["name"]: workload_view(item) for item in cache.workloads(job.identity)},
        queue_problem=cache.queue_problem(job.namespace),
        num_before_in_queue=_num_before(cache, job),
        cluster_objects=dict(cache.cluster_objects),  # a resync empties it
        config_names=frozenset(configs),
        stored_spec=stored.spec,
        pod_templates=stored.templates,
        config_digest=stored.digest,
        stored_problem=stored.problem,
        crd_problem=cache.served_schema.problem,
        other_job=_other_job(cache, job),
        remembered=remembered,
    )


def _pod_group_view(kind: Kind, item: KubeObject) -> PodGroupView:
    meta = item["metadata"]
    return PodGroupView(
        kind,
        meta["name"],
        meta["uid"],
        created_at=time_of(meta.get("creationTimestamp")),
        is_deleting="deletionTimestamp" in meta,
        woken_at=_woken_at(meta["annotations"].get(labels.WOKEN_AT)),
    )


def _num_before(cache: Cache, job: JobView) -> int | None:
    queue = job.status.queue
    return cache.num_before((job.namespace, queue.workload), queue=queue.name) if queue else None


def workload_view(item: KubeObject) -> WorkloadView:
    """A Workload as the planner sees it."""
    meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    assignments = {
        each["name"]: each for each in (status.get("admission") or {}).get("podSetAssignments", ())
    }
    reclaimable = {each["name"]: each["count"] for each in status.get("reclaimablePods", ())}
    checks = status.get("admissionChecks", ())
    updates = [update for check in checks for update in check.get("podSetUpdates", ())]

    def pod_set(declared: KubeObject) -> PodSetView:
        name = declared["name"]
        assigned = assignments.get(name, {})
        # what is reclaimable is taken from what the Workload asks for, and not from what it was admitted with
        left = max(0, declared["count"] - reclaimable.get(name, 0))
        return PodSetView(
            declared=declared["count"],
            count=min(assigned.get("count", left), left),
            flavors=tuple(sorted(set(assigned.get("flavors", {}).values()))),
            updates=tuple(update for update in updates if update["name"] == name),
        )

    return WorkloadView(
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        generation=meta.get("generation", 1),
        queue=spec.get("queueName", ""),
        priority_class=(spec.get("priorityClassRef") or {}).get("name", ""),
        priority=spec.get("priority", 0),
        created_at=time_of(meta.get("creationTimestamp")),
        pod_sets={each["name"]: pod_set(each) for each in spec["podSets"]},
        conditions=tuple(status.get("conditions", ())),
        is_deleting="deletionTimestamp" in meta,
        is_active=spec.get("active", True),
        open_checks={
            check["name"]: check.get("message") or check["state"]
            for check in checks
            if check["state"] != "Ready"
        },
    )


def _woken_at(text: str | None) -> datetime | None:
    """Anybody may change an annotation."""
    try:
        return datetime.strptime(text, WOKEN_AT_FORMAT).replace(tzinfo=UTC) if text else None
    except ValueError:
        return None


def _other_job(cache: Cache, job: JobView) -> OtherJob | None:
    """The job that `resumeFrom.job` names, while `job` waits for it. Once the path of its checkpoints is
    written down, it is the job of that uid, of which perhaps only pods are left."""
    resume = job.spec.resume_from if job.spec and job.status.attempt == 0 else None
    if resume is None or resume.job is None:
        return None
    item = cache.job((job.namespace, resume.job))
    known = job.status.resumed_from
    uid = known.job_uid if known else item["metadata"]["uid"] if item else ""
    pods = (pod_view(pod, ()) for pod in cache.pods((job.namespace, uid)))
    trainers = [pod.name for pod in pods if pod and trainer_position(pod.name) and not pod.is_over]
    living = min(trainers, default="")
    if item is None or item["metadata"]["uid"] != uid:
        return OtherJob(uid, is_there=False, living_trainer=living) if uid else None
    try:
        other = job_view(item)
    except UnreadableStatusError as error:
        return OtherJob(uid, is_there=True, problem=str(error), living_trainer=living)
    return OtherJob(
        uid,
        is_there=True,
        claim_name=other.spec.checkpoint.claim_name if other.spec else None,
        problem=other.problem,
        phase=other.status.phase,
        living_trainer=living,
    )


def job_view(item: KubeObject) -> JobView:
    """A job object as the planner sees it. Raises UnreadableStatusError."""
    meta = ObjectMeta.from_object(item["metadata"])
    annotations = item["metadata"].get("annotations") or {}
    labels_of_job = item["metadata"].get("labels") or {}
    spec, problem = _spec(item.get("spec", {}))
    try:
        status = GRPOJobStatus.from_object(item.get("status") or {})
    except ValidationError as error:
        raise UnreadableStatusError(
            f"the status of GRPOJob {meta.namespace}/{meta.name} was written by another release of the "
            f"operator ({_problems_text(error, at='status')}): run the newer release"
        ) from error
    return JobView(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        generation=meta.generation,
        resource_version=item["metadata"]["resourceVersion"],
        is_deleting=meta.deletion_timestamp is not None,
        finalizers=meta.finalizers,
        spec=spec,
        problem=problem,
        status=status,
        accepted_loss=annotations.get(labels.ACCEPTED_LOSS, ""),
        queue_label=labels_of_job.get(labels.QUEUE_NAME, ""),
        priority_label=labels_of_job.get(labels.PRIORITY_CLASS, ""),
        suspend=_suspend(item.get("spec") or {}),
        tracked_by=tracked_by(labels=labels_of_job, annotations=annotations),
    )


def is_managed_elsewhere(item: KubeObject) -> bool:
    """Whether another controller is responsible for a job. Its spec and status need not be readable here."""
    return (item.get("spec") or {}).get("managedBy") not in (None, MANAGED_BY_US)


def _suspend(spec: KubeObject) -> bool | None:
    """A schema of another release may have made something else of it."""
    found = spec.get("suspend")
    return found if isinstance(found, bool) else None


def _spec(data: Any) -> tuple[GRPOJobSpec | None, str]:
    """(the spec, or else why it cannot be read)."""
    return _read_spec(json.dumps(data))


@lru_cache(maxsize=32)  # a job that starts is reconciled many times in a row
def _read_spec(text: str) -> tuple[GRPOJobSpec | None, str]:
    try:
        return GRPOJobSpec.from_object(json.loads(text)), ""
    except ValidationError as error:
        return None, _problems_text(error, at="spec")


def _configs(cache: Cache, job: JobView) -> dict[str, KubeObject]:
    return {config["metadata"]["name"]: config for config in cache.config_maps(job.identity)}


@dataclass(frozen=True)
class _StoredRun:
    """What the ConfigMap of a run says. `problem` is why its spec or a template cannot be read."""

    digest: str = ""
    spec: GRPOJobSpec | None = None
    templates: Mapping[str, KubeObject] = field(default_factory=dict)
    problem: str = ""


def _stored_of(job: JobView, configs: Mapping[str, KubeObject]) -> _StoredRun:
    """Nothing while the job has not started, and only the digest of a ConfigMap that is not the one that it
    started with: a user who may write ConfigMaps need not be allowed to make pods. `configs` are those of
    the job, by name."""
    names = Names.of(job=job.name, uid=job.uid)
    config = configs.get(names.config(job.status.revision)) if job.status.revision else None
    if config is None:
        return _StoredRun()
    digest = config[DIGEST]
    if job.status.config_digest not in ("", digest):
        return _StoredRun(digest)
    read = "spec"
    try:
        spec, read = stored_spec(config), "pods"
        return _StoredRun(digest, spec, pod_templates(config))
    except ValidationError as error:
        why = _problems_text(error, at=read)
    except KeyError as error:
        why = f"key {error} is missing"
    return _StoredRun(digest, problem=f"ConfigMap {config['metadata']['name']}: {why}")


def _problems_text(error: ValidationError, *, at: str) -> str:
    return "; ".join(str(problem) for problem in problems_of(error, at=at))
