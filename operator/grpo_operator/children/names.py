"""Every name of every child, built and parsed in one place.

Names are deterministic, so creating a child twice is refused by the API server, and carry a hash of the
job's uid, so two jobs of one name never share a child. They fit into 63 characters: a pod's name is
its host name too.
"""

import re
from dataclasses import dataclass

from grpo_api.contract.labels import bounded, short_hash

_LONGEST_SUFFIX = len("-123456-trainer-a123456-1234")
_TRAINER = re.compile(r"-trainer-a(?P<attempt>\d+)-(?P<index>\d+)$")
_ROLLOUT = re.compile(r"-rollout-(?P<replica>\d+)-i(?P<incarnation>\d+)(-(?P<node>\d+))?$")


@dataclass(frozen=True)
class Names:
    """Names of one job's children."""

    base: str

    @classmethod
    def of(cls, *, job: str, uid: str) -> "Names":
        """Names for the job called `job` with this uid."""
        slug = re.sub(r"[^a-z0-9-]", "-", job)
        slug = slug if slug[0].isalpha() else f"j-{slug}"
        return cls(base=f"{bounded(slug, 63 - _LONGEST_SUFFIX)}-{short_hash(uid, 6)}")

    @property
    def tokens(self) -> str:
        """The Secret with the job's tokens."""
        return f"{self.base}-tokens"

    @property
    def network_policy(self) -> str:
        """The NetworkPolicy of the job's pods."""
        return self.base

    @property
    def workload(self) -> str:
        """The Workload of the trainer and the first engines."""
        return self.base

    def extra_workload(self, *, replica: int) -> str:
        """The Workload of an engine that is in none of the job's own."""
        return f"{self.base}-engine-{replica}"

    def extra_replica(self, workload: str) -> int | None:
        """The replica of the name of an engine's own Workload; None for any other name. A job may itself have
        a name that ends with `-engine`, and a hash of digits alone."""
        match = re.fullmatch(rf"{re.escape(self.base)}-engine-(\d+)", workload)
        return int(match[1]) if match else None

    def config(self, revision: str) -> str:
        """The ConfigMap of a revision."""
        return f"{self.base}-config-{revision}"

    def service(self, role: str) -> str:
        """The headless Service of a role."""
        return f"{self.base}-{role}"

    def trainer(self, *, attempt: int, index: int) -> str:
        """Trainer pod `index` of an attempt."""
        return f"{self.base}-trainer-a{attempt}-{index}"

    def rollout(self, *, replica: int, incarnation: int, node: int = 0) -> str:
        """A rollout pod, the first of its engine or another `node`. The incarnation grows with every
        replacement: the old name may still be in use."""
        return f"{self.base}-rollout-{replica}-i{incarnation}{f'-{node}' if node else ''}"

    def trainer_group(self, *, attempt: int | str) -> str:
        """The PodGroup of the trainer pods of an attempt."""
        return f"{self.base}-trainer-a{attempt}"

    def engine_group(self, *, replica: int | str, incarnation: int | str) -> str:
        """The PodGroup of the rollout pods of an engine."""
        return f"{self.base}-engine-{replica}-i{incarnation}"


def trainer_position(name: str) -> tuple[int, int] | None:
    """(attempt, index) of a trainer pod's name; None for any other name."""
    match = _TRAINER.search(name)
    return (int(match["attempt"]), int(match["index"])) if match else None


def rollout_slot(replica: int) -> str:
    """The slot that the pods of a replica have one after the other."""
    return f"rollout-{replica}"


def rollout_position(name: str) -> tuple[int, int] | None:
    """(replica, incarnation) of a rollout pod's name; None for any other name."""
    match = _ROLLOUT.search(name)
    return (int(match["replica"]), int(match["incarnation"])) if match else None


def rollout_node(name: str) -> int:
    """Index of a rollout pod among those of its engine; 0 for any other name."""
    match = _ROLLOUT.search(name)
    return int(match["node"]) if match and match["node"] else 0
