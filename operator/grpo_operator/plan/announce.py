"""What people are told by Events: derived from what a plan changes, each thing once. Pure."""

from collections.abc import Iterator

from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.children.run import Child
from grpo_operator.kinds import PODS
from grpo_operator.names import rollout_position
from grpo_operator.observed import Observed, PodView
from grpo_operator.plan.causes import describe
from grpo_operator.plan.conditions import condition, is_true
from grpo_operator.plan.draft import Announcement, Draft
from grpo_operator.plan.rollout import is_refused


def announcements(draft: Draft, observed: Observed) -> tuple[Announcement, ...]:
    """The difference between the status that was read and the one that will be written, in words."""
    return (*_beginning(draft, observed), *_replacements(draft, observed), *_end(draft, observed))


def _beginning(draft: Draft, observed: Observed) -> Iterator[Announcement]:
    """The choice of the mode, each new attempt with its cause, and that its pods run."""
    old, new = observed.job.status, draft.status
    if old.attempt == 0 and new.attempt > 0:
        yield Announcement("ModeChosen", f"{new.mode}, because {new.mode_reason}", key="")
    restarting = condition(new, ConditionType.RESTARTING)
    if new.attempt > old.attempt > 0 and restarting:
        yield Announcement("Restarting", restarting.message, key=str(new.attempt), is_warning=True)
    if is_true(new, ConditionType.RUNNING) and not is_true(old, ConditionType.RUNNING):
        yield Announcement("Started", f"attempt {new.attempt}: every trainer pod runs", key=str(new.attempt))


def _replacements(draft: Draft, observed: Observed) -> Iterator[Announcement]:
    """Rollout pods that take the place of lost ones. More replicas are no replacement."""
    desired_before = observed.job.status.rollout.desired
    for child in draft.create:
        position = rollout_position(child.name) if child.kind == PODS else None
        if position is None or position[1] == 0 or position[0] >= desired_before:
            continue
        before = [pod for pod in observed.rollouts if pod.position[0] == position[0]]
        lost = max(before, key=lambda pod: pod.position, default=None)
        why = _why(lost) if lost else "it is gone: it was deleted or its node was removed"
        name = lost.name if lost else f"of replica {position[0]}"
        message = f"rollout pod {name} is replaced by {child.name}: {why}"
        yield Announcement("EngineReplaced", message, key=_news_of(child, lost), is_warning=True)


def _news_of(child: Child, lost: PodView | None) -> str:
    """What makes a replacement news: each is, but those of pods that are refused one after the other for the
    same reason are told once for a replica."""
    if lost is None or not is_refused(lost):
        return child.name
    why = lost.disruption or lost.trouble
    return f"{lost.position[0]}/{why.reason if why else ''}"


def _why(lost: PodView) -> str:
    if lost.disruption:
        return lost.disruption.message
    if lost.ending:
        return describe(lost.ending)[1]
    return lost.trouble.message if lost.trouble else "its node gave it up"


def _end(draft: Draft, observed: Observed) -> Iterator[Announcement]:
    found = condition(draft.status, ConditionType.FINISHED)
    if not is_true(draft.status, ConditionType.FINISHED) or found is None:
        return
    if is_true(observed.job.status, ConditionType.FINISHED):
        return
    is_success = is_true(draft.status, ConditionType.COMPLETE)
    message = found.message if is_success else f"{found.reason}: {found.message}"
    yield Announcement("Completed" if is_success else "Failed", message, key="", is_warning=not is_success)
