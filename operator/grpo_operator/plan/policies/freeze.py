"""Policy: at the first start, write down what this job runs, and hold every later attempt to it."""

from dataclasses import replace
from datetime import datetime

from grpo_api.changes import with_changes
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.contract.weight_sync_choice import backend_of
from grpo_api.v1alpha1.spec import GRPOJobSpec, WeightSyncBackend
from grpo_api.v1alpha1.status import ResumedFrom, WeightSyncStatus
from grpo_operator.children.frozen_job import FrozenJob
from grpo_operator.children.names import Names
from grpo_operator.observe.observed import JobView, Observed
from grpo_operator.plan.draft import Draft, Policy, Stage
from grpo_operator.plan.skew import changed_revision, lost_revision, unreadable_frozen_spec, unreadable_spec


def freeze(runtime_image: str) -> Policy:
    """The policy for an operator with this default image."""

    def freeze_job(draft: Draft, observed: Observed, now: datetime) -> Draft:
        """Attempt 1, mode, weight sync, image and revision; later only what the spec marks as MAY_CHANGE
        changes. The ConfigMap of the revision is the one whose digest is in status, which a job that has none
        takes once."""
        job = observed.job
        if draft.status.attempt == 0:
            if draft.stage is not Stage.ACTIVE or draft.left_alone or job.spec is None:
                return draft
            return _started(draft, observed, job.spec, now, runtime_image=runtime_image)
        digest = observed.config_digest
        if digest and not draft.status.config_digest:
            draft = draft.with_status(config_digest=digest)
        elif digest not in ("", draft.status.config_digest):
            changed = changed_revision(_config_of(job))
            return replace(draft, left_alone=changed) if draft.stage is Stage.ACTIVE else draft
        frozen = _resumed(observed)
        if frozen is not None:
            spec = with_changes(frozen.spec, live=job.spec) if job.spec else frozen.spec
            return replace(draft, frozen=replace(frozen, spec=spec)).with_facts(observed, now)
        if draft.stage is not Stage.ACTIVE:
            return draft
        return replace(draft, left_alone=_why_unknown(observed))

    return freeze_job


def _started(
    draft: Draft, observed: Observed, spec: GRPOJobSpec, now: datetime, *, runtime_image: str
) -> Draft:
    choice = backend_of(spec)
    frozen = _freeze(
        observed.job,
        spec,
        image=spec.image or runtime_image,
        backend=choice.backend,
        resumed_from=draft.status.resumed_from,
    )
    started = draft.with_status(
        attempt=1,
        failures_since_progress=0,
        mode=frozen.spec.mode.value,
        mode_reason=spec.mode_reason,
        weight_sync=WeightSyncStatus(backend=choice.backend.value, reason=choice.reason),
        image=frozen.image,
        revision=frozen.revision,
        total_steps=spec.algorithm.steps or 0,
        progress=f"0/{spec.algorithm.steps or '?'}",
        start_time=now,
    )
    return replace(started, frozen=frozen).with_facts(observed, now)


def _freeze(
    job: JobView,
    spec: GRPOJobSpec,
    *,
    image: str,
    backend: WeightSyncBackend,
    resumed_from: ResumedFrom | None,
) -> FrozenJob:
    return FrozenJob.freeze(
        namespace=job.namespace,
        job=job.name,
        uid=job.uid,
        spec=spec,
        image=image,
        backend=backend,
        checkpoints=resumed_from.source if resumed_from else None,
    )


def _backend_of_run(job: JobView) -> WeightSyncBackend | None:
    """What the engines of a job that has started were started with; None where only another release knows
    it."""
    known = job.status.weight_sync
    return next((backend for backend in WeightSyncBackend if known and backend == known.backend), None)


def _resumed(observed: Observed) -> FrozenJob | None:
    """What the status says runs: from its ConfigMap, or from the job's spec while that is still the same."""
    job, status = observed.job, observed.job.status
    if observed.frozen_spec is not None:
        return FrozenJob(
            job.namespace,
            job.name,
            job.uid,
            observed.frozen_spec,
            status.image,
            status.revision,
            observed.pod_templates,
        )
    backend = _backend_of_run(job)
    if job.spec is None or backend is None:
        return None
    frozen = _freeze(job, job.spec, image=status.image, backend=backend, resumed_from=status.resumed_from)
    return replace(frozen, templates=observed.pod_templates) if frozen.revision == status.revision else None


def _why_unknown(observed: Observed) -> ReasonMessage:
    """Why it is not known what runs. The job may go on once a person has mended it: this ends nothing."""
    job = observed.job
    if observed.frozen_problem:
        return unreadable_frozen_spec(observed.frozen_problem)
    if job.problem:
        return unreadable_spec(job.problem)
    return lost_revision(_config_of(job))


def _config_of(job: JobView) -> str:
    return Names.of(job=job.name, uid=job.uid).config(job.status.revision)
