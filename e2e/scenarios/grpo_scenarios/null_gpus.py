"""An image for pods on null GPUs: one more layer on top of the CUDA image of the runtime."""

import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_nullgpu.build import DRIVER, NVML, RUNTIME, build
from grpo_nullgpu.machine import variables_of_null_gpus

from grpo_cluster.images import load_layer, read_image, running_nodes
from grpo_cluster.settings import ClusterSettings, NodeSettings, cache_dir
from grpo_images.sources import REPOSITORY

FOLDER = "/opt/nullgpu"
LOG_OF_THE_POD = "/dev/stderr"


def load_null_gpus(image: str, *, name: str) -> None:
    """Make an image of one that the nodes of the local cluster have, in which every process sees one null
    GPU, whose numbers are those of the CPU."""
    with _layer() as layer:
        load_layer(layer, base=image, name=name, config={"Env": _environment(image)})


def size_bytes(image: str) -> int:
    """Of all layers of an image that the nodes have, as they are stored."""
    layers = read_image(_node(), image).manifest["layers"]
    return sum(int(layer["size"]) for layer in layers)


def _environment(image: str) -> list[str]:
    """Name=value: that of the image, and that of a process on null GPUs."""
    own = dict(variable.split("=", 1) for variable in read_image(_node(), image).config["config"]["Env"])
    own |= variables_of_null_gpus(
        Path(FOLDER, "lib"),
        Path(FOLDER, "grpo_nullgpu"),
        has_numbers=True,
        path=[own["PATH"]],
        python_path=[FOLDER, own["PYTHONPATH"]],
    )
    own |= {
        "NULL_GPUS": "1",
        "NULL_GPU_LOG": LOG_OF_THE_POD,
        # which all processes of a pod share
        "NULL_GPU_ACCOUNT": "/tmp/null-gpu-account",  # noqa: S108 - an emptyDir of the pod
    }
    return [f"{variable}={value}" for variable, value in own.items()]


@contextmanager
def _layer() -> Iterator[Path]:
    """The libraries, and the package with the mirror, as an uncompressed tar."""
    libraries = build(Path(sys.prefix), cache_dir() / "nullgpu")
    with tempfile.TemporaryDirectory(prefix="grpo-null-gpus-") as folder:
        layer = Path(folder) / "layer.tar"
        with tarfile.open(layer, "w") as archive:
            inside = FOLDER.removeprefix("/")
            for library in (RUNTIME, DRIVER, NVML):
                archive.add(libraries / library, f"{inside}/lib/{library}", filter=_for_everybody)
            archive.add(
                REPOSITORY / "e2e/nullgpu/grpo_nullgpu", f"{inside}/grpo_nullgpu", filter=_for_everybody
            )
        yield layer


def _for_everybody(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.name.endswith("__pycache__"):
        return None
    member.uid = member.gid = 0
    member.mode |= 0o555 if member.isdir() else 0o444
    return member


def _node() -> NodeSettings:
    return next(running_nodes(ClusterSettings.for_instance()))
