"""One object as the cache holds it: what the cache asks of every object, and the rest as JSON. Pure.

As Python objects the same data takes almost twice the memory, in thousands of small pieces. They would lie
between those of large answers, whose memory could then be neither given back nor used for anything large.
Reading all objects of a job takes a fraction of a millisecond.
"""

import json
import sys
from dataclasses import dataclass

from grpo_operator.cluster.kinds import JOBS, Kind, KubeObject
from grpo_operator.observe.pruned import pruned

Identity = tuple[str, str]
"""(namespace, uid) of a job. An owner reference holds within a namespace only, and the API server does not
check it: anybody may name any uid as the owner of an object in a namespace of his own."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A state of an object."""

    place: tuple[str, str]
    """(namespace, name)."""
    uid: str
    version: int
    """Position of this state in the cluster's history."""
    job: tuple[str, str] | None
    """(name, uid) of the GRPOJob that controls the object."""
    phase: str
    """Of a job or a pod; empty where it has none."""
    text: str

    @property
    def owner(self) -> Identity | None:
        """The job that controls the object."""
        return (self.place[0], self.job[1]) if self.job else None

    def read(self) -> KubeObject:
        """The object as it was pruned. Nobody else has this copy."""
        found: KubeObject = json.loads(self.text)
        return found


def store(kind: Kind, item: KubeObject) -> Stored:
    """What to store of an object."""
    owner = owner_of(item)
    return Stored(
        place=place_of(item),
        uid=sys.intern(item["metadata"]["uid"]),
        version=version_of(item),
        job=(sys.intern(owner["name"]), sys.intern(owner["uid"])) if owner else None,
        phase=sys.intern(item.get("status", {}).get("phase", "")),
        text=json.dumps(pruned(kind, item), separators=(",", ":")),
    )


def place_of(item: KubeObject) -> tuple[str, str]:
    """(namespace, name) of an object."""
    meta = item["metadata"]
    return sys.intern(meta["namespace"]), meta["name"]


def version_of(item: KubeObject) -> int:
    """Position of this state of the object in the cluster's history."""
    return int(item["metadata"]["resourceVersion"])


def owner_of(item: KubeObject) -> KubeObject | None:
    """The reference to the GRPOJob that controls this object."""
    for reference in item["metadata"].get("ownerReferences", ()):
        if (
            reference.get("controller")
            and reference["kind"] == JOBS.name
            and reference["apiVersion"].startswith(f"{JOBS.group}/")
        ):
            found: KubeObject = reference
            return found
    return None
