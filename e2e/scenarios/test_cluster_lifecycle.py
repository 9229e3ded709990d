"""The local cluster itself: it runs pods, and `down` leaves nothing of it on the machine.

These tests use clusters of their own, beside the default one.
"""

import json
import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

from grpo_cluster import images, lifecycle, processes, status
from grpo_cluster.api import Api, Object, resolve
from grpo_cluster.cgroups import hierarchies
from grpo_cluster.node import PAUSE_IMAGE
from grpo_cluster.settings import NUM_INSTANCES, ClusterError, ClusterSettings, NodeSettings
from grpo_cluster.versions import program_path
from grpo_cluster.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

POD_TIMEOUT_SECONDS = 40.0
PODS = "/api/v1/namespaces/default/pods"
COMMAND_LINE = Path(lifecycle.__file__).resolve().parents[1] / "cli.py"

SETTINGS = Path("/proc/sys")
KERNEL_SETTINGS = (
    # What a kubelet and a kube-proxy set where they have the machine for themselves.
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/vs/conntrack",
    "net/netfilter/nf_conntrack_max",
)

# Where containerd, its plug-ins and the kubelet put files where they have the machine for themselves.
FOLDERS = tuple(Path(name) for name in ("/etc", "/opt", "/run", "/usr/libexec", "/var/lib", "/var/log"))


@dataclass(frozen=True)
class Traces:
    """What exists on the machine, of every kind of thing that a cluster could leave behind."""

    processes: frozenset[str]
    mounts: frozenset[str]
    interfaces: frozenset[str]
    routes: frozenset[str]
    cgroups: frozenset[str]
    rules: frozenset[str]
    kernel_settings: frozenset[str]
    files: frozenset[str]

    @classmethod
    def of(cls, settings: ClusterSettings) -> "Traces":
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        return cls(
            processes=frozenset(processes_of(settings)),
            # buildah mounts while it builds, which another test may be doing.
            mounts=frozenset(line for line in mounts if "/var/lib/containers/" not in line),
            interfaces=without_other_clusters(lines("ip", "-oneline", "-brief", "link"), settings),
            routes=without_other_clusters(lines("ip", "route", "show", "table", "all"), settings),
            cgroups=frozenset(
                str(folder) for root in hierarchies() for folder in root.glob(f"{settings.name}-*")
            ),
            rules=frozenset(
                line
                for line in lines("iptables-save") + lines("ip6tables-save")
                if not line.startswith(("#", ":"))
            ),
            kernel_settings=frozenset(
                f"{name}={(SETTINGS / name).read_text()}"
                for name in KERNEL_SETTINGS
                if (SETTINGS / name).exists()
            ),
            files=frozenset(
                str(file)
                for folder in FOLDERS
                if folder.is_dir()
                for file in folder.iterdir()
                if file.name != "containers"  # buildah's
            ),
        )

    def added_since(self, before: "Traces") -> dict[str, set[str]]:
        """What exists now and did not exist `before`, by kind."""
        added = {
            field.name: getattr(self, field.name) - getattr(before, field.name) for field in fields(self)
        }
        return {kind: set(things) for kind, things in added.items() if things}


def without_other_clusters(texts: Iterable[str], settings: ClusterSettings) -> frozenset[str]:
    """The texts without those that name another cluster, which may start or stop during the test."""
    others = [ClusterSettings.for_instance(n) for n in range(NUM_INSTANCES) if n != settings.instance]
    names = [
        name
        for other in others
        for name in (
            f"{other.name}-",
            f"{other.node_network}.",
            f"{other.pod_network}.",
            f"{other.service_network}.",
        )
    ]
    return frozenset(text for text in texts if not any(name in text for name in names))


def lines(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def processes_of(settings: ClusterSettings) -> Iterator[str]:
    """Processes that name the cluster's folder or are in its cgroups: daemons, shims and containers."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        texts = [read_if_exists(folder / file) for file in ("environ", "cmdline", "cgroup")]
        if any(str(settings.state_dir).encode() in text for text in texts[:2]) or (
            f"/{settings.name}-node".encode() in texts[2]
        ):
            command, cgroups = texts[1].replace(bytes(1), b" "), texts[2].replace(b"\n", b" ")
            yield f"{folder.name} {command.decode(errors='replace')} in {cgroups.decode()}"


def read_if_exists(file: Path) -> bytes:
    """The content of a file of /proc; empty when its process has ended, or may not be read, as process 1."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def pod(
    name: str, *, image: str = PAUSE_IMAGE, command: list[str] | None = None, node: str = "node0"
) -> Object:
    container: Object = {"name": "main", "image": image, "imagePullPolicy": "Never"}
    if command:
        container["command"] = command
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    }


