"""Builds images with docker or buildah and pushes them to a registry, for any other cluster."""

import re
import shutil
import subprocess

from grpo_cluster.console import step
from grpo_cluster.settings import ClusterError
from grpo_images.buildah import build, logged
from grpo_images.sources import REPOSITORY, RUNTIME, Image

VARIANTS = ("cpu", "cuda")
FIND_DIGEST = "docker buildx imagetools inspect python:3.11-slim"
"""Prints the digest of an image that a base may be; the images need a Debian with Python 3.11."""
_WITH_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")


def publish(image: Image, *, registry: str, base: str, variant: str = "cpu") -> str:
    """Build `image` on `base` and push it to `registry`; returns the pushed name.

    `variant` is one of VARIANTS; it is for the runtime only. Raises ClusterError for a base without a digest:
    what a tag names may be another image tomorrow, which everything that is published would then run.
    """
    if not _WITH_DIGEST.fullmatch(base):
        raise ClusterError(
            f"--base (BASE= of make) is {base!r}, which has no digest: name an image as NAME@sha256:DIGEST, "
            f"which `{FIND_DIGEST}` prints"
        )
    suffix = "-cuda" if variant == "cuda" and image is RUNTIME else ""
    name = f"{registry.rstrip('/')}/grpo-{image.name}:{image.tag.rpartition(':')[2]}{suffix}"
    arguments = {"BASE": base} | ({"VARIANT": variant} if image is RUNTIME else {})
    with step(f"build and push {name}"):
        if has_docker():
            options = [f"--build-arg={key}={value}" for key, value in arguments.items()]
            logged(
                ["docker", "build", *options, "--tag", name, "--file", image.containerfile, REPOSITORY],
                log=image.name,
            )
            logged(["docker", "push", name], log=image.name)
        else:
            build(
                image.containerfile,
                tag=name,
                arguments=arguments,
                context=REPOSITORY,
                log=image.name,
                pull=True,
            )
            logged(["buildah", "push", name], log=image.name)
    return name


def has_docker() -> bool:
    """Whether there is a Docker that can build: the client alone cannot."""
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "info"], capture_output=True, check=False)
    return asked.returncode == 0
