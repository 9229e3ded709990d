"""What is said of a node. With GPUs that compute nothing: e2e/nullgpu."""

from pathlib import Path

import pytest
import torch

from grpo_runtime.local.node import Finding, Gpu, Node, _memory, _nccl, _shared_memory, check_node

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in found}


@WITHOUT_GPU
def test_a_machine_without_a_gpu_says_what_to_do(tmp_path: Path) -> None:
    found, smallest = check_node(Node(devices=tmp_path, which=lambda program: None))
    driver, compiler = by_name(found)["driver"], by_name(found)["compiler"]
    assert smallest is None
    assert "no GPU can be used" in driver.found and "nvidia.com/gpu in its limits" in driver.fix
    assert "install gcc in the image" in compiler.fix
    assert str(compiler).split()[:2] == ["compiler", "WRONG"]
    assert {"devices", "NCCL", "peer access"} & by_name(found).keys() == set()


@WITHOUT_GPU
def test_device_files_that_may_not_be_opened_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidiactl", "nvidia-caps", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr("os.access", lambda file, mode: Path(file).name != "nvidia0")
    devices = by_name(check_node(Node(devices=tmp_path))[0])["devices"]
    assert devices.found == "nvidia0"
    assert "may not open them" in devices.fix
    monkeypatch.setattr("os.access", lambda file, mode: True)
    devices = by_name(check_node(Node(devices=tmp_path))[0])["devices"]
    assert (devices.found, devices.fix) == ("nvidia0, nvidiactl", "")


def test_a_gpu_that_another_process_uses_is_told() -> None:
    gib = 1 << 30
    free, used = (_memory(Gpu(3, "H100", number * gib, 80 * gib)) for number in (79, 60))
    assert (free.what, free.fix) == ("GPU 3", "")
    assert used.found == "H100, 60.0 of 80.0 GiB are free" and "nvidia-smi" in used.fix


def test_shared_memory_is_for_several_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(shared_memory=tmp_path)
    size = type("Usage", (), {"total": 3 << 30})
    monkeypatch.setattr("shutil.disk_usage", lambda path: size)
    found = [_shared_memory(node, num_gpus=number) for number in (0, 1, 3, 4)]
    assert [bool(finding.fix) for finding in found] == [False, False, False, True]
    assert "sharedMemory to 4Gi" in found[-1].fix


@WITHOUT_GPU
@pytest.mark.processes
def test_processes_that_cannot_use_their_gpu_are_told_with_what_they_say() -> None:
    found = _nccl(2)
    assert found.found.startswith("2 processes failed (") and "NVIDIA" in found.found
    assert "NCCL_DEBUG=INFO" in found.fix