def run_pod(api: Api, body: Object) -> Object:
    """Create a pod and return it once it runs and is ready."""
    name = body["metadata"]["name"]
    api.apply(PODS, body)

    def conditions() -> list[Object]:
        return (api.get(f"{PODS}/{name}") or {}).get("status", {}).get("conditions", [])

    wait_until(
        lambda: any(c["type"] == "Ready" and c["status"] == "True" for c in conditions()),
        timeout_seconds=POD_TIMEOUT_SECONDS,
        what=f"pod {name} to be ready",
        hint=lambda: json.dumps((api.get(f"{PODS}/{name}") or {}).get("status"), indent=1),
    )
    return api.get(f"{PODS}/{name}") or {}


def answers(address: str, *, prefix: list[str] | None = None) -> bool:
    """Whether a machine at the address answers a connection, also by refusing it."""
    probe = (
        "import socket,sys\n"
        "try: socket.create_connection((sys.argv[1], 9), timeout=2)\n"
        "except ConnectionRefusedError: sys.exit(0)\n"
        "except OSError as error: sys.exit(str(error))\n"
    )
    return (
        subprocess.run([*(prefix or []), sys.executable, "-c", probe, address], check=False).returncode == 0
    )


def network_of_a_pod(node: NodeSettings) -> list[str]:
    """Prefix for a command that runs it in the network of some pod of the node."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            is_pod = f"/{node.cgroup}/".encode() in read_if_exists(folder / "cgroup")
            is_pause = read_if_exists(folder / "cmdline").startswith(b"/pause")
            if is_pod and is_pause:
                return ["nsenter", f"--net=/proc/{folder.name}/ns/net"]
    raise AssertionError(f"{node.name} runs no pod")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSettings]:
    """A running cluster of one node."""
    chosen = ClusterSettings.for_instance(9, state_dir=tmp_path_factory.mktemp("cluster9"))
    try:
        lifecycle.up(chosen, num_nodes=1)
        yield chosen
    finally:
        lifecycle.down(chosen)


@pytest.fixture(scope="module")
def api(settings: ClusterSettings) -> Api:
    return Api.of(settings)


def test_up_on_a_running_cluster_changes_nothing(settings: ClusterSettings) -> None:
    before = processes.recorded(settings)
    lifecycle.up(settings, num_nodes=1)
    assert processes.recorded(settings) == before
    assert all(process.is_alive for process in before.values())


def test_another_folder_cannot_take_the_number_of_a_running_cluster(
    settings: ClusterSettings, tmp_path: Path
) -> None:
    other = ClusterSettings.for_instance(settings.instance, state_dir=tmp_path)
    with pytest.raises(ClusterError, match=str(settings.state_dir)):
        lifecycle.up(other, num_nodes=0)
    lifecycle.down(other)
    assert status.is_healthy(settings)


def test_kubectl_sees_a_ready_node_and_the_status_is_healthy(settings: ClusterSettings) -> None:
    kubectl = [str(program_path("kubectl")), "--kubeconfig", str(settings.kubeconfig)]
    assert lines(*kubectl, "get", "nodes", "--no-headers")[0].split()[:2] == ["node0", "Ready"]
    assert status.is_healthy(settings)
    assert PAUSE_IMAGE in status.describe(settings)


def test_names_resolve_from_the_machine_and_from_a_pod(settings: ClusterSettings, api: Api) -> None:
    found = run_pod(api, pod("named"))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "headless"},
        "spec": {"clusterIP": "None", "selector": {"app": "named"}, "ports": [{"port": 80}]},
    }
    api.apply("/api/v1/namespaces/default/services", service)
    name = "headless.default.svc.cluster.local"
    address = found["status"]["podIP"]
    for server in (settings.api_address, settings.dns_service_address):
        wait_until(
            lambda at=server: resolve(name, server=at) == address,
            timeout_seconds=10,
            what=f"{name} at {server}",
        )
    ask = (
        f"import sys; sys.path.insert(0, {str(COMMAND_LINE.parent)!r})\n"
        "from grpo_cluster.api import resolve\n"
        f"print(resolve({name!r}, server={settings.dns_service_address!r}))"
    )
    inside = network_of_a_pod(NodeSettings(settings, 0))
    assert lines(*inside, sys.executable, "-c", ask) == [address]


def test_a_name_outside_the_cluster_does_not_exist(settings: ClusterSettings) -> None:
    """The answer is NXDOMAIN. Programs take a refusal for a temporary failure."""
    query = b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\x00\x01\x00\x01"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(5)
        udp.sendto(query, (settings.api_address, 53))
        assert udp.recv(512)[3] & 0x0F == 3


def test_a_pod_reaches_the_api_server_by_its_service(settings: ClusterSettings, api: Api) -> None:
    run_pod(api, pod("client"))
    connect = "import socket,sys; socket.create_connection((sys.argv[1], 443), timeout=5)"
    inside = network_of_a_pod(NodeSettings(settings, 0))
    assert lines(*inside, sys.executable, "-c", connect, settings.kubernetes_service_address) == []


def test_a_layer_on_top_of_an_image_that_the_node_has_makes_a_new_image(
    settings: ClusterSettings, api: Api, tmp_path: Path
) -> None:
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        tar.add(program_path("pause"), arcname="added")
    images.load_layer(layer, base=PAUSE_IMAGE, name="localhost/layered:dev", settings=settings)
    images.load_layer(layer, base=PAUSE_IMAGE, name="localhost/layered:dev", settings=settings)
    run_pod(api, pod("layered", image="localhost/layered:dev", command=["/added"]))


def test_an_image_built_by_buildah_reaches_the_node(settings: ClusterSettings, api: Api) -> None:
    name = "localhost/cluster-test:dev"
    [container] = lines("buildah", "from", "scratch")
    try:
        lines("buildah", "add", container, str(program_path("pause")), "/from-buildah")
        lines("buildah", "commit", "--quiet", container, name)
        images.load_image(name, settings=settings)
        run_pod(api, pod("built", image=name, command=["/from-buildah"]))
    finally:
        lines("buildah", "rm", container)
        lines("buildah", "rmi", "--force", name)


def test_the_error_for_an_image_that_was_never_built_names_it(settings: ClusterSettings) -> None:
    with pytest.raises(ClusterError, match="localhost/never-built:dev"):
        images.load_image("localhost/never-built:dev", settings=settings)


def test_a_released_volume_is_emptied_and_offered_again(settings: ClusterSettings, api: Api) -> None:
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "checkpoint"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    api.apply(claims, claim)
    body = pod("writer")
    body["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "checkpoint"}}]
    body["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    run_pod(api, body)
    bound = (api.get(f"{claims}/checkpoint") or {})["spec"]["volumeName"]
    volume = api.get(f"/api/v1/persistentvolumes/{bound}") or {}
    folder = Path(volume["spec"]["local"]["path"])
    (folder / "step-1").mkdir()

    kubectl = [str(program_path("kubectl")), "--kubeconfig", str(settings.kubeconfig)]
    lines(*kubectl, "delete", "pod/writer", "pvc/checkpoint", "--timeout=30s")

    def phase() -> str:
        return (api.get(f"/api/v1/persistentvolumes/{bound}") or {})["status"]["phase"]

    wait_until(lambda: phase() == "Available", timeout_seconds=20, what=f"{bound} to be offered again")
    assert list(folder.iterdir()) == []


def test_a_second_node_joins_and_comes_back_after_it_was_killed(settings: ClusterSettings, api: Api) -> None:
    second = NodeSettings(settings, 1)
    lifecycle.up(settings, num_nodes=2)
    here = run_pod(api, pod("here"))["status"]["podIP"]
    there = run_pod(api, pod("there", node=second.name))["status"]["podIP"]
    assert answers(here)
    assert answers(there)
    assert answers(there, prefix=network_of_a_pod(NodeSettings(settings, 0)))
    assert answers(here, prefix=network_of_a_pod(second))

    killed = processes.running(settings, second.name)
    assert killed is not None
    killed.kill()
    wait_until(
        lambda: not any(f"/{second.cgroup}/" in line for line in processes_of(settings)),
        timeout_seconds=10,
        what="the node's containers to end with it",
    )
    assert not status.is_healthy(settings)
    lifecycle.up(settings, num_nodes=2)
    assert status.is_healthy(settings)


def test_down_leaves_no_trace_whatever_was_running(tmp_path: Path) -> None:
    settings = ClusterSettings.for_instance(8, state_dir=tmp_path)
    before = Traces.of(settings)
    try:
        lifecycle.up(settings, num_nodes=1)
        run_pod(Api.of(settings), pod("running"))
        while_up = Traces.of(settings).added_since(before)
    finally:
        lifecycle.down(settings)
    assert {"processes", "interfaces", "routes", "cgroups"} <= while_up.keys(), (
        "the traces do not show a running cluster"
    )
    assert Traces.of(settings).added_since(before) == {}
    lifecycle.down(settings)
    assert Traces.of(settings).added_since(before) == {}


def test_down_after_a_crash_leaves_no_trace_and_kills_no_other_process(tmp_path: Path) -> None:
    """A component was killed, a record is lost, and a record has the pid of a process that is not ours."""
    settings = ClusterSettings.for_instance(8, state_dir=tmp_path)
    before = Traces.of(settings)
    with subprocess.Popen(["sleep", "300"]) as other:
        try:
            lifecycle.up(settings, num_nodes=0)
            processes.recorded(settings)["kube-apiserver"].kill()
            (settings.pids / "etcd.json").unlink()
            record = settings.pids / "kube-controller-manager.json"
            record.write_text(json.dumps({**json.loads(record.read_text()), "pid": other.pid}))
            lifecycle.down(settings)
            assert other.poll() is None, "a process that is not ours was killed"
        finally:
            other.kill()
            lifecycle.down(settings)
    assert Traces.of(settings).added_since(before) == {}
