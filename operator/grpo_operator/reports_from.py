"""Who may read the reports of trainers: the NetworkPolicyPeers that a person gives on the command line."""

from ipaddress import ip_network
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator

from grpo_api.model import ApiModel
from grpo_api.problems import problems_of
from grpo_operator.cluster.kinds import KubeObject

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
