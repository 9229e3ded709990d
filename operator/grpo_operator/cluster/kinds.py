"""The kinds of objects that the operator uses, and the paths of their URLs."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from grpo_api.contract.labels import MANAGED_BY, OPERATOR
from grpo_api.v1alpha1.job import GROUP, KIND, PLURAL, VERSION

KubeObject = dict[str, Any]
"""A Kubernetes object as plain JSON-like data."""


@dataclass(frozen=True)
class Kind:
    """A kind of object. `selector` limits what is listed and watched to our own objects. `comes_with` says
    what brings a kind that not every cluster has."""

    group: str
    version: str
    plural: str
    name: str
    selector: str = ""
    comes_with: str = ""

    @property
    def api_version(self) -> str:
        """The apiVersion of a manifest."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The resource as a Role names it: `plural` without the name of an object that may be in it."""
        return "/".join(self.plural.split("/")[::2])

    def path(self, namespace: str | None, name: str = "") -> str:
        """The URL path of the collection, or of one object; `namespace=None` means all namespaces."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{quote(namespace, safe='')}" if namespace is not None else ""
        return f"{root}{scope}/{self.plural}" + (f"/{quote(name, safe='')}" if name else "")


_OURS = f"{MANAGED_BY}={OPERATOR}"
_POD_GROUP = "PodGroup"

JOBS = Kind(GROUP, VERSION, PLURAL, KIND)
PODS = Kind("", "v1", "pods", "Pod", _OURS)
SERVICES = Kind("", "v1", "services", "Service", _OURS)
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap", _OURS)
SECRETS = Kind("", "v1", "secrets", "Secret", _OURS)
EVENTS = Kind("", "v1", "events", "Event")
NETWORK_POLICIES = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", _OURS)
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")

WATCHED = (JOBS, PODS, SERVICES, CONFIG_MAPS, NETWORK_POLICIES)
"""Kinds that are listed and watched. Secrets are only created: the operator may not read them."""


def namespaces_that_match(selector: str) -> Kind:
    """The namespaces whose labels match a selector. They are of no namespace themselves."""
    return Kind("", "v1", "namespaces", "Namespace", selector)


_KUEUE, _KUEUE_VERSION = "kueue.x-k8s.io", "v1beta2"
WORKLOADS = Kind(_KUEUE, _KUEUE_VERSION, "workloads", "Workload", _OURS, "Kueue")
"""What Kueue gives a quota to. Each is followed by a watch of its own, because not every cluster has them."""
RESOURCE_FLAVORS = Kind(_KUEUE, _KUEUE_VERSION, "resourceflavors", "ResourceFlavor", comes_with="Kueue")
"""Kinds of nodes that Kueue gives quota on. They are of no namespace."""
WORKLOAD_PRIORITY_CLASSES = Kind(
    _KUEUE, _KUEUE_VERSION, "workloadpriorityclasses", "WorkloadPriorityClass", comes_with="Kueue"
)
"""Priorities of Workloads. They are of no namespace."""


def pending_workloads(queue: str) -> Kind:
    """The Workloads that wait in a LocalQueue, in their order, as Kueue's visibility API has them: one object
    without a name."""
    plural = f"localqueues/{queue}/pendingworkloads"
    return Kind("visibility.kueue.x-k8s.io", "v1beta2", plural, "PendingWorkloadsSummary", comes_with="Kueue")


def pod_groups(group: str, version: str, *, comes_with: str) -> Kind:
    """The PodGroups of a gang scheduler. They are listed and not watched, because a watch of a kind that the
    cluster lacks, or that may not be read, ends all others."""
    return Kind(group, version, "podgroups", _POD_GROUP, _OURS, comes_with)


def is_pod_group(kind: Kind) -> bool:
    """Whether a kind is that of some scheduler's PodGroups."""
    return kind.name == _POD_GROUP
