"""The order in which a rollout pod's process 1 does things. The real vLLM is in test_rollout_pod.py."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from guard_environment import guard_environment
from pod_builder import run_config

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import TerminationMessage
from grpo_runtime.engines.serve import main
from grpo_runtime.engines.vllm.kind import VllmKind
from grpo_runtime.errors import HubUnreachableError, UserError


class CpuBuild(VllmKind):
    """vLLM for CPU, whichever build is installed here."""

    def is_cpu_build(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def own_signal_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_number_of_threads_is_set_before_the_model_is_made_and_torch_imported_for_it(
    run_json: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenMP reads it once; a fork of a process with more threads would wait for threads it does not have."""
    seen: dict[str, str] = {}

    def make_no_model(_: object) -> Path:
        seen.update(os.environ)
        raise UserError("no model today")

    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(main, "_prepare", make_no_model)
    environment = guard_environment(tmp_path, run_json=run_json)
    options = main.RolloutOptions(termination_log=tmp_path / "termination-log")
    assert main.serve(environment, options=options, kind=CpuBuild()) == ExitCode.USER_ERROR
    assert seen["OMP_NUM_THREADS"] == "1"
    # the model may have to be downloaded
    assert "HF_HUB_OFFLINE" not in seen
    assert "no model today" in options.termination_log.read_text()


@pytest.mark.parametrize(("backend", "name"), [("NCCL", "nccl"), ("VllmNative", "vllm_native")])
def test_a_vllm_for_cpu_refuses_weights_from_gpus_before_it_downloads_a_model(
    backend: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    run = run_config(
        trainer={"processesPerNode": 1, **gpu},
        rollout={"replicas": 1, **gpu},
        weightSync={"backend": backend},
    )
    prepared: list[object] = []
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(main, "_prepare", prepared.append)
    environment = guard_environment(tmp_path, run_json=run.model_dump_json(by_alias=True))
    options = main.RolloutOptions(termination_log=tmp_path / "termination-log")
    assert main.serve(environment, options=options, kind=CpuBuild()) == ExitCode.USER_ERROR
    assert f"weights by {name} need a GPU in the rollout pods" in options.termination_log.read_text()
    assert prepared == []


def test_an_engine_that_cannot_reach_the_hub_ends_as_transient_with_a_reason_of_its_own(
    run_json: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download_nothing(_: object) -> Path:
        raise HubUnreachableError("model.source (hf://org/tiny): the Hub cannot be reached")

    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(main, "_prepare", download_nothing)
    options = main.RolloutOptions(termination_log=tmp_path / "termination-log")
    environment = guard_environment(tmp_path, run_json=run_json)
    assert main.serve(environment, options=options, kind=CpuBuild()) == ExitCode.TRANSIENT
    written = TerminationMessage.model_validate_json(options.termination_log.read_text())
    assert (written.reason, written.exit_code) == ("HubUnreachable", 75)
    assert "hf://org/tiny" in written.message
