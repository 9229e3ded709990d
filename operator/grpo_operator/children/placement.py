"""Where Kueue wants the pods of a Workload: what the flavors of its quota and its admission checks add to
them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from grpo_operator.children.child import Child
from grpo_operator.cluster.kinds import KubeObject


@dataclass(frozen=True)
class Placement:
    """What is added to pods."""

    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[KubeObject, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, *, flavors: Iterable[KubeObject], updates: Iterable[KubeObject]) -> "Placement":
        """What these ResourceFlavors and these updates of a set of pods add."""
        parts = [
            *(
                {"nodeSelector": spec.get("nodeLabels"), "tolerations": spec.get("tolerations")}
                for spec in (flavor.get("spec") or {} for flavor in flavors)
            ),
            *updates,
        ]

        def merged(key: str) -> dict[str, str]:
            return {name: value for part in parts for name, value in (part.get(key) or {}).items()}

        return cls(
            node_selector=merged("nodeSelector"),
            tolerations=tuple(each for part in parts for each in part.get("tolerations") or ()),
            labels=merged("labels"),
            annotations=merged("annotations"),
        )


def placed(pod: Child, placement: Placement) -> Child:
    """A pod with this placement. Labels that the pod has stay, because its job is found by them."""
    metadata, spec = pod.body["metadata"], pod.body["spec"]
    metadata = metadata | {"labels": {**placement.labels, **metadata["labels"]}}
    if placement.annotations:
        metadata["annotations"] = {**metadata.get("annotations", {}), **placement.annotations}
    if placement.node_selector:
        spec = spec | {"nodeSelector": {**spec.get("nodeSelector", {}), **placement.node_selector}}
    if placement.tolerations:
        added = [each for each in placement.tolerations if each not in spec.get("tolerations", ())]
        spec = spec | {"tolerations": [*spec.get("tolerations", ()), *added]}
    return replace(pod, body={**pod.body, "metadata": metadata, "spec": spec})
