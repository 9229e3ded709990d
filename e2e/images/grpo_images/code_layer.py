"""Our own code as one small layer, made in seconds: what the last step of a Containerfile makes."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_cluster.settings import ClusterError
from grpo_images.sources import REPOSITORY, Image

_APP = "opt/app"
_IMAGE_PYTHON = (3, 11)


@contextmanager
def code_layer(image: Image) -> Iterator[Path]:
    """An uncompressed layer tar that replaces /opt/app with the code of the working tree."""
    with tempfile.TemporaryDirectory(prefix="grpo-layer-") as folder:
        app = Path(folder) / "app"
        _install(image, app, Path(folder) / "src")
        layer = Path(folder) / "layer.tar"
        with tarfile.open(layer, "w") as archive:
            # An opaque whiteout hides the /opt/app of lower layers, so that a deleted module is gone.
            archive.addfile(_owned_by_root(tarfile.TarInfo(f"{_APP}/.wh..wh..opq")))
            archive.add(app, _APP, filter=_owned_by_root)
        yield layer


def _install(image: Image, app: Path, scratch: Path) -> None:
    """Install the distributions of `image` into `app`, from a copy: builds leave files in their tree."""
    distributions = []
    for pyproject in (path for path in image.code if path.name == "pyproject.toml"):
        distribution = pyproject.parent.relative_to(REPOSITORY)
        shutil.copytree(
            REPOSITORY / distribution,
            scratch / distribution,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"),
        )
        distributions.append(str(scratch / distribution))
    done = subprocess.run(
        [
            "uv", "pip", "install", "--quiet", "--no-deps",
            "--python", sys.executable, "--target", app, *distributions,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ClusterError(f"the code of the {image.name} image does not install: {done.stderr.strip()}")
    shutil.rmtree(app / "bin", ignore_errors=True)
    if sys.version_info[:2] == _IMAGE_PYTHON:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        compiled = subprocess.run(
            [sys.executable, "-m", "compileall", "-q", str(app)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if compiled.returncode != 0:
            raise ClusterError(
                f"the code of the {image.name} image does not compile: {compiled.stdout.strip()}"
            )


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode |= 0o555 if member.isdir() else 0o444
    return member
