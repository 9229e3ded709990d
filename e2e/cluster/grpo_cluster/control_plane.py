"""The processes of the control plane, and the DNS objects that must exist before nodes join."""

from pathlib import Path

from grpo_cluster.api import Api, Object
from grpo_cluster.certificates import (
    ADMIN,
    AGGREGATOR,
    CONTROLLER_MANAGER,
    COREDNS,
    SCHEDULER,
    KeyFolder,
    api_server_identity,
)
from grpo_cluster.settings import CLUSTER_DOMAIN, ClusterSettings
from grpo_cluster.versions import program_path

ETCD, API_SERVER, CONTROLLERS = "etcd", "kube-apiserver", "kube-controller-manager"
SCHEDULING, DNS = "kube-scheduler", "coredns"
API_ONLY = (ETCD, API_SERVER, CONTROLLERS)
COMPLETE = (*API_ONLY, SCHEDULING, DNS)

_COREFILE = """\
{domain} in-addr.arpa ip6.arpa {{
    bind {address}
    errors
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
    cache 1
}}
# Names outside the cluster do not exist. Without this block they are refused, which resolvers
# report as a temporary failure; in the block above it would hide the cluster's own names.
. {{
    bind {address}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def component_command(settings: ClusterSettings, component: str) -> list[str | Path]:
    """The command line of one component. The kubeconfigs in it are in the folder of the keys."""
    keys = KeyFolder(settings.keys)
    commands = {
        ETCD: _etcd,
        API_SERVER: _api_server,
        CONTROLLERS: _controller_manager,
        SCHEDULING: _scheduler,
        DNS: _coredns,
    }
    return commands[component](settings, keys)


def _etcd(settings: ClusterSettings, _keys: KeyFolder) -> list[str | Path]:
    return [
        program_path("etcd"),
        f"--data-dir={settings.etcd_data}",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # `down` removes all of it
        "--log-level=warn",
    ]


def _api_server(settings: ClusterSettings, keys: KeyFolder) -> list[str | Path]:
    serving = api_server_identity(settings)
    return [
        program_path("kube-apiserver"),
        "--etcd-servers=http://127.0.0.1:2379",
        f"--bind-address={settings.api_address}",
        f"--advertise-address={settings.api_address}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={settings.service_range}",
        "--endpoint-reconciler-type=lease",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={keys.authority}",
        f"--tls-cert-file={keys.certificate(serving)}",
        f"--tls-private-key-file={keys.key(serving)}",
        f"--kubelet-certificate-authority={keys.authority}",
        f"--kubelet-client-certificate={keys.certificate(ADMIN)}",
        f"--kubelet-client-key={keys.key(ADMIN)}",
        "--kubelet-preferred-address-types=InternalIP",  # no DNS server knows the node names
        f"--proxy-client-cert-file={keys.certificate(AGGREGATOR)}",
        f"--proxy-client-key-file={keys.key(AGGREGATOR)}",
        f"--requestheader-client-ca-file={keys.authority}",
        f"--requestheader-allowed-names={AGGREGATOR.user}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        f"--service-account-key-file={keys.service_account_key}",
        f"--service-account-signing-key-file={keys.service_account_key}",
    ]


def _controller_manager(settings: ClusterSettings, keys: KeyFolder) -> list[str | Path]:
    controllers = ["*", *(f"-{name}" for name in settings.disabled_controllers)]
    return [
        program_path("kube-controller-manager"),
        f"--kubeconfig={keys.folder / CONTROLLER_MANAGER.name}.kubeconfig",
        "--leader-elect=false",
        "--secure-port=0",
        f"--controllers={','.join(controllers)}",
        "--use-service-account-credentials",
        # With the default rate limits it needs four seconds to start.
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        f"--service-account-private-key-file={keys.service_account_key}",
        f"--root-ca-file={keys.authority}",
        f"--cluster-signing-cert-file={keys.authority}",
        f"--cluster-signing-key-file={keys.authority_key}",
        f"--flex-volume-plugin-dir={settings.state_dir / 'volume-plugins'}",
    ]


def _scheduler(_settings: ClusterSettings, keys: KeyFolder) -> list[str | Path]:
    return [
        program_path("kube-scheduler"),
        f"--kubeconfig={keys.folder / SCHEDULER.name}.kubeconfig",
        "--leader-elect=false",
        "--secure-port=0",
    ]


def _coredns(settings: ClusterSettings, keys: KeyFolder) -> list[str | Path]:
    corefile = settings.state_dir / "Corefile"
    corefile.write_text(
        _COREFILE.format(
            domain=CLUSTER_DOMAIN,
            address=settings.api_address,
            kubeconfig=keys.folder / f"{COREDNS.name}.kubeconfig",
        )
    )
    return [program_path("coredns"), "-conf", corefile]


def apply_dns_objects(api: Api, settings: ClusterSettings) -> None:
    """Create the role, the Service and the endpoints of CoreDNS, which runs as a process and not as a pod."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    api.apply(f"{rbac}/clusterroles", _dns_role())
    api.apply(f"{rbac}/clusterrolebindings", _dns_binding())
    api.apply("/api/v1/namespaces/kube-system/services", _dns_service(settings))
    api.apply("/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", _dns_endpoints(settings))


def _dns_role() -> Object:
    reads = ["list", "watch"]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "grpo-cluster:coredns"},
        "rules": [
            {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": reads},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": reads},
        ],
    }


def _dns_binding() -> Object:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "grpo-cluster:coredns"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "grpo-cluster:coredns",
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": COREDNS.user}],
    }


def _dns_service(settings: ClusterSettings) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        "spec": {
            "clusterIP": settings.dns_service_address,
            "ports": [
                {"name": "dns", "port": 53, "targetPort": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "targetPort": 53, "protocol": "TCP"},
            ],
        },
    }


def _dns_endpoints(settings: ClusterSettings) -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns-process",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [settings.api_address], "conditions": {"ready": True}}],
        "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        ],
    }
