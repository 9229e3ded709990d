"""Images as files: manifests, configurations and layers in an OCI archive."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ImageConfig = Mapping[
    str, Any
]  # Env, Entrypoint, Cmd, User, WorkingDir, Labels: as in the image specification

_OCI = "application/vnd.oci.image"
_DOCKER = "application/vnd.docker"
_INDEXES = (f"{_OCI}.index.v1+json", f"{_DOCKER}.distribution.manifest.list.v2+json")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DOCKER_MANIFEST = f"{_DOCKER}.distribution.manifest.v2+json"


@dataclass(frozen=True)
class StoredImage:
    """Manifest and configuration of an image. Its layers are with the node or registry it was read from."""

    manifest: dict[str, Any]
    config: dict[str, Any]

    @classmethod
    def read(cls, digest: str, read_blob: Callable[[str], bytes]) -> "StoredImage":
        """Follow a digest to the manifest and the configuration; of an index, the first image."""
        manifest = json.loads(read_blob(digest))
        if manifest.get("mediaType") in _INDEXES or "manifests" in manifest:
            manifest = json.loads(read_blob(manifest["manifests"][0]["digest"]))
        return cls(manifest=manifest, config=json.loads(read_blob(manifest["config"]["digest"])))

    @property
    def is_docker(self) -> bool:
        return bool(self.manifest.get("mediaType") == _DOCKER_MANIFEST)


def write_layer_on_top(
    base: StoredImage, layer: Path, *, name: str, config: ImageConfig, archive: Path
) -> None:
    """Write an archive of `base` plus one layer. It holds only the blobs that `base` does not have."""
    blob = layer.read_bytes()
    digest = _digest(blob)
    merged = {
        **base.config,
        "config": {**base.config.get("config", {}), **config},
        "rootfs": {"type": "layers", "diff_ids": [*base.config["rootfs"]["diff_ids"], digest]},
        "history": [*base.config.get("history", []), {"created_by": "local layer"}],
    }
    media_type = f"{_DOCKER}.image.rootfs.diff.tar" if base.is_docker else f"{_OCI}.layer.v1.tar"
    layers = [*base.manifest["layers"], {"mediaType": media_type, "digest": digest, "size": len(blob)}]
    _write_archive(archive, name=name, config=merged, layers=layers, blobs=[blob], is_docker=base.is_docker)


def write_single_file_image(program: Path, *, name: str, archive: Path) -> None:
    """Write an image of one static program, which is its entry point."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo(program.name)
        entry.size = program.stat().st_size
        entry.mode = 0o755
        with program.open("rb") as content:
            tar.addfile(entry, content)
    blob = buffer.getvalue()
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(blob)]},
    }
    layers = [{"mediaType": f"{_OCI}.layer.v1.tar", "digest": _digest(blob), "size": len(blob)}]
    _write_archive(archive, name=name, config=config, layers=layers, blobs=[blob], is_docker=False)


def _write_archive(
    archive: Path,
    *,
    name: str,
    config: dict[str, Any],
    layers: list[dict[str, Any]],
    blobs: list[bytes],
    is_docker: bool,
) -> None:
    """An OCI layout as a tar. A node that imports it must already have the layers that are not in `blobs`."""
    config_type = f"{_DOCKER}.container.image.v1+json" if is_docker else f"{_OCI}.config.v1+json"
    manifest_type = _DOCKER_MANIFEST if is_docker else f"{_OCI}.manifest.v1+json"
    config_blob = json.dumps(config).encode()
    manifest_blob = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": manifest_type,
            "config": {"mediaType": config_type, "digest": _digest(config_blob), "size": len(config_blob)},
            "layers": layers,
        }
    ).encode()
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": manifest_type,
                "digest": _digest(manifest_blob),
                "size": len(manifest_blob),
                "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
            }
        ],
    }
    files = {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps(index).encode(),
        **{
            f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}": blob
            for blob in [config_blob, manifest_blob, *blobs]
        },
    }
    with tarfile.open(archive, "w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"
