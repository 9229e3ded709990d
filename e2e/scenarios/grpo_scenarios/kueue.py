"""The real Kueue in the local cluster: its controller manager is a plain process in the network of the
control plane, and all else is installed as its own manifests say."""

import base64
import http.client
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

from grpo_cluster import processes
from grpo_cluster.binaries import build_all, dependency_folder
from grpo_cluster.certificates import Identity, KeyFolder, ensure_certificate
from grpo_cluster.network import HOLDER, inside
from grpo_cluster.settings import ClusterError, ClusterSettings
from grpo_cluster.versions import KUEUE, program_path
from grpo_cluster.waiting import wait_until
from grpo_demo.target import Target
from grpo_scenarios.namespace import Object

GROUP = "kueue.x-k8s.io"
API_VERSION = f"{GROUP}/v1beta2"
HAS_PODS_CHECKED = {"e2e.grpo.dev/kueue-pods": "true"}
"""Label of a namespace in which Kueue is asked about each pod."""

_PROCESS = "kueue"
_NAMESPACE, _ACCOUNT = "kueue-system", "kueue-controller-manager"
_VISIBILITY = "kueue-visibility-server"
_HEALTH_PORT, _METRICS_PORT, _VISIBILITY_PORT, _WEBHOOK_PORT = 8081, 8443, 8082, 9443
_CERTIFICATES = ("webhook", "visibility", "etc/kueue/metrics/certs")
"""Folders in which it looks for tls.crt and tls.key; the last two cannot be chosen."""
_API_SERVICE = "APIService"
_NOT_INSTALLED = ("Deployment", "ConfigMap", "Secret")
_START_TIMEOUT_SECONDS = 120.0  # 3 on an idle machine
_KINDS_THAT_HOLD_OTHERS = ("workloads", "localqueues", "clusterqueues", "resourceflavors")
"""In the order of their deletion: Kueue keeps a flavor until no queue has it, and a queue until no Workload
has quota of it."""


@contextmanager
def kueue(target: Target) -> Iterator["Kueue"]:
    """Kueue in the local cluster until the end of the block; it is built if it is not cached."""
    build_all((KUEUE,))
    made = Kueue(target, ClusterSettings.for_instance())
    made.stop()  # one that a killed run has left
    made.install()
    made.start()
    try:
        yield made
    finally:
        made.uninstall()


