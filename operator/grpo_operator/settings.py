"""What a person can set when starting the operator."""

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_network
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator

from grpo_api.model import ApiModel
from grpo_api.problems import problems_of
from grpo_operator.cluster.kinds import KubeObject
from grpo_operator.permissions import NO_PERMISSIONS, Permissions

HOLD_SECONDS = 300
HOLD_BACK_SECONDS = 120
MIN_HOLD_BACK_SECONDS = 20
"""The scheduler tries a pod that found no node again up to 10 s after one is free."""


@dataclass(frozen=True)
class GiveBackTimes:
    """When a job gives back nodes that are not enough for it, and for how long, before jitter."""

    hold_seconds: float = HOLD_SECONDS
    """How long a job keeps nodes that are not enough, from the first trainer pod that found one: once to
    twice this long, and each further time twice as long, up to four times. A node that is made for a waiting
    pod takes its time, and a pod that goes away too early never gets it. An attempt whose processes time out
    waiting for the others meanwhile is not counted."""
    hold_back_seconds: float = HOLD_BACK_SECONDS
    """How long a job that has given its nodes back makes no pods: once to twice this long. Longer than the
    grace period of a trainer pod, so that its nodes are free for others first."""


GIVE_BACK_TIMES = GiveBackTimes()


class ProgressRoute(StrEnum):
    """How the operator reaches a trainer's /progress."""

    AUTO = "auto"
    """Reach trainers by pod IP inside the cluster, else through the API server."""
    POD_IP = "pod-ip"
    PROXY = "proxy"


@dataclass(frozen=True)
class Settings:
    """Settings of one operator process. `namespaces` empty means all of them."""

    runtime_image: str
    namespaces: tuple[str, ...] = ()
    namespace_selector: str = ""
    """Labels of the namespaces that are looked at, where all are watched; empty for every one."""
    kubeconfig: str | None = None
    context: str | None = None
    progress: ProgressRoute = ProgressRoute.AUTO
    poll_seconds: float = 2.0
    resync_seconds: float = 90.0
    num_workers: int = 9
    """Running jobs that are reconciled at once when something has happened to them; of one namespace, one
    less."""
    num_starting: int = 4
    """Other jobs that are reconciled at once: those that start, and those that nothing has happened to; of
    one namespace, one less."""
    health_port: int | None = None
    lease: tuple[str, str] | None = None
    """(namespace, name) of the Lease that says which operator acts; None: act without asking."""
    has_network_policies: bool = True
    """Whether a job gets a NetworkPolicy."""
    reports_from: tuple[KubeObject, ...] | None = None
    """The NetworkPolicyPeers that may read progress and metrics of a job's trainers; None: everyone."""
    give_back: GiveBackTimes = GIVE_BACK_TIMES
    permissions: Permissions = NO_PERMISSIONS
    has_kueue: bool = False
    """Whether jobs may be in queues of Kueue."""


_EXAMPLE = '[{"podSelector": {"matchLabels": {"app": "prometheus"}}, "namespaceSelector": {}}]'


def _cidr(text: str) -> str:
    ip_network(text)
    return text


_Cidr = Annotated[str, AfterValidator(_cidr)]


class _Requirement(ApiModel):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class _Selector(ApiModel):
    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: tuple[_Requirement, ...] = ()


class _IPBlock(ApiModel):
    cidr: _Cidr
    without: tuple[_Cidr, ...] = Field(default=(), alias="except")


class _Peer(ApiModel):
    pod_selector: _Selector | None = None
    namespace_selector: _Selector | None = None
    ip_block: _IPBlock | None = None

    @model_validator(mode="after")
    def _names_somebody(self) -> Self:
        has_selector = self.pod_selector is not None or self.namespace_selector is not None
        if has_selector == (self.ip_block is not None):
            raise ValueError("give podSelector, namespaceSelector or both, or ipBlock alone")
        return self


_Peers = TypeAdapter(tuple[_Peer, ...])


def parse_peers(text: str) -> tuple[KubeObject, ...]:
    """The peers in a JSON list, as the API server stores them, which leaves out what is empty.

    Raises ValueError that names the field and the fix: the API server drops fields it does not know, and a
    peer without its selector would let everybody in.
    """
    try:
        peers = _Peers.validate_json(text)
    except ValidationError as error:
        found = "; ".join(str(problem) for problem in problems_of(error, at="peers"))
        raise ValueError(f"{found}: give a JSON list of NetworkPolicyPeers, such as {_EXAMPLE}") from error
    if not peers:
        raise ValueError(f"an empty list would keep the operator out: give its peer, such as {_EXAMPLE}")
    return tuple(peer.model_dump(mode="json", by_alias=True, exclude_defaults=True) for peer in peers)
