"""What the machine must have: root, some Debian packages, some kernel features."""

import os
import shutil
import subprocess
from pathlib import Path

from grpo_cluster.console import run_logged, step
from grpo_cluster.settings import ClusterError, cache_dir

DEBIAN_PACKAGES = (
    "buildah",
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "debootstrap",
    "ethtool",
    "iproute2",
    "ipset",
    "iptables",
    "kmod",
    "libnuma1",
    "openssl",
    "runc",
    "socat",
    "util-linux",
)
CNI_PLUGINS = Path("/usr/lib/cni")  # where Debian puts them
BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


def ensure_prerequisites() -> None:
    """Install the packages that are missing; without any the package registry is not called."""
    if os.geteuid() != 0:
        raise ClusterError("the local cluster makes namespaces and mounts: run it as root")
    _ensure_packages()
    _ensure_kernel()


def missing_packages() -> list[str]:
    """The Debian packages of the list that are not installed."""
    if not shutil.which("dpkg-query"):
        raise ClusterError(
            "the local cluster needs Debian 12 (no dpkg-query here): use CONTEXT= to name a cluster"
        )
    answer = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Abbrev}\n", *DEBIAN_PACKAGES],
        capture_output=True,
        text=True,
        check=False,  # it is 1 when a package is not known
    )
    installed = {line.split()[0] for line in answer.stdout.splitlines() if line.split()[1:2] == ["ii"]}
    return [package for package in DEBIAN_PACKAGES if package not in installed]


def _ensure_packages() -> None:
    missing = missing_packages()
    if not missing:
        return
    with step(f"installing Debian packages: {' '.join(missing)}"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        logs = cache_dir() / "logs"
        fix = "Check that the machine's package sources answer, then run again."
        run_logged(["apt-get", "update"], log=logs / "apt-update.log", fix=fix, environment=environment)
        run_logged(
            ["apt-get", "install", "--yes", "--no-install-recommends", *missing],
            log=logs / "apt-install.log",
            fix=fix,
            environment=environment,
        )


def _ensure_kernel() -> None:
    """Load the kernel features that are modules on some kernels and built into others."""
    for module, proof in (("overlay", _has_overlay), ("br_netfilter", BRIDGE_FILTER.exists)):
        if proof():
            continue
        subprocess.run(["modprobe", module], capture_output=True, check=False)
        if not proof():
            raise ClusterError(
                f"the kernel has no {module}: use a kernel with it, or CONTEXT= to name a cluster"
            )


def _has_overlay() -> bool:
    return "\toverlay\n" in Path("/proc/filesystems").read_text()
