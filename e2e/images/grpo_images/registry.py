"""Images for a cluster of the user's own: built by docker or buildah, pushed to a registry."""

import shutil

from grpo_cluster.console import step
from grpo_images.buildah import build, logged
from grpo_images.sources import REPOSITORY, Image

_PUBLIC_BASE = "python:3.11-slim"


def publish(image: Image, *, registry: str) -> str:
    """Build `image` on the public base and push it to `registry`; returns the pushed name."""
    name = f"{registry.rstrip('/')}/grpo-{image.name}:{image.tag.rpartition(':')[2]}"
    with step(f"build and push {name}"):
        if shutil.which("docker"):
            logged(
                ["docker", "build", "--tag", name, "--file", image.containerfile, REPOSITORY], log=image.name
            )
            logged(["docker", "push", name], log=image.name)
        else:
            build(
                image.containerfile,
                tag=name,
                base=_PUBLIC_BASE,
                context=REPOSITORY,
                log=image.name,
                pull=True,
            )
            logged(["buildah", "push", name], log=image.name)
    return name
