"""Loads images into the local cluster: what the Containerfile makes once, then only small layers of code."""

from grpo_cluster.console import say, step
from grpo_cluster.images import image_names, load_image, load_layer, remove_image, running_nodes
from grpo_cluster.settings import ClusterError, ClusterSettings, NodeSettings
from grpo_images.base import ensure_base
from grpo_images.buildah import build, buildah, has_image, image_tags
from grpo_images.code_layer import code_layer
from grpo_images.sources import REPOSITORY, Image


def ensure_loaded(image: Image) -> str:
    """Load `image` with the working tree's code into every node of the local cluster; returns its tag."""
    settings = ClusterSettings.for_instance()
    nodes = list(running_nodes(settings))
    if not nodes:
        raise ClusterError("the local cluster has no running node: run `make cluster-up`")
    held = set.intersection(*(set(image_names(node)) for node in nodes))
    if image.tag in held:
        say(f"    {image.name} image is there: {image.tag}")
        return image.tag
    if image.foundation_tag not in held:
        ensure_built(image)
        with step(f"{image.name} image into the cluster"):
            _remove_other_foundations(image, nodes)
            load_image(image.foundation_tag)
    with step(f"{image.name} image: code layer"), code_layer(image) as layer:
        load_layer(layer, base=image.foundation_tag, name=image.tag)
    return image.tag


def _remove_other_foundations(image: Image, nodes: list[NodeSettings]) -> None:
    """Remove the foundations that no longer match the working tree: each has gigabytes."""
    for node in nodes:
        for name in image_names(node):
            repository, _, tag = name.rpartition(":")
            is_ours = repository in (image.repository, f"{image.repository}-foundation")
            if is_ours and not tag.startswith(image.foundation_digest):
                remove_image(node, name)


def remove(image: Image) -> None:
    """Remove the image from buildah and from the local cluster, with all that was made of it. Its base stays
    in buildah, where it is for the next build, as that of the other images is."""
    for name in image_tags(f"{image.repository}-foundation"):
        buildah("rmi", name)
    for node in running_nodes(ClusterSettings.for_instance()):
        for name in image_names(node):
            if name.rpartition(":")[0].startswith(image.repository):
                remove_image(node, name)


def ensure_built(image: Image) -> str:
    """Build the image with its Containerfile unless buildah has it; returns the tag of the result."""
    if not has_image(image.foundation_tag):
        base = ensure_base(image.base_packages)
        for older in image_tags(f"{image.repository}-foundation"):
            buildah("rmi", older)
        with step(f"{image.name} image by {image.containerfile.relative_to(REPOSITORY)}"):
            build(
                image.containerfile,
                tag=image.foundation_tag,
                arguments={"BASE": base, **image.arguments},
                context=REPOSITORY,
                log=image.name,
            )
    return image.foundation_tag
