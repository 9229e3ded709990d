"""Faults that a test puts into a namespace: volumes, a quota, a webhook. Each is removed at the end."""

import base64
import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from grpo_cluster import processes
from grpo_cluster.settings import ClusterError, ClusterSettings
from grpo_scenarios.namespace import Namespace, Object

STORAGE_CLASS = "of-causes"
"""A storage class without a provisioner, which no other claim asks for."""


@contextmanager
def small_volume(namespace: Namespace, claim: str, *, size: str) -> Iterator[None]:
    """A claim on a file system of `size`, such as 600k, which is mounted in the node only."""
    settings = ClusterSettings.for_instance()
    folder = settings.state_dir / "causes" / namespace.name / claim
    folder.mkdir(parents=True, exist_ok=True)
    node = processes.running(settings, "node0")
    if node is None:
        raise ClusterError("node0 does not run: `make cluster-up`")
    spaces = Path(f"/proc/{node.pid}/ns")
    # umount reads /proc, and the one in the node shows the processes of the node only.
    inside = ["nsenter", f"--mount={spaces / 'mnt'}", f"--pid={spaces / 'pid_for_children'}"]
    _run(*inside, "mount", "-t", "tmpfs", "-o", f"size={size}", "causes", str(folder))
    try:
        with volume(namespace, claim, path=folder):
            yield
    finally:
        _run(*inside, "umount", "--lazy", str(folder))
        shutil.rmtree(folder)


@contextmanager
def volume(namespace: Namespace, claim: str, *, path: Path) -> Iterator[None]:
    """A claim on a folder of the node, which need not exist."""
    name = f"{namespace.name}-{claim}"
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": STORAGE_CLASS,
                "local": {"path": str(path)},
                "nodeAffinity": {
                    "required": {
                        "nodeSelectorTerms": [{"matchExpressions": [
                            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node0"]}
                        ]}]
                    }
                },
            },
        },
        claim_of(claim, storage="1Gi", volume=name),
    )  # fmt: skip
    try:
        yield
    finally:
        namespace.target.run_kubectl("delete", "persistentvolume", name, "--ignore-not-found", "--wait=false")


def claim_of(name: str, *, storage: str, volume: str = "") -> Object:
    """A claim that only `volume` can satisfy; without `volume` nothing can."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": STORAGE_CLASS,
            "resources": {"requests": {"storage": storage}},
            **({"volumeName": volume} if volume else {}),
        },
    }


def quota(*, gpus: int) -> Object:
    """A quota of `gpus` GPUs for all pods of the namespace. Pods that ask for none are not limited."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {"requests.nvidia.com/gpu": str(gpus)}},
    }


def config_map(name: str, data: dict[str, str]) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@contextmanager
def sidecar_injector(namespace: Namespace, job: str, *, folder: Path) -> Iterator[None]:
    """A webhook that adds a privileged init container to the pods of a job, as a service mesh may do."""
    settings = ClusterSettings.for_instance()
    key, certificate = folder / "webhook.key", folder / "webhook.crt"
    _run(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "2", "-subj", "/CN=webhook"),
        *("-addext", f"subjectAltName=IP:{settings.host_address}"),
        *("-keyout", str(key), "-out", str(certificate)),
    )
    server = HTTPServer((settings.host_address, 0), _Injector)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name = f"{namespace.name}-injector"
    address = f"https://{settings.host_address}:{server.server_port}/"
    webhook: Object = {
        "name": "injector.causes.test",
        "clientConfig": {"url": address, "caBundle": base64.b64encode(certificate.read_bytes()).decode()},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
        "objectSelector": {"matchLabels": {"grpo.dev/job": job}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
    }
    namespace.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }
    )
    try:
        yield
    finally:
        namespace.target.run_kubectl("delete", "mutatingwebhookconfiguration", name, "--ignore-not-found")
        server.shutdown()
        server.server_close()


class _Injector(BaseHTTPRequestHandler):
    """Answers every review with a patch that makes the pod break Pod Security `restricted`."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        container = {
            "name": "network-setup",
            "image": "localhost/pause:dev",
            "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
        }
        patch = [{"op": "add", "path": "/spec/initContainers", "value": [container]}]
        answer = {
            "uid": review["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
        }
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: a webhook is called for every pod."""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
