"""The pods of one engine, seen as one. Pure.

They start together, and none of them is of use without the others.
"""

from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any

from grpo_api.contract.reasons import Reason
from grpo_operator.children.names import Names
from grpo_operator.observe.observed import EngineView, PodView


def as_engines(pods: Sequence[PodView], *, num_nodes: int) -> tuple[EngineView, ...]:
    """Rollout pods, in the order of their positions, as engines of `num_nodes` pods.

    An engine is ready when all its pods are, has nodes once all of them have one, and is over as soon as one
    is.
    """
    if num_nodes == 1:
        return tuple(_engine(pod, members=(pod,)) for pod in pods)
    by_engine = groupby(pods, key=lambda pod: pod.position)
    return tuple(_as_one(tuple(members), num_nodes=num_nodes) for _, members in by_engine)


def missing_members(engine: EngineView, names: Names, *, num_nodes: int) -> tuple[str, ...]:
    """Names of the pods that an engine of `num_nodes` lacks."""
    replica, incarnation = engine.position
    there = {pod.node_index for pod in engine.pods}
    return tuple(
        names.rollout(replica=replica, incarnation=incarnation, node=node)
        for node in range(num_nodes)
        if node not in there
    )


def _engine(pod: PodView, **changes: Any) -> EngineView:
    """An engine with the fields of a pod, but for `changes`."""
    return EngineView(**{field.name: getattr(pod, field.name) for field in fields(PodView)} | changes)


def _as_one(members: tuple[PodView, ...], *, num_nodes: int) -> EngineView:
    is_whole = len(members) == num_nodes
    nodes_at = [pod.scheduled_at for pod in members]
    created_at = [pod.created_at for pod in members if pod.created_at]
    return _engine(
        _worth_a_look(members),
        members=members,
        is_whole=is_whole,
        phase=_phase(members),
        is_ready=is_whole and all(pod.is_ready for pod in members),
        is_deleting=any(pod.is_deleting for pod in members),
        is_settling=any(pod.is_settling for pod in members),
        created_at=min(created_at, default=None),
        scheduled_at=max((at for at in nodes_at if at), default=None)
        if is_whole and None not in nodes_at
        else None,
        given_back=min(pod.given_back for pod in members),
    )


def _phase(members: Sequence[PodView]) -> str:
    """`Failed` when one has ended: an engine does not continue without it, however it ended."""
    if any(pod.is_over for pod in members):
        return "Failed"
    return "Running" if all(pod.phase == "Running" for pod in members) else "Pending"


def _worth_a_look(members: Sequence[PodView]) -> PodView:
    """The pod that ended first, else one that is taken away, that does not start or is not ready."""
    ended = [pod for pod in members if pod.termination and pod.termination.finished_at]
    if ended:
        return min(ended, key=lambda pod: (pod.termination.finished_at, pod.node_index))  # type: ignore[union-attr]
    return min(
        members,
        key=lambda pod: (
            not pod.is_over,
            not pod.is_deleting,
            pod.start_problem is None,
            pod.start_problem is not None and pod.start_problem.reason == Reason.WAITING_FOR_GROUP,
            not pod.unseen_by,
            pod.is_ready,
        ),
    )
