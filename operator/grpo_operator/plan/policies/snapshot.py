"""Policies: what a job runs is written down at its first start, and every later attempt keeps to it. Where
that cannot be read, this operator leaves the job as it is."""

from dataclasses import replace
from datetime import datetime

from grpo_api.changes import with_changes
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.contract.weight_sync_choice import backend_of
from grpo_api.v1alpha1.spec import GRPOJobSpec, WeightSyncBackend
from grpo_api.v1alpha1.status import WeightSyncStatus
from grpo_operator.children.names import Names
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.observe.image_build import pinned_image
from grpo_operator.observe.observed import JobView, Observed
from grpo_operator.plan.draft import Draft, Policy, Stage
from grpo_operator.plan.snapshots import snapshot_of


def wait_until_readable(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """A job whose spec this operator cannot read waits for another one. The API server has accepted the spec,
    so an operator of another release can read it."""
    problem = observed.job.problem
    return draft.leaving_alone(_unreadable_spec(problem)) if problem else draft


def begin(runtime_image: str) -> Policy:
    """The policy for an operator with this default image: attempt 1, mode, weight sync, image and
    revision."""

    def begin_job(draft: Draft, observed: Observed, now: datetime) -> Draft:
        assert observed.job.spec is not None  # one that cannot be read is left alone
        return _begun(draft, observed, observed.job.spec, now, runtime_image=runtime_image)

    return begin_job


def keep_snapshot(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """What the job runs is what it began with; only what the spec marks as MAY_CHANGE changes. The ConfigMap
    of the revision is the one whose digest is in status, which a job that has none takes once. Without a
    snapshot the job is left alone, unless it has ended or is going to."""
    job, digest = observed.job, observed.config_digest
    if draft.known_snapshot is not None or job.status.attempt == 0:
        return draft  # it begins with this plan, or ended before it began
    if digest and not draft.status.config_digest:
        draft = draft.with_status(config_digest=digest)
    elif digest not in ("", draft.status.config_digest):
        return _without_snapshot(draft, _changed_revision(_config_of(job)))
    snapshot = _stored(observed)
    if snapshot is None:
        return _without_snapshot(draft, _why_unknown(observed))
    spec = with_changes(snapshot.spec, live=job.spec) if job.spec else snapshot.spec
    return replace(draft, known_snapshot=replace(snapshot, spec=spec)).with_facts(observed, now)


def pin_image(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Every later pod runs what the first trainer pod ran, wherever the image's tag points then. What its
    node calls that image is written down, and new pods use it where every node can get it. The revision
    stays: the job's ConfigMap is the same."""
    if not draft.status.image_id:
        running = (draft.facts.gang[index].image_id for index in sorted(draft.facts.gang))
        draft = draft.with_status(image_id=next((found for found in running if found), ""))
    pinned = pinned_image(draft.status.image, draft.status.image_id)
    return draft if pinned is None else replace(draft, known_snapshot=replace(draft.snapshot, image=pinned))


def _without_snapshot(draft: Draft, why: ReasonMessage) -> Draft:
    return draft if draft.stage in (Stage.STOPPING, Stage.ENDED) else draft.leaving_alone(why)


def _begun(
    draft: Draft, observed: Observed, spec: GRPOJobSpec, now: datetime, *, runtime_image: str
) -> Draft:
    choice = backend_of(spec)
    snapshot = snapshot_of(
        observed.job,
        spec,
        image=spec.image or runtime_image,
        backend=choice.backend,
        resumed_from=draft.status.resumed_from,
    )
    begun = draft.with_status(
        attempt=1,
        failures_since_progress=0,
        mode=snapshot.spec.mode.value,
        mode_reason=spec.mode_reason,
        weight_sync=WeightSyncStatus(backend=choice.backend.value, reason=choice.reason),
        image=snapshot.image,
        revision=snapshot.revision,
        total_steps=spec.algorithm.steps or 0,
        progress=f"0/{spec.algorithm.steps or '?'}",
        start_time=now,
    )
    return replace(begun, stage=Stage.ACTIVE, known_snapshot=snapshot).with_facts(observed, now)


def _backend_of_run(job: JobView) -> WeightSyncBackend | None:
    """What the engines of a job that has started were started with; None where only another release knows
    it."""
    known = job.status.weight_sync
    return next((backend for backend in WeightSyncBackend if known and backend == known.backend), None)


def _stored(observed: Observed) -> JobSnapshot | None:
    """What the status says runs: from its ConfigMap, or from the job's spec while that is still the same."""
    job, status = observed.job, observed.job.status
    if observed.stored_spec is not None:
        return JobSnapshot(
            job.namespace,
            job.name,
            job.uid,
            observed.stored_spec,
            status.image,
            status.revision,
            observed.pod_templates,
        )
    backend = _backend_of_run(job)
    if job.spec is None or backend is None:
        return None
    snapshot = snapshot_of(
        job, job.spec, image=status.image, backend=backend, resumed_from=status.resumed_from
    )
    return (
        replace(snapshot, templates=observed.pod_templates) if snapshot.revision == status.revision else None
    )


def _why_unknown(observed: Observed) -> ReasonMessage:
    """Why it is not known what runs. The job may continue once a person has mended it: this ends nothing."""
    job = observed.job
    if observed.stored_problem:
        return _unreadable_snapshot(observed.stored_problem)
    if job.problem:
        return _unreadable_spec(job.problem)
    return _lost_revision(_config_of(job))


def _config_of(job: JobView) -> str:
    return Names.of(job=job.name, uid=job.uid).config(job.status.revision)


def _unreadable_spec(problem: str) -> ReasonMessage:
    """The API server's CRD let through a spec that this operator cannot read: the two are of different
    releases. The fix comes first, because the problems may be more than a condition can hold."""
    return ReasonMessage(
        Reason.SCHEMA_SKEW,
        "this operator cannot read the job's spec: run the operator of the release that the GRPOJob CRD came "
        f"with, or create the job anew without what this operator does not know: {problem}",
    )


def _unreadable_snapshot(problem: str) -> ReasonMessage:
    """The ConfigMap with the stored spec cannot be read. The pods continue: they need no operator, and acting
    on a guess could end them."""
    return ReasonMessage(
        Reason.SCHEMA_SKEW,
        f"the spec this run started from was written by another release ({problem}): run the operator of "
        "that release; the pods continue without it",
    )


def _changed_revision(config: str) -> ReasonMessage:
    """The ConfigMap of the run was made anew by somebody else."""
    return ReasonMessage(
        Reason.REVISION_CHANGED,
        f"ConfigMap {config} is not the one that this job started with: somebody has deleted it and made "
        "another. The pods continue, but none is replaced. Delete it, and the operator makes it again from "
        "the job's spec",
    )


def _lost_revision(config: str) -> ReasonMessage:
    """The stored spec is gone and the live one is another. The pods continue; new ones cannot be made."""
    return ReasonMessage(
        Reason.REVISION_LOST,
        f"ConfigMap {config} with the spec that this run started from is gone, and the spec was changed "
        "since: change it back or restore the ConfigMap, or create the job anew; the pods continue, but none "
        "is replaced",
    )
