"""The source files of each image, and the hashes that show whether it must be built again."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
_NOT_SOURCE = {"__pycache__", "build", ".mypy_cache", ".ruff_cache"}


def digest_of(paths: Iterable[Path]) -> str:
    """Twelve hex digits of a hash of the names and bytes of all files below `paths`, in any order."""
    digest = hashlib.sha256()
    for path in sorted(file for root in paths for file in files_below(root)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(REPOSITORY)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:12]


def files_below(root: Path) -> list[Path]:
    """`root` itself, or every source file below it."""
    if root.is_file():
        return [root]
    return [
        path
        for path in root.rglob("*")
        if path.is_file()
        and not _NOT_SOURCE.intersection(path.relative_to(root).parts)
        and not any(part.endswith(".egg-info") for part in path.parts)
    ]


@dataclass(frozen=True)
class Image:
    """One of the product's images.

    `foundation` are the files that decide the layers below our own code; while they stay the same, a change
    of code needs only one small layer. `code` are the files of the distributions in that layer.
    """

    name: str
    containerfile: Path
    foundation: tuple[Path, ...]
    code: tuple[Path, ...]
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Of the Containerfile, beside its base."""
    base_packages: tuple[str, ...] = ()
    """What the local base has for it, as the build reaches no server of Debian packages."""

    @property
    def repository(self) -> str:
        """The image's name in the local cluster, without a tag."""
        return f"localhost/grpo-{self.name}"

    @property
    def foundation_digest(self) -> str:
        return digest_of((self.containerfile, *self.foundation))

    @property
    def foundation_tag(self) -> str:
        """The image that the Containerfile makes; the code layer hides the copy of our code in it."""
        return f"{self.repository}-foundation:{self.foundation_digest}"

    @property
    def tag(self) -> str:
        """The name that pods use. It is new for every change, so a pod never gets older code."""
        return f"{self.repository}:{self.foundation_digest}-{digest_of(self.code)}"


def _sources(distribution: str, package: str) -> tuple[Path, Path]:
    return REPOSITORY / distribution / package, REPOSITORY / distribution / "pyproject.toml"


_API = _sources("crds", "grpo_api")
_BUILD_TOOLS = REPOSITORY / "crds/requirements-build.txt"

OPERATOR = Image(
    name="operator",
    containerfile=REPOSITORY / "operator/Containerfile",
    foundation=(_BUILD_TOOLS, REPOSITORY / "operator/requirements.txt"),
    code=(*_API, *_sources("operator", "grpo_operator")),
)
RUNTIME = Image(
    name="runtime",
    containerfile=REPOSITORY / "runtime/Containerfile",
    foundation=(
        _BUILD_TOOLS,
        REPOSITORY / "runtime/requirements-cpu.txt",
        REPOSITORY / "runtime/name_vllm_cpu.py",
    ),
    code=(*_API, *_sources("runtime", "grpo_runtime")),
)
RUNTIME_CUDA = replace(
    RUNTIME,
    name="cuda-runtime",
    foundation=(
        _BUILD_TOOLS,
        REPOSITORY / "runtime/requirements-cuda.txt",
        REPOSITORY / "runtime/name_vllm_cpu.py",
    ),
    arguments={"VARIANT": "cuda"},
    base_packages=("gcc", "libc6-dev", "libpython3.11-dev"),
)
"""The variant for GPUs, which only a test brings into the local cluster: it has 9 GB."""
IMAGES = {image.name: image for image in (OPERATOR, RUNTIME)}