@dataclass(frozen=True)
class Kueue:
    """Kueue's controller manager in a cluster. Its log is `kueue.log` among the cluster's."""

    target: Target
    settings: ClusterSettings

    def start(self, **more: object) -> None:
        """Start it as its service account, wait until it is ready, webhooks included, and add its visibility
        API. `more` takes the place of what its Configuration has otherwise."""
        holder = processes.running(self.settings, HOLDER)
        if holder is None:
            raise ClusterError("the cluster's network is gone: run `make cluster-up`")
        command = ["chroot", self._root(more), "/kueue", "--config=/kueue.json", "--zap-log-level=2"]
        environment = {
            "KUBERNETES_SERVICE_HOST": self.settings.api_address,
            "KUBERNETES_SERVICE_PORT": "6443",
        }
        process = processes.start(
            self.settings, _PROCESS, [*inside(holder), *command], environment=environment
        )
        log = processes.log_path(self.settings, _PROCESS)
        wait_until(
            lambda: self._is_ready() or not process.is_alive,
            timeout_seconds=_START_TIMEOUT_SECONDS,
            what="Kueue to be ready",
            hint=lambda: f"log: {log}",
        )
        if not process.is_alive:
            raise ClusterError(f"Kueue ended at its start: see {log}")
        # the API server asks again after half a minute if nobody answered the first time
        self._apply(item for item in self._manifests if item["kind"] == _API_SERVICE)

    def stop(self) -> None:
        """Kill it, as when its node is lost. What it has installed in the cluster stays."""
        process = processes.running(self.settings, _PROCESS)
        if process is not None:
            process.kill()
            wait_until(lambda: not process.is_alive, timeout_seconds=10, what="the end of Kueue")
        processes.forget(self.settings, _PROCESS)

    @contextmanager
    def configured(self, **more: object) -> Iterator[None]:
        """Kueue started again with `more` in its Configuration, until the end of the block."""
        self.stop()
        self.start(**more)
        try:
            yield
        finally:
            self.stop()
            self.start()

    def install(self) -> None:
        """Its CRDs, rights and webhooks. Nothing of it runs yet."""
        self._apply(item for item in self._manifests if item["kind"] != _API_SERVICE)
        crds = [f"crd/{kind}.{GROUP}" for kind in (*_KINDS_THAT_HOLD_OTHERS, "workloadpriorityclasses")]
        self.target.run_kubectl("wait", "--for=condition=Established", "--timeout=60s", *crds)

    def uninstall(self) -> None:
        """Delete its objects while it runs, because it takes back its finalizers, and then the rest."""
        if processes.running(self.settings, _PROCESS) is None:
            self.start()
        for kind in _KINDS_THAT_HOLD_OTHERS:
            self.target.run_kubectl("delete", f"{kind}.{GROUP}", "--all", "--all-namespaces", "--timeout=60s")
        self.stop()
        everything = _as_list(self._manifests)
        self.target.run_kubectl(
            "delete", "--filename", "-", "--ignore-not-found", "--wait=false", stdin=everything
        )
        shutil.rmtree(self._folder)

    @property
    def _folder(self) -> Path:
        return self.settings.state_dir / "kueue"

    def _apply(self, items: Iterable[Object]) -> None:
        arguments = ("apply", "--filename", "-", "--server-side", "--force-conflicts")
        self.target.run_kubectl(*arguments, stdin=_as_list(items))

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(self.settings.api_address, _HEALTH_PORT, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False  # it does not listen yet
        finally:
            connection.close()

    def _root(self, more: Object) -> Path:
        """The folder that the process sees as its root: what its container would have, at the same paths."""
        root = self._folder
        shutil.rmtree(root, ignore_errors=True)
        keys = KeyFolder(self.settings.keys)
        identity = self._identity()
        ensure_certificate(keys, identity)
        for name in _CERTIFICATES:
            folder = root / name
            folder.mkdir(parents=True)
            shutil.copy(keys.certificate(identity), folder / "tls.crt")
            shutil.copy(keys.key(identity), folder / "tls.key")
        account = root / "var/run/secrets/kubernetes.io/serviceaccount"
        account.mkdir(parents=True)
        shutil.copy(keys.authority, account / "ca.crt")
        (account / "namespace").write_text(_NAMESPACE)
        token = self.target.run_kubectl(
            "create", "token", _ACCOUNT, "--namespace", _NAMESPACE, "--duration=24h"
        )
        (account / "token").write_text(token.strip())
        (root / "kueue.json").write_text(json.dumps(self._configuration() | more))
        (root / "kueue").hardlink_to(program_path("kueue"))
        return root

    def _identity(self) -> Identity:
        return Identity(name="kueue", user="kueue", alternative_names=(f"IP:{self.settings.api_address}",))

    def _configuration(self) -> Object:
        address = self.settings.api_address
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": _NAMESPACE,
            "health": {"healthProbeBindAddress": f"{address}:{_HEALTH_PORT}"},
            "metrics": {"bindAddress": f"{address}:{_METRICS_PORT}"},
            "webhook": {"host": address, "port": _WEBHOOK_PORT, "certDir": f"/{_CERTIFICATES[0]}"},
            "visibilityServer": {"bindAddress": address, "bindPort": _VISIBILITY_PORT},
            "leaderElection": {"leaderElect": False},
            # it would write certificates for the names of its Services, which lead nowhere here
            "internalCertManagement": {"enable": False},
            "integrations": {"frameworks": ["batch/job"]},
        }

    @cached_property
    def _manifests(self) -> list[Object]:
        """What `kubectl apply -k config/default` of its sources installs, but for its pod: the API server is
        told the address of the process instead of the name of a Service."""
        sources = dependency_folder(KUEUE, "sigs.k8s.io/kueue")
        text = self.target.run_kubectl("kustomize", str(sources / "config" / "default"))
        everything = yaml.load_all(text, Loader=yaml.CSafeLoader)
        kept = [item for item in everything if item and item["kind"] not in _NOT_INSTALLED]
        for item in kept:
            match item["kind"]:
                case "CustomResourceDefinition" if "conversion" in item["spec"]:
                    hook = item["spec"]["conversion"]["webhook"]
                    hook["clientConfig"] = self._client(hook["clientConfig"])
                case "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration":
                    item["webhooks"] = [
                        {**hook, "clientConfig": self._client(hook["clientConfig"]), **where}
                        for hook in item["webhooks"]
                        if (where := _where(hook)) is not None
                    ]
                case "Service":
                    del item["spec"]["selector"]
        services = [item for item in kept if item["kind"] == "Service"]
        others = [item for item in kept if item["kind"] != "Service"]
        visibility = [item for item in services if item["metadata"]["name"] == _VISIBILITY]
        return [*others, *visibility, self._visibility_endpoints()]

    def _client(self, by_service: Object) -> Object:
        address = f"https://{self.settings.api_address}:{_WEBHOOK_PORT}"
        authority = KeyFolder(self.settings.keys).authority
        return {
            "url": address + by_service["service"]["path"],
            "caBundle": base64.b64encode(authority.read_bytes()).decode(),
        }

    def _visibility_endpoints(self) -> Object:
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{_VISIBILITY}-process",
                "namespace": _NAMESPACE,
                "labels": {"kubernetes.io/service-name": _VISIBILITY},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.settings.api_address], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": _VISIBILITY_PORT, "protocol": "TCP"}],
        }


def _where(hook: Object) -> Object | None:
    """Where a webhook is asked, as fields of it: in the whole cluster about objects of Kueue, in namespaces
    with a label about pods, and nowhere about the others. Pods and jobs elsewhere do not wait for this
    process."""
    (rule,) = hook["rules"]
    if rule["apiGroups"] == [GROUP]:
        return {}
    is_of_pods = (rule["apiGroups"], rule["resources"]) == ([""], ["pods"])
    return {"namespaceSelector": {"matchLabels": HAS_PODS_CHECKED}} if is_of_pods else None


def _as_list(items: Iterable[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})
