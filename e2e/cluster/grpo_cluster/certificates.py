"""The cluster's own certificate authority, and a certificate for each of its members."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from grpo_cluster.settings import CLUSTER_DOMAIN, ClusterError, ClusterSettings, NodeSettings

DAYS_VALID = 3650


@dataclass(frozen=True)
class Identity:
    """What a certificate says: user and group for the API server, names and addresses for clients."""

    name: str
    user: str
    group: str = ""
    alternative_names: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return (f"/O={self.group}" if self.group else "") + f"/CN={self.user}"


def api_server_identity(settings: ClusterSettings) -> Identity:
    return Identity(
        name="kube-apiserver",
        user="kube-apiserver",
        alternative_names=(
            "DNS:kubernetes",
            "DNS:kubernetes.default",
            "DNS:kubernetes.default.svc",
            f"DNS:kubernetes.default.svc.{CLUSTER_DOMAIN}",
            f"IP:{settings.api_address}",
            f"IP:{settings.kubernetes_service_address}",
        ),
    )


def node_identity(node: NodeSettings) -> Identity:
    """The identity of a kubelet, which is a client of the API server and serves logs and exec."""
    return Identity(
        name=node.name,
        user=f"system:node:{node.name}",
        group="system:nodes",
        alternative_names=(f"DNS:{node.name}", f"IP:{node.address}"),
    )


ADMIN = Identity(name="admin", user="admin", group="system:masters")
CONTROLLER_MANAGER = Identity(name="kube-controller-manager", user="system:kube-controller-manager")
SCHEDULER = Identity(name="kube-scheduler", user="system:kube-scheduler")
KUBE_PROXY = Identity(name="kube-proxy", user="system:kube-proxy")
COREDNS = Identity(name="coredns", user="coredns")
AGGREGATOR = Identity(name="aggregator", user="aggregator")
"""The API server towards other API servers of an APIService, to which it says who asks."""
CLIENTS = (ADMIN, CONTROLLER_MANAGER, SCHEDULER, KUBE_PROXY, COREDNS)


@dataclass(frozen=True)
class KeyFolder:
    """The files with the keys of one cluster; `down` keeps them."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def authority_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def service_account_key(self) -> Path:
        return self.folder / "service-accounts.key"

    def certificate(self, identity: Identity) -> Path:
        return self.folder / f"{identity.name}.crt"

    def key(self, identity: Identity) -> Path:
        return self.folder / f"{identity.name}.key"


def ensure_keys(settings: ClusterSettings) -> KeyFolder:
    """Make the authority and the certificates of the control plane that are missing."""
    keys = KeyFolder(settings.keys)
    if not keys.authority.is_file():
        shutil.rmtree(settings.keys, ignore_errors=True)
        settings.keys.mkdir(parents=True, mode=0o700)
        _openssl(
            "genpkey",
            "-algorithm",
            "RSA",
            "-pkeyopt",
            "rsa_keygen_bits:2048",
            "-out",
            keys.service_account_key,
        )
        _make_authority(keys)
    for identity in (api_server_identity(settings), AGGREGATOR, *CLIENTS):
        ensure_certificate(keys, identity)
    return keys


def ensure_certificate(keys: KeyFolder, identity: Identity) -> None:
    """Make one certificate, signed by the cluster's authority, unless it exists."""
    if keys.certificate(identity).is_file():
        return
    partial = keys.folder / f".{identity.name}.crt.partial"
    extensions = ["basicConstraints=critical,CA:FALSE", "extendedKeyUsage=serverAuth,clientAuth"]
    if identity.alternative_names:
        extensions.append("subjectAltName=" + ",".join(identity.alternative_names))
    _openssl(
        *_new_certificate(identity.subject, key=keys.key(identity), certificate=partial),
        *("-CA", keys.authority, "-CAkey", keys.authority_key),
        *(part for extension in extensions for part in ("-addext", extension)),
    )
    partial.rename(keys.certificate(identity))


def _make_authority(keys: KeyFolder) -> None:
    partial = keys.folder / ".ca.crt.partial"
    _openssl(
        *_new_certificate("/CN=grpo-cluster", key=keys.authority_key, certificate=partial),
        *("-addext", "basicConstraints=critical,CA:TRUE"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"),
    )
    partial.rename(keys.authority)


def _new_certificate(subject: str, *, key: Path, certificate: Path) -> list[str | Path]:
    return [
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"),
        *("-days", str(DAYS_VALID), "-subj", subject, "-keyout", key, "-out", certificate),
    ]


def _openssl(*arguments: str | Path) -> None:
    # The system's configuration would add extensions of its own, so use an empty one.
    environment = {**os.environ, "OPENSSL_CONF": "/dev/null"}
    finished = subprocess.run(
        ["openssl", *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if finished.returncode != 0:
        raise ClusterError(
            f"openssl {arguments[0]} failed:\n{finished.stderr}Version 3 is needed (`openssl version`)."
        )
