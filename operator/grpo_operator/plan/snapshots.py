"""The snapshot of a job that begins now, or would. Pure."""

from grpo_api.contract.weight_sync_choice import backend_of
from grpo_api.v1alpha1.spec import GRPOJobSpec, WeightSyncBackend
from grpo_api.v1alpha1.status import ResumedFrom
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.observe.observed import JobView


def snapshot_of(
    job: JobView,
    spec: GRPOJobSpec,
    *,
    image: str,
    backend: WeightSyncBackend,
    resumed_from: ResumedFrom | None,
) -> JobSnapshot:
    """The snapshot of this spec of a job."""
    return JobSnapshot.take(
        namespace=job.namespace,
        job=job.name,
        uid=job.uid,
        spec=spec,
        image=image,
        backend=backend,
        checkpoints=resumed_from.source if resumed_from else None,
    )


def snapshot_to_come(job: JobView, *, runtime_image: str) -> JobSnapshot | None:
    """What a job that has not begun would run if it began now; None where its spec cannot be read."""
    spec = job.spec
    if spec is None:
        return None
    return snapshot_of(
        job,
        spec,
        image=spec.image or runtime_image,
        backend=backend_of(spec).backend,
        resumed_from=job.status.resumed_from,
    )
