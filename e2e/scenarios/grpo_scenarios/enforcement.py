"""Enforces a NetworkPolicy in the local cluster, whose network plug-in enforces none."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_cluster import processes
from grpo_cluster.network import inside
from grpo_cluster.settings import ClusterError, ClusterSettings
from grpo_scenarios.namespace import Namespace, Object

_CHAIN = "ENFORCED"


@contextmanager
def enforced(namespace: Namespace, policy: Object) -> Iterator[None]:
    """Drop what the ingress rules of a policy do not let through, in the cluster's only node. Connections
    that are open already stay.

    The policy, its pods and their callers are looked at once, at the beginning. Raises ClusterError for what
    it does not know: ipBlock, matchExpressions, named ports.
    """
    node = processes.running(ClusterSettings.for_instance(), "node0")
    if node is None:
        raise ClusterError("node0 does not run: `make cluster-up`")
    rules = [*_rules(namespace, policy["spec"])]
    restore = [f"*filter\n:{_CHAIN} - [0:0]", *(f"-A {_CHAIN} {rule}" for rule in rules), "COMMIT\n"]
    jump = ["FORWARD", "--jump", _CHAIN]
    _run(*inside(node), "iptables-restore", "--noflush", given="\n".join(restore))
    _run(*inside(node), "iptables", "--insert", *jump)
    try:
        yield
    finally:
        _run(*inside(node), "iptables", "--delete", *jump)
        for command in ("--flush", "--delete-chain"):
            _run(*inside(node), "iptables", command, _CHAIN)


def _rules(namespace: Namespace, spec: Object) -> Iterator[str]:
    yield "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"
    for address in _addresses(namespace, {"podSelector": spec["podSelector"]}):
        for rule in spec["ingress"]:
            callers = [
                f"-s {caller}" for peer in rule.get("from", []) for caller in _addresses(namespace, peer)
            ]
            ports = [
                f"-p {_known(port)['protocol'].lower()} --dport {port['port']}"
                for port in rule.get("ports", [])
            ]
            for caller in callers if "from" in rule else [""]:
                for port in ports or [""]:
                    yield f"-d {address} {caller} {port} -j RETURN"
        yield f"-d {address} -j DROP"


def _addresses(namespace: Namespace, peer: Object) -> list[str]:
    """The addresses of the pods that a NetworkPolicyPeer selects."""
    if unknown := peer.keys() - {"podSelector", "namespaceSelector"}:
        raise ClusterError(f"only pods can be let through here, not {', '.join(unknown)}")
    names = [namespace.name]
    if "namespaceSelector" in peer:
        found = namespace.target.get("namespaces", *_labels(peer["namespaceSelector"]))["items"]
        names = [item["metadata"]["name"] for item in found]
    wanted = _labels(peer.get("podSelector", {}))
    pods = [
        pod for name in names for pod in namespace.target.get("pods", "--namespace", name, *wanted)["items"]
    ]
    return [pod["status"]["podIP"] for pod in pods if pod["status"].get("podIP")]


def _labels(selector: Object) -> list[str]:
    """The options of `kubectl get` for a selector."""
    if "matchExpressions" in selector:
        raise ClusterError("matchExpressions are not known here")
    wanted = [f"{name}={value}" for name, value in selector.get("matchLabels", {}).items()]
    return ["--selector", ",".join(wanted)] if wanted else []


def _known(port: Object) -> Object:
    if not isinstance(port["port"], int):
        raise ClusterError(f"named ports are not known here: {port['port']}")
    return port


def _run(*command: str, given: str | None = None) -> None:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
