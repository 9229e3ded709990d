"""An image's name is derived from its content, a code layer holds our code only, what is published is built
on one base, and what is removed leaves the disk."""

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_cluster.images import image_digest, load_layer, names_of_digest, remove_image, running_nodes
from grpo_cluster.node import PAUSE_IMAGE
from grpo_cluster.settings import ClusterError, ClusterSettings
from grpo_cluster.waiting import wait_until
from grpo_images import sources
from grpo_images.code_layer import code_layer
from grpo_images.registry import FIND_DIGEST, publish
from grpo_images.sources import OPERATOR, RUNTIME, RUNTIME_CUDA, Image


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    """An image of two files in a repository of its own."""
    monkeypatch.setattr(sources, "REPOSITORY", tmp_path)
    (tmp_path / "Containerfile").write_text("FROM scratch")
    (tmp_path / "requirements.txt").write_text("six==1.17.0")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/module.py").write_text("x = 1")
    return replace(
        RUNTIME,
        containerfile=tmp_path / "Containerfile",
        foundation=(tmp_path / "requirements.txt",),
        code=(tmp_path / "package",),
    )


def test_a_change_of_code_is_a_new_image_on_the_same_foundation(image: Image, tmp_path: Path) -> None:
    before, foundation = image.tag, image.foundation_tag
    (tmp_path / "package/module.py").write_text("x = 2")
    assert image.tag != before
    assert image.foundation_tag == foundation


def test_a_change_of_requirements_is_a_new_foundation(image: Image, tmp_path: Path) -> None:
    before, foundation = image.tag, image.foundation_tag
    (tmp_path / "requirements.txt").write_text("six==1.16.0")
    assert image.foundation_tag != foundation
    assert image.tag != before


def test_the_cuda_image_is_another_one_by_the_same_containerfile_with_the_same_code() -> None:
    assert RUNTIME_CUDA.containerfile == RUNTIME.containerfile
    assert RUNTIME_CUDA.code == RUNTIME.code
    assert RUNTIME_CUDA.foundation_digest != RUNTIME.foundation_digest
    # one that is removed may not take the other along
    assert not RUNTIME.repository.startswith(RUNTIME_CUDA.repository)
    assert not RUNTIME_CUDA.repository.startswith(RUNTIME.repository)


def test_what_a_build_leaves_in_the_tree_is_not_source(image: Image, tmp_path: Path) -> None:
    before = image.tag
    (tmp_path / "package/__pycache__").mkdir()
    (tmp_path / "package/__pycache__/module.pyc").write_text("compiled")
    assert image.tag == before


@pytest.mark.parametrize(("image_of", "package"), [(OPERATOR, "grpo_operator"), (RUNTIME, "grpo_runtime")])
def test_a_code_layer_replaces_all_of_our_code(image_of: Image, package: str) -> None:
    with code_layer(image_of) as layer, tarfile.open(layer) as archive:
        members = {member.name: member for member in archive.getmembers()}
    assert "opt/app/.wh..wh..opq" in members, "an older layer would show through"
    packages = {name.split("/")[2] for name in members if name.count("/") == 3}
    assert {"grpo_api", package} <= packages
    assert {name for name in packages if not name.startswith("grpo_")} == set()
    for member in members.values():
        assert (member.uid, member.gid) == (0, 0)
        assert member.mode & 0o444 == 0o444 or member.size == 0


@pytest.mark.parametrize("base", ["python:3.11-slim", "python@sha256:", "python:3.11-slim@sha256:..."])
def test_nothing_is_published_on_a_base_without_a_digest(image: Image, base: str) -> None:
    with pytest.raises(ClusterError, match=r"--base \(BASE= of make\)") as refused:
        publish(image, registry="registry.example.com/my-team", base=base)
    assert FIND_DIGEST in str(refused.value)


@pytest.mark.cluster
@pytest.mark.usefixtures("target")
def test_a_removed_image_leaves_no_name_that_would_keep_its_layers(tmp_path: Path) -> None:
    name, layer = "localhost/to-remove:1", tmp_path / "layer.tar"
    with tarfile.open(layer, "w") as archive:
        archive.addfile(tarfile.TarInfo("file"), io.BytesIO())
    load_layer(layer, base=PAUSE_IMAGE, name=name)
    node = next(running_nodes(ClusterSettings.for_instance()))
    digest = image_digest(node, name)
    assert digest is not None

    def has_two() -> bool:
        return len(names_of_digest(node, digest)) == 2

    wait_until(has_two, timeout_seconds=90, what="the name that the kubelet's runtime gives it")
    remove_image(node, name)
    assert names_of_digest(node, digest) == []
    assert image_digest(node, PAUSE_IMAGE) is not None
