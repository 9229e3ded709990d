"""What people must know beside the state of a job: in status.notes, and at the end of the message of Ready.
Pure.

Two operators may disagree about a note, such as one that reads an older schema than the other. So each writes
its own once, and then leaves what is stored until it has something else to note.
"""

from grpo_api.v1alpha1.status import GRPOJobStatus, Phase
from grpo_operator.observe.observed import JobView, Observed
from grpo_operator.plan.conditions import LONGEST_MESSAGE
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.queue import is_undecided, why_undecided
from grpo_operator.plan.suspension import pods_left


def notes_of(draft: Draft, observed: Observed) -> str:
    """What this operator has to note: it cannot read the live spec and continues with its snapshot, Kueue has
    decided nothing about a job that goes on, the CRD of the cluster is too old, or a job that has ended is
    not deleted although it should be."""
    if draft.stage is Stage.ENDED:
        return _note_at_end(draft, observed)[:LONGEST_MESSAGE]
    problem = observed.job.problem if draft.known_snapshot is not None else ""
    of_spec = f"changes to the spec are not followed, because it cannot be read: {problem}" if problem else ""
    notes = (of_spec, _note_on_queue(draft, observed), observed.crd_problem)
    return "; ".join(filter(None, notes))[:LONGEST_MESSAGE]


def _note_on_queue(draft: Draft, observed: Observed) -> str:
    """That a job goes on although nobody can say whether it has quota; empty where somebody can."""
    queue = draft.status.queue
    goes_on = draft.stage in (Stage.LEFT_ALONE, Stage.ACTIVE) and bool(pods_left(observed))
    if queue is None or not goes_on or not is_undecided(observed):
        return ""
    why = why_undecided(observed, queue.name)
    return f"the job goes on with the pods that it has: queue {queue.name}: {why.message}"


def _note_at_end(draft: Draft, observed: Observed) -> str:
    """Why a job that has ended is not deleted; empty where it is, or where it is not to be."""
    job, refusal = observed.job, observed.remembered.undeletable
    if job.problem:
        return (
            "whether ttlSecondsAfterFinished is to delete this job is not known, because its spec cannot be "
            f"read: {job.problem}"
        )
    if ttl_seconds_of(job, draft.status) is None:
        return ""
    of_rights = (
        f"this operator may not delete the job, as {_ttl_field(job, draft.status)} has it; its administrator "
        f"gives it the right with deleteExpiredJobs=true of the chart: {refusal}"
    )
    return why_not_deleted(job, draft.status) or (of_rights if refusal else "")


def why_not_deleted(job: JobView, status: GRPOJobStatus) -> str:
    """Why a GitOps controller keeps `ttlSecondsAfterFinished` from deleting a job that has ended so; empty
    where none does, or where the field is not set."""
    if not job.tracked_by or ttl_seconds_of(job, status) is None:
        return ""
    return (
        f"{_ttl_field(job, status)} does not delete this job, because {job.tracked_by} tracks it and would "
        "create it again, and train again: delete it where its manifest is, such as in Git, or if nothing "
        "tracks it remove that label or annotation"
    )


def ttl_seconds_of(job: JobView, status: GRPOJobStatus) -> int | None:
    """How long after its end a job that has ended so is deleted; None where it stays."""
    return job.spec.ttl_seconds(has_failed=status.phase is Phase.FAILED) if job.spec else None


def _ttl_field(job: JobView, status: GRPOJobStatus) -> str:
    """The field that says when a job that has ended so is deleted."""
    is_own = status.phase is Phase.FAILED and job.spec and job.spec.ttl_seconds_after_failed is not None
    return "ttlSecondsAfterFailed" if is_own else "ttlSecondsAfterFinished"


def notes_to_write(own: str, observed: Observed) -> str:
    """What status.notes gets: our own notes, or the stored ones once we have written ours. A CRD that drops
    the field stores none, and lacks what there is to note."""
    stored = observed.job.status.notes
    is_dropped = not stored and observed.crd_problem != ""
    return own if observed.remembered.told_notes != own or is_dropped else stored


def with_notes(message: str, notes: str) -> str:
    """The whole message of Ready."""
    return "; ".join(filter(None, (message, notes)))


def without_notes(message: str, notes: str) -> str:
    """What Ready says by itself. A condition cuts a long message, and with it the notes at its end."""
    if not notes:
        return message
    if message == notes:
        return ""
    end = f"; {notes}"
    lengths = range(len(end), 1, -1) if len(message) >= LONGEST_MESSAGE else [len(end)]
    found = next((length for length in lengths if message.endswith(end[:length])), 0)
    return message[: len(message) - found]
