"""Policy: at the first start, write down what this run is, and hold every later attempt to it."""

from dataclasses import replace
from datetime import datetime

from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_operator.children.run import Run
from grpo_operator.observed import JobView, Observed, Trouble
from grpo_operator.plan.draft import Draft, Policy, Stage
from grpo_operator.plan.outcome import failed
from grpo_operator.plan.validate import SCHEMA_SKEW, too_new


def freeze(runtime_image: str) -> Policy:
    """The policy for an operator with this default image."""

    def freeze_run(draft: Draft, observed: Observed, now: datetime) -> Draft:
        """Attempt 1, mode, image and revision; later only rollout.replicas and UNFROZEN move."""
        job, status = observed.job, draft.status
        if status.attempt == 0:
            if draft.stage is not Stage.ACTIVE or job.spec is None:
                return draft
            run = _begin(job, job.spec, image=job.spec.image or runtime_image)
            started = draft.with_status(
                attempt=1,
                mode=run.spec.mode.value,
                mode_reason=job.spec.mode_reason,
                image=run.image,
                revision=run.revision,
                total_steps=job.spec.algorithm.steps,
                progress=f"0/{job.spec.algorithm.steps}",
                start_time=now,
            )
            return replace(started, run=run)
        resumed = _resume(observed)
        if resumed is not None:
            return replace(draft, run=_with_live_parts(resumed, job.spec))
        if draft.stage is not Stage.ACTIVE:
            return draft
        blocked = _unreadable(observed)
        if blocked is not None:
            return replace(draft, blocked=blocked)
        return failed(
            draft,
            observed,
            now,
            reason="RevisionLost",
            message="the spec was changed after the start and the ConfigMap with the one this run started "
            "from is gone: create the job anew",
        )

    return freeze_run


def _begin(job: JobView, spec: GRPOJobSpec, *, image: str) -> Run:
    return Run.begin(namespace=job.namespace, job=job.name, uid=job.uid, spec=spec, image=image)


def _resume(observed: Observed) -> Run | None:
    """The run in status: from its ConfigMap, or from the job's spec while that is still the same."""
    job, status = observed.job, observed.job.status
    if observed.frozen_spec is not None:
        return Run(job.namespace, job.name, job.uid, observed.frozen_spec, status.image, status.revision)
    run = _begin(job, job.spec, image=status.image) if job.spec else None
    return run if run and run.revision == status.revision else None


def _unreadable(observed: Observed) -> Trouble | None:
    """What this run is was written down, but by another release. Its pods are left to themselves: they need
    no operator, and acting on a guess could end them."""
    if observed.frozen_problem:
        return Trouble(
            SCHEMA_SKEW,
            f"the spec this run started from was written by another release ({observed.frozen_problem}): run "
            "the operator of that release; the pods go on without it",
        )
    return too_new(observed.job.problem) if observed.job.is_skewed else None


def _with_live_parts(run: Run, live: GRPOJobSpec | None) -> Run:
    if live is None:
        return run
    changes: dict[str, object] = {
        "failure_policy": live.failure_policy,
        "startup_deadline_seconds": live.startup_deadline_seconds,
        "stall_timeout_seconds": live.stall_timeout_seconds,
    }
    if run.spec.rollout and live.rollout:
        changes["rollout"] = run.spec.rollout.model_copy(update={"replicas": live.rollout.replicas})
    return replace(run, spec=run.spec.model_copy(update=changes))
