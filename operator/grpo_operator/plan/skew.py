"""Why this operator must not act on a job that another release has written. Pure."""

from grpo_api.contract.reasons import Reason, ReasonMessage


def newer_spec(problem: str) -> ReasonMessage:
    """The spec has fields or values that this operator does not know."""
    return ReasonMessage(
        Reason.SCHEMA_SKEW,
        f"this operator is older than the job's schema ({problem}): run the operator of the release the "
        "GRPOJob CRD came with",
    )


def unreadable_frozen_spec(problem: str) -> ReasonMessage:
    """The ConfigMap with the frozen spec cannot be read. The pods go on: they need no operator, and acting on
    a guess could end them."""
    return ReasonMessage(
        Reason.SCHEMA_SKEW,
        f"the spec this run started from was written by another release ({problem}): run the operator of "
        "that release; the pods go on without it",
    )
