"""A Debian base image made by debootstrap, without a registry. It takes the place of python:3.11-slim."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from grpo_cluster.console import step
from grpo_cluster.settings import ClusterError
from grpo_images.buildah import buildah, has_image, logged

# debootstrap does not resolve virtual packages: python3-distutils provides one that python3.11-venv needs.
_PACKAGES = (
    "python3.11",
    "python3.11-venv",
    "python3-distutils",
    "ca-certificates",
    "util-linux",
    "libnuma1",
)
_VERSION = "bookworm-1"


def debian_mirror() -> str:
    """The package server that apt uses on this machine."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(CREATED_BY)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for line in listed.stdout.splitlines():
        site, release, kind = line.split(maxsplit=2)
        if release == "bookworm" and kind == "Packages" and "security" not in site:
            return site
    raise ClusterError("apt names no server for Debian bookworm: add one to /etc/apt/sources.list.d")


def ensure_base(packages: Sequence[str] = ()) -> str:
    """Make the base image, with more Debian packages, unless buildah has it, and return its name."""
    tag = f"localhost/{'-'.join(['grpo-base', *packages])}:{_VERSION}"
    if has_image(tag):
        return tag
    with step("base image (debootstrap)"), tempfile.TemporaryDirectory(prefix="grpo-base-") as folder:
        root = Path(folder) / "root"
        # `logged` checks the exit status: a failed debootstrap leaves a tree that looks complete.
        logged(
            [
                "debootstrap", "--variant=minbase", f"--include={','.join((*_PACKAGES, *packages))}",
                "bookworm", root, debian_mirror(),
            ],
            log="base",
        )  # fmt: skip
        _remove_traces_of_this_machine(root)
        container = buildah("from", "scratch").strip()
        try:
            buildah("add", "--quiet", container, str(root), "/")
            buildah("commit", "--quiet", container, tag)
        finally:
            buildah("rm", container)
    return tag


def _remove_traces_of_this_machine(root: Path) -> None:
    """Remove the names of this machine's servers, and caches."""
    for path in ("etc/apt/sources.list", "etc/resolv.conf", "etc/hostname"):
        (root / path).write_text("")
    for path in ("var/lib/apt/lists", "var/cache/apt/archives", "dev"):
        shutil.rmtree(root / path)
        (root / path).mkdir(parents=True)
    (root / "var/lib/apt/lists/partial").mkdir()
    (root / "var/cache/apt/archives/partial").mkdir()
