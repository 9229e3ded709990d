"""An object that a job owns, and how it is written."""

from dataclasses import dataclass

from grpo_api.v1alpha1.spec.pod_template import PodTemplateSpec
from grpo_operator.cluster.kinds import Kind, KubeObject


@dataclass(frozen=True)
class Child:
    """An object that the job should own. It is created, and not applied: a plan made from old state neither
    takes over nor resurrects an object."""

    kind: Kind
    body: KubeObject
    is_correction: bool = False
    """An object of ours exists and is corrected by server-side apply."""
    is_expected: bool = False
    """It must exist, and is not made again."""
    allowed: PodTemplateSpec | None = None
    """What the job may add to a pod."""

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.body["metadata"]["name"])

    def has_its_labels(self, found: KubeObject) -> bool:
        """Whether the object in the cluster has all the labels that we give it; others may add more."""
        wanted: dict[str, str] = self.body["metadata"]["labels"]
        given: dict[str, str] = found["metadata"].get("labels", {})
        return wanted.items() <= given.items()
