"""The NetworkPolicy of a job as the API server stores it."""

import json

import pytest

from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_operator.children.network import is_network_policy_up_to_date, network_policy
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.settings import parse_peers

from .api_server import Kubectl
from .operator_harness import Namespace

pytestmark = pytest.mark.apiserver

SPEC = {
    "model": {"source": "builtin://tiny"},
    "dataset": {"source": "builtin://copy"},
    "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
    "algorithm": {"steps": 1},
}
PEERS = """[
    {"podSelector": {"matchLabels": {}}, "namespaceSelector": null},
    {"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": []}]}},
    {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}},
    {"ipBlock": {"cidr": "192.0.2.0/24", "except": []}},
    {"ipBlock": {"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}}
]"""


@pytest.mark.parametrize("peers", [None, PEERS], ids=["everyone", "peers"])
def test_a_policy_is_read_back_as_it_was_written_so_that_it_is_not_corrected_again(
    namespace: Namespace, kubectl: Kubectl, peers: str | None
):
    snapshot = JobSnapshot.take(
        namespace=namespace.name, job="copy", uid="uid-1", spec=GRPOJobSpec.from_object(SPEC), image="image"
    )
    desired = network_policy(snapshot, reports_from=None if peers is None else parse_peers(peers))
    # Its job does not exist, so the garbage collector may take it away at once: what `create` answers counts.
    stored = kubectl.run("create", "-o", "json", "-f", "-", stdin=json.dumps(desired.body))
    assert is_network_policy_up_to_date(desired, json.loads(stored))
