"""Loads images into the nodes: whole ones from buildah, archives, and single layers on top of an image."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo_cluster import processes
from grpo_cluster.image_layout import ImageConfig, StoredImage, write_layer_on_top, write_single_file_image
from grpo_cluster.node import PAUSE_IMAGE, ctr
from grpo_cluster.settings import ClusterError, ClusterSettings, NodeSettings
from grpo_cluster.versions import program_path

MAX_NODES = 2


def running_nodes(settings: ClusterSettings) -> Iterator[NodeSettings]:
    """The nodes whose first process is alive."""
    for index in range(MAX_NODES):
        node = NodeSettings(settings, index)
        if processes.running(settings, node.name):
            yield node


def load_image(
    name: str,
    *,
    settings: ClusterSettings | None = None,
    buildah: Sequence[str] = ("buildah",),
) -> None:
    """Stream an image from buildah's storage to every running node.

    `buildah` is the program with its global options. Raises ClusterError when there is no such image or no
    node.
    """
    for node in _nodes(settings):
        push = [*buildah, "push", name, f"docker-archive:/dev/stdout:{name}"]
        sender, receiver = pipe(push, ctr(node, "images", "import", "-"))
        if sender.returncode != 0:
            raise ClusterError(
                f"`{' '.join(push)}` failed: {sender.stderr.strip()}\n"
                f"{node.name}: {receiver.stderr.strip() or 'no error'}\nBuild {name} first."
            )
        _check(receiver, f"{node.name} did not take {name}")


def pipe(
    send: Sequence[str], receive: Sequence[str]
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """Run both commands, the first one's output as the second one's input; return how each of them ended."""
    with subprocess.Popen(send, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sender:
        receiver = subprocess.run(receive, stdin=sender.stdout, capture_output=True, text=True, check=False)
        # Close our end, or a sender whose receiver has ended would write gigabytes into our memory.
        sender.stdout.close()
        _, error = sender.communicate()
    return subprocess.CompletedProcess(send, sender.returncode, "", error), receiver


def load_oci(archive: Path, *, settings: ClusterSettings | None = None) -> None:
    """Load the images of an OCI or docker archive into every running node.

    Layers that the node has already may be missing from the archive.
    """
    for node in _nodes(settings):
        answer = subprocess.run(
            ctr(node, "images", "import", str(archive)), capture_output=True, text=True, check=False
        )
        _check(answer, f"{node.name} did not take {archive}")


def load_layer(
    layer: Path,
    *,
    base: str,
    name: str,
    settings: ClusterSettings | None = None,
    config: ImageConfig | None = None,
) -> None:
    """Make image `name` on every node from `base`, which the node has, and one uncompressed layer tar.

    Only the layer is sent, so a change of code takes a fraction of a second, however large `base` is.
    `config` replaces entries of the base's configuration, such as {"Env": [...]}.
    """
    for node in _nodes(settings):
        stored = read_image(node, base)
        with TemporaryDirectory(prefix="grpo-layer-") as folder:
            archive = Path(folder) / "image.tar"
            write_layer_on_top(stored, layer, name=name, config=config or {}, archive=archive)
            answer = subprocess.run(
                ctr(node, "images", "import", str(archive)), capture_output=True, text=True, check=False
            )
        _check(answer, f"{node.name} did not take {name}")


def ensure_pause_image(node: NodeSettings) -> None:
    """Make the pause image, which every pod needs, from one program of ours."""
    if PAUSE_IMAGE in image_names(node):
        return
    with TemporaryDirectory(prefix="grpo-pause-") as folder:
        archive = Path(folder) / "pause.tar"
        write_single_file_image(program_path("pause"), name=PAUSE_IMAGE, archive=archive)
        answer = subprocess.run(
            ctr(node, "images", "import", str(archive)), capture_output=True, text=True, check=False
        )
    _check(answer, f"{node.name} did not take {PAUSE_IMAGE}")


def image_names(node: NodeSettings) -> list[str]:
    """The names of the images on a running node, without names that are only digests."""
    return [name for name in _digests(node) if not _is_digest(name)]


def remove_image(node: NodeSettings, name: str) -> None:
    """Remove an image; its layers are deleted once no other image uses them. Raises ClusterError when there
    is none."""
    digest = image_digest(node, name)
    if digest is None:
        raise ClusterError(f"{node.name} has no image {name}")
    names = names_of_digest(node, digest)
    if any(other != name and not _is_digest(other) for other in names):
        names = [name]
    # the kubelet's runtime has given it a name that is only a digest, which would keep the layers
    answer = subprocess.run(
        ctr(node, "images", "remove", "--sync", *names), capture_output=True, text=True, check=False
    )
    _check(answer, f"{node.name} did not remove {name}")


def image_digest(node: NodeSettings, name: str) -> str | None:
    """The digest behind a name, sha256:...; None when the node has no such image."""
    return _digests(node).get(name)


def names_of_digest(node: NodeSettings, digest: str) -> list[str]:
    """All names of an image, also those that are only digests."""
    return [name for name, found in _digests(node).items() if found == digest]


def _digests(node: NodeSettings) -> dict[str, str]:
    """The digest behind each name."""
    answer = subprocess.run(ctr(node, "images", "list"), capture_output=True, text=True, check=False)
    _check(answer, f"{node.name} does not answer")
    rows = [line.split() for line in answer.stdout.splitlines()[1:]]
    return {row[0]: row[2] for row in rows}


def _is_digest(name: str) -> bool:
    return name.startswith("sha256:") or "@" in name


def read_image(node: NodeSettings, name: str) -> StoredImage:
    """Read the manifest of an image on the node. Raises ClusterError when the node does not have it."""
    digest = image_digest(node, name)
    if digest is None:
        raise ClusterError(f"{node.name} has no image {name}: load it first (`cli.py load {name}`)")

    def read(blob: str) -> bytes:
        answer = subprocess.run(ctr(node, "content", "get", blob), capture_output=True, check=False)
        if answer.returncode != 0:
            raise ClusterError(
                f"{node.name} has lost part {blob} of {name}: load it again (`cli.py load {name}`)"
            )
        return answer.stdout

    return StoredImage.read(digest, read)


def _nodes(settings: ClusterSettings | None) -> list[NodeSettings]:
    chosen = settings or ClusterSettings.for_instance()
    nodes = list(running_nodes(chosen))
    if not nodes:
        raise ClusterError(f"cluster {chosen.name} has no running node: run `python e2e/cluster/cli.py up`")
    return nodes


def _check(answer: subprocess.CompletedProcess[str], problem: str) -> None:
    if answer.returncode != 0:
        raise ClusterError(f"{problem}: {answer.stderr.strip()}")
