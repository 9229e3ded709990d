"""Pod templates: pods as JSON objects in which what differs between the pods of a run is left open. Pure.

A run keeps the templates it started with, so that another release of the operator, which may make pods in
another way, does not mix both in one run. What an older release left open a newer one must still fill in: a
member of `Open` keeps its name and its meaning.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from grpo_operator.cluster.kinds import KubeObject


class Template(StrEnum):
    """The pods of a run that have a template of their own, by the name it has in the job's ConfigMap."""

    FIRST_TRAINER = "trainer-0"
    """Trainer pod 0, which mounts the claim."""
    TRAINER = "trainer"
    """Every other trainer pod."""
    ROLLOUT = "rollout"
    """The pod of an engine, or of one of several pods the first."""
    ROLLOUT_WORKER = "rollout-worker"
    """Every other pod of an engine of several."""


class Open(StrEnum):
    """The values that a template leaves open. The value stands in its strings; no name in Kubernetes can
    contain it."""

    NAME = "${name}"
    """Name of the pod, and its host name."""
    IMAGE = "${image}"
    """The runtime image, by digest once the digest is known."""
    ATTEMPT = "${attempt}"
    """Number of a trainer pod's attempt."""
    NODE_INDEX = "${node-index}"
    """Index of a trainer pod in its attempt, or of a rollout pod in its engine."""
    FIRST_TRAINER = "${trainer-0}"
    """Name of trainer pod 0 of the attempt."""
    REPLICA = "${replica}"
    """Index of a rollout pod's replica."""
    INCARNATION = "${incarnation}"
    """Incarnation of a rollout pod's engine."""
    FIRST_ROLLOUT = "${rollout-0}"
    """Name of the first pod of a rollout pod's engine."""
    ROLLOUT_REPLICAS = "${rollout-replicas}"
    """How many engines a trainer pod's attempt waits for."""
    RANKS_GRACE = "${ranks-grace}"
    """Seconds in which the ranks of a trainer pod end, which belong to the grace period of the pod."""
    DOLLAR = "${dollar}"
    """A dollar sign in a text of the job's own, in which a name of this list may stand by chance. It is
    filled in last."""


def literal(value: Any) -> Any:
    """A part of a template that pods get as it is, even where it contains a name of `Open`."""
    if isinstance(value, str):
        return value.replace("${", f"{Open.DOLLAR.value}{{")
    if isinstance(value, dict):
        return {key: literal(item) for key, item in value.items()}
    return [literal(item) for item in value] if isinstance(value, list) else value


def filled(
    template: KubeObject, values: Mapping[Open, str], *, labels: Mapping[str, str], grace_seconds: int
) -> KubeObject:
    """The pod made from a template, with `labels` beside those of the template. The grace period is not part
    of it: how long a pod may take to end is decided by the operator that is there when it ends."""
    pod: KubeObject = _filled(template, {**values, Open.DOLLAR: "$"})
    pod["metadata"]["labels"] |= labels
    pod["spec"]["terminationGracePeriodSeconds"] = grace_seconds
    return pod


def _filled(value: Any, values: Mapping[Open, str]) -> Any:
    if isinstance(value, str):
        if "${" not in value:
            return value  # as most are
        for place, text in values.items():
            value = value.replace(place.value, text)
        return value
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    return [_filled(item, values) for item in value] if isinstance(value, list) else value
