"""A real S3 server, and a model to upload."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# for the helpers beside this file
sys.path.insert(0, str(Path(__file__).parent))

from s3_server import S3Server, served_bucket


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with served_bucket(tmp_path / "s3") as server:
        yield server


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
