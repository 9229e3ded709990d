"""Notes at the end of the message of Ready: what people must know beside the state of a job that is led as
well as it can be. Pure.

Two operators may disagree about a note, such as one that reads an older schema than the other. So each writes
its own once, and leaves it as it finds it until there is something else to note.
"""

from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.conditions import condition
from grpo_operator.plan.draft import Draft, Stage

_SPEC = "; changes to the spec are not followed"
_CRD = "; the GRPOJob CRD is older"


def notes_of(draft: Draft, observed: Observed) -> str:
    """What this operator has to note: it cannot read the live spec and goes on with its snapshot, or the
    CRD of the cluster is too old."""
    if draft.stage is Stage.ENDED:
        return ""
    spec_problem = observed.job.problem if draft.known_snapshot is not None else ""
    of_spec = f"{_SPEC}, for it cannot be read: {spec_problem}" if spec_problem else ""
    of_crd = f"; {observed.crd_problem}" if observed.crd_problem else ""
    return of_spec + of_crd


def notes_to_write(own: str, observed: Observed) -> str:
    """Those that Ready gets: our own, or the stored ones once we have written ours."""
    known = condition(observed.job.status, ConditionType.READY)
    if known is None or observed.remembered.told_notes != own:
        return own
    _, stored = split_notes(known.message)
    return own if stored and own.startswith(stored) else stored  # a long message cuts its notes


def with_notes(message: str, notes: str) -> str:
    """The whole message of Ready."""
    return f"{message}{notes}".removeprefix("; ")


def split_notes(message: str) -> tuple[str, str]:
    """(what Ready said by itself, its notes)."""
    text = f"; {message}"
    starts = [text.index(note) for note in (_SPEC, _CRD) if note in text]
    at = min(starts, default=len(text))
    return text[:at].removeprefix("; "), text[at:]
