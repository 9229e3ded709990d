"""How a backend is found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pod_builder import run_config
from stand_in_handles import StandInHandles
from stand_in_nccl import StandInDevice, StandInNccl
from weight_sources import FixedWeights

from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.weight_sync.interface import Backend, Reach
from grpo_runtime.weight_sync.ipc import ipc_backend
from grpo_runtime.weight_sync.nccl import nccl_backend
from grpo_runtime.weight_sync.registry import ENTRY_POINTS, GLOO, all_backends, find_backend, register
from grpo_runtime.weight_sync.vllm_native.backend import vllm_native_backend


@pytest.mark.parametrize(
    ("mode", "reach"), [(Mode.DISAGGREGATED, Reach.NETWORK), (Mode.COLOCATED, Reach.PROCESS)]
)
def test_every_run_has_a_backend_that_reaches_its_engines(mode: Mode, reach: Reach) -> None:
    assert find_backend(run_config(mode=mode.value).weight_sync_backend).reach is reach


def test_a_backend_that_does_not_exist_is_named_with_those_that_do() -> None:
    known = "gloo, nccl, sparse_gloo, sparse_nccl, vllm_native, disk, shared_memory, ipc, in_process"
    with pytest.raises(LookupError, match=rf"called pigeon; there are {known}"):
        find_backend("pigeon")


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ValueError, match="called gloo already"):
        register(replace(GLOO, is_collective=True))
    assert find_backend("gloo") is GLOO


def test_a_backend_of_another_distribution_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in vLLM's worker process, where no code of ours runs before vLLM looks the backend up."""
    module = "from dataclasses import replace\nfrom grpo_runtime.weight_sync.registry import GLOO\n"
    (tmp_path / "their_module.py").write_text(module + 'THEIRS = replace(GLOO, name="theirs")\n')
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\ntheirs = their_module:THEIRS\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_backend("theirs").name == "theirs"
    assert "theirs" in all_backends()


@pytest.mark.parametrize(
    "make",
    [
        lambda **how: nccl_backend("a", connect=StandInNccl, device=StandInDevice, **how),
        lambda **how: ipc_backend("a", device=StandInDevice, handles=StandInHandles, **how),
        lambda rank_device: vllm_native_backend("a", rank_gpu=rank_device),
    ],
    ids=["nccl", "ipc", "vllm_native"],
)
def test_all_copies_are_packed_on_one_device(make: Callable[..., Backend[Any]]) -> None:
    """Each has streams of its own, and cuBLAS keeps memory for each stream on which it computes a tag."""
    devices: list[StandInDevice] = []

    def rank_device() -> StandInDevice:
        devices.append(StandInDevice())
        return devices[-1]

    backend = make(rank_device=rank_device)
    for _ in range(3):
        backend.prepare(FixedWeights([("w", torch.ones(4))])).wait_until_read()
    assert len(devices) == 1
