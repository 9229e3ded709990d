"""Builds images with docker or buildah and pushes them to a registry, for any other cluster."""

import shutil
import subprocess

from grpo_cluster.console import step
from grpo_images.buildah import build, logged
from grpo_images.sources import REPOSITORY, RUNTIME, Image

PUBLIC_BASE = "python:3.11-slim"
VARIANTS = ("cpu", "cuda")


def publish(image: Image, *, registry: str, base: str = PUBLIC_BASE, variant: str = "cpu") -> str:
    """Build `image` on `base` and push it to `registry`; returns the pushed name.

    `variant` is one of VARIANTS; it is for the runtime only.
    """
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
