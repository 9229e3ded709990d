"""Why this operator must leave a job as it is, although the job has not ended. Pure."""

from grpo_api.contract.reasons import Reason, ReasonMessage


def unreadable_spec(problem: str) -> ReasonMessage:
    """The API server's CRD let through a spec that this operator cannot read: the two are of different
    releases. The fix comes first, because the problems may be more than a condition can hold."""
    return ReasonMessage(
        Reason.SCHEMA_SKEW,
        "this operator cannot read the job's spec: run the operator of the release that the GRPOJob CRD came "
        f"with, or create the job anew without what this operator does not know: {problem}",
    )


def unreadable_snapshot(problem: str) -> ReasonMessage:
    """The ConfigMap with the stored spec cannot be read. The pods go on: they need no operator, and acting on
    a guess could end them."""
    return ReasonMessage(
        Reason.SCHEMA_SKEW,
        f"the spec this run started from was written by another release ({problem}): run the operator of "
        "that release; the pods go on without it",
    )


def changed_revision(config: str) -> ReasonMessage:
    """The ConfigMap of the run was made anew by somebody else."""
    return ReasonMessage(
        Reason.REVISION_CHANGED,
        f"ConfigMap {config} is not the one that this job started with: somebody has deleted it and made "
        "another. The pods go on, but none is replaced. Delete it, and the operator makes it again from the "
        "job's spec",
    )


def lost_revision(config: str) -> ReasonMessage:
    """The stored spec is gone and the live one is another. The pods go on; new ones cannot be made."""
    return ReasonMessage(
        Reason.REVISION_LOST,
        f"ConfigMap {config} with the spec that this run started from is gone, and the spec was changed "
        "since: change it back or restore the ConfigMap, or create the job anew; the pods go on, but none is "
        "replaced",
    )
