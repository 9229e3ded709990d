"""Writes kubeconfig files: the API server, and the certificate of a user."""

import base64
import json
from pathlib import Path

from grpo_cluster.certificates import Identity, KeyFolder
from grpo_cluster.settings import ClusterSettings


def write_kubeconfig(
    settings: ClusterSettings, keys: KeyFolder, identity: Identity, *, path: Path | None = None
) -> Path:
    """Write a kubeconfig with the certificates in it, by default to the folder of the keys.

    It is JSON, which is valid YAML. Its only context has the name of the cluster, such as grpo0.
    """
    target = path or keys.folder / f"{identity.name}.kubeconfig"
    cluster = {"server": settings.api_url, "certificate-authority-data": _encoded(keys.authority)}
    user = {
        "client-certificate-data": _encoded(keys.certificate(identity)),
        "client-key-data": _encoded(keys.key(identity)),
    }
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": settings.name,
        "clusters": [{"name": settings.name, "cluster": cluster}],
        "users": [{"name": identity.name, "user": user}],
        "contexts": [{"name": settings.name, "context": {"cluster": settings.name, "user": identity.name}}],
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch(mode=0o600)
    target.write_text(json.dumps(content, indent=2) + "\n")
    return target


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
