"""Which build of the runtime image a pod runs, as its node reports it, and whether it is the run's. Pure.

A tag can move while a job runs. What a node reports tells builds apart: the digest in a repository for an
image that it pulled, else an id of its own, for one that was put on the node.
"""

import re

from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.observe.observed import PodView

_SCHEME = re.compile(r"^[a-z-]+://")
"""Scheme before the id that nodes with Docker report."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}$")
_DEFAULT_REGISTRY = "docker.io"
_NO_REGISTRY = "localhost"
"""What Podman and CRI-O put before the name of an image that came from no registry."""


def pinned_image(image: str, image_id: str) -> str | None:
    """The image by its digest, under which every node gets the same build. None where the node's id of it has
    no repository, or another one than `image` names: no node could pull it, or not with the same rights."""
    name, _, digest = _SCHEME.sub("", image_id).partition("@")
    repository = _repository(image)
    if "@" in image or not _DIGEST.match(digest) or _repository(name) != repository:
        return None
    return None if repository.startswith(f"{_NO_REGISTRY}/") else f"{name}@{digest}"


def other_build(pod: PodView, status: GRPOJobStatus) -> str | None:
    """Why this pod must not be used: it runs another build than the run. None if it runs the run's, and while
    neither is known. An image by digest is what it says, whatever else its node calls it."""
    if not pod.image_id or not status.image_id or "@" in pod.image:
        return None
    if _build(pod.image_id) == _build(status.image_id):
        return None
    where = f" on node {pod.node}" if pod.node else ""
    is_pinned = pinned_image(status.image, status.image_id) is not None
    fix = (
        "it is made again with the run's image by digest"
        if is_pinned
        else f"put the run's image on that node under the name {status.image}, or cordon the node"
    )
    return (
        f"pod {pod.name}{where} runs the image {pod.image_id}, but this run began with {status.image_id} "
        f"under the same name: {fix}"
    )


def _build(image_id: str) -> str:
    """The part of an id that differs between builds; the same build may come from a mirror."""
    return _SCHEME.sub("", image_id).rpartition("@")[2]


def _repository(image: str) -> str:
    """The repository of an image with its registry, without tag and digest."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    name = f"{head}{slash}{last.partition(':')[0]}"
    first, slash, _ = name.partition("/")
    if not slash:
        return f"{_DEFAULT_REGISTRY}/library/{name}"
    has_registry = "." in first or ":" in first or first == _NO_REGISTRY
    return name if has_registry else f"{_DEFAULT_REGISTRY}/{name}"
