"""A real S3 server, and a model to upload."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# for the helpers beside this file
sys.path.insert(0, str(Path(__file__).parent))

from pod_builder import free_port
from s3_server import S3Server

from grpo_cluster.binaries import build_all
from grpo_cluster.versions import VERSITYGW


@pytest.fixture(scope="session")
def s3_program() -> None:
    """Build the server, once for a machine."""
    build_all((VERSITYGW,))


@pytest.fixture
def s3(s3_program: None, tmp_path: Path) -> Iterator[S3Server]:
    folder = tmp_path / "s3"
    folder.mkdir()
    server = S3Server(folder, free_port())
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a large file, small ones, and one in a folder."""
    folder = tmp_path / "model"
    (folder / "extra").mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "extra" / "notes.txt").write_text("notes")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 4 * 1024 * 12)
    return folder
