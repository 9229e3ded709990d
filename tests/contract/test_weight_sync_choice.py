"""Which backend a job gets, and that its run and its stored spec name it."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from grpo_api.contract.run_config import RunConfig, parse_run_config
from grpo_api.contract.weight_sync_choice import (
    REGISTRY_NAMES,
    BackendChoice,
    backend_of,
    choose_backend,
)
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.spec import GRPOJobSpec, Mode, WeightSyncBackend
from grpo_api.v1alpha1.status import WeightSyncStatus
from grpo_operator.children.config import config_map, stored_spec
from grpo_operator.children.snapshot import JobSnapshot
from grpo_runtime.weight_sync.interface import Reach
from grpo_runtime.weight_sync.registry import all_backends, find_backend

GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
ROLLOUT = {"replicas": 1}
OWN = {"process": "Own"}


def spec(**changes: Any) -> GRPOJobSpec:
    return GRPOJobSpec.from_object(
        {
            "model": {"source": "builtin://tiny"},
            "dataset": {"source": "builtin://copy"},
            "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
            "algorithm": {"steps": 10},
            **changes,
        }
    )


def run_config(job_spec: GRPOJobSpec, *, is_one_machine: bool = False) -> RunConfig:
    job = {
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GRPOJob",
        "metadata": {"name": "copy", "uid": "1"},
        "spec": job_spec.to_object(),
    }
    return resolve(parse_job(job), is_one_machine=is_one_machine)


COLOCATED: dict[str, Any] = {"mode": Mode.COLOCATED, "has_trainer_gpus": False, "has_rollout_gpus": False}
PODS: dict[str, Any] = COLOCATED | {"mode": Mode.DISAGGREGATED}
IN_PROCESS = ("InProcess", "the engines are in the trainer's own processes")


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (COLOCATED, IN_PROCESS),
        (COLOCATED | {"has_trainer_gpus": True}, IN_PROCESS),
        (COLOCATED | {"is_one_machine": True}, IN_PROCESS),
        (
            COLOCATED | {"has_own_process": True, "has_trainer_gpus": True},
            ("IPC", "engine and trainer are two processes on one GPU"),
        ),
        (
            COLOCATED | {"has_own_process": True},
            ("SharedMemory", "engine and trainer are two processes on CPU"),
        ),
        (
            PODS | {"has_trainer_gpus": True, "has_rollout_gpus": True},
            ("NCCL", "trainer and engines have GPUs"),
        ),
        (PODS | {"has_trainer_gpus": True}, ("Gloo", "the engines run on CPU")),
        (PODS | {"has_rollout_gpus": True}, ("Gloo", "the trainer runs on CPU")),
        (PODS, ("Gloo", "trainer and engines run on CPU")),
        (
            PODS | {"is_one_machine": True},
            ("SharedMemory", "trainer and engines are processes of one machine"),
        ),
    ],
)
def test_auto_takes_the_fastest_backend_that_reaches_the_engines(
    job: dict[str, Any], expected: tuple[str, str]
) -> None:
    backend, reason = expected
    assert choose_backend(**job) == BackendChoice(WeightSyncBackend(backend), reason)


@pytest.mark.parametrize("asked", [{}, {"weightSync": {"backend": "Auto"}}])
@pytest.mark.parametrize(
    ("changes", "backend"),
    [
        ({}, "InProcess"),
        ({"trainer": GPU}, "InProcess"),
        ({"engine": OWN}, "SharedMemory"),
        ({"engine": OWN, "trainer": GPU}, "IPC"),
        ({"rollout": ROLLOUT}, "Gloo"),
        ({"rollout": ROLLOUT, "trainer": GPU}, "Gloo"),
        ({"rollout": ROLLOUT | GPU}, "Gloo"),
        ({"rollout": ROLLOUT | GPU, "trainer": GPU}, "NCCL"),
    ],
)
def test_auto_reads_the_mode_and_the_gpus_from_the_spec(
    asked: dict[str, Any], changes: dict[str, Any], backend: str
) -> None:
    assert backend_of(spec(**asked, **changes)).backend == backend


@pytest.mark.parametrize("is_one_machine", [False, True])
def test_a_backend_that_is_named_is_taken_wherever_the_job_runs(is_one_machine: bool) -> None:
    named = spec(weightSync={"backend": "Gloo"}, rollout=ROLLOUT | GPU, trainer=GPU)
    chosen = backend_of(named, is_one_machine=is_one_machine)
    assert chosen == BackendChoice(WeightSyncBackend.GLOO, "spec.weightSync.backend is Gloo")


@pytest.mark.parametrize(
    ("dtype", "has_gpus", "is_float32"),
    [
        (None, True, False),
        (None, False, True),
        ("bfloat16", False, False),
        ("float32", True, True),
        ("float32", False, True),
    ],
)
def test_the_reason_says_that_only_changes_are_sent_and_where_that_spares_little(
    dtype: str | None, has_gpus: bool, is_float32: bool
) -> None:
    model = {"source": "builtin://tiny"} | ({"dtype": dtype} if dtype else {})
    gpus = GPU if has_gpus else {}
    asked = spec(
        weightSync={"sparse": {"fullEverySteps": 4}}, rollout=ROLLOUT | gpus, trainer=gpus, model=model
    )
    choice = backend_of(asked)
    why = "trainer and engines have GPUs" if has_gpus else "trainer and engines run on CPU"
    more = (
        ", which in float32 is nearly all at each step: set model.dtype to bfloat16 to send less"
        if is_float32
        else ""
    )
    assert choice.reason == f"{why}; spec.weightSync.sparse sends only what changed{more}"
    assert WeightSyncStatus(backend=choice.backend.value, reason=choice.reason)


@pytest.mark.parametrize("asked", [{}, {"backend": "Auto"}, {"backend": "Disk"}])
@pytest.mark.parametrize("is_one_machine", [False, True])
def test_a_place_for_weights_asks_for_disk(asked: dict[str, Any], is_one_machine: bool) -> None:
    named = spec(weightSync={**asked, "disk": {"to": "pvc://weights"}}, rollout=ROLLOUT | GPU, trainer=GPU)
    assert backend_of(named, is_one_machine=is_one_machine).backend == "Disk"
    run = run_config(named, is_one_machine=is_one_machine)
    assert (run.weight_sync.backend, run.weight_sync_backend) == ("Disk", "disk")


def test_auto_never_takes_vllms_own_engine_and_disk_only_where_there_is_a_place() -> None:
    """Whatever the job: broken transfers of the one cost an engine, and the other has to be told where."""
    answers = itertools.product(Mode, *([False, True],) * 4)
    chosen = {
        choose_backend(
            mode=mode,
            has_trainer_gpus=has_trainer_gpus,
            has_rollout_gpus=has_rollout_gpus,
            has_own_process=has_own_process,
            is_one_machine=is_one_machine,
        ).backend
        for mode, has_trainer_gpus, has_rollout_gpus, has_own_process, is_one_machine in answers
    }
    assert chosen == set(REGISTRY_NAMES) - {WeightSyncBackend.VLLM_NATIVE, WeightSyncBackend.DISK}


def test_every_backend_but_auto_has_a_name_in_the_registry() -> None:
    assert set(REGISTRY_NAMES) == set(WeightSyncBackend) - {WeightSyncBackend.AUTO}
    known = {backend for backend, name in REGISTRY_NAMES.items() if name in all_backends()}
    assert set(REGISTRY_NAMES) <= known


@pytest.mark.parametrize(
    ("job_spec", "is_one_machine", "reach"),
    [
        (spec(rollout=ROLLOUT), False, Reach.NETWORK),
        (spec(rollout=ROLLOUT), True, Reach.MACHINE),
        (spec(), False, Reach.PROCESS),
        (spec(), True, Reach.PROCESS),
        (spec(engine=OWN), False, Reach.MACHINE),
    ],
)
def test_what_auto_chooses_on_cpu_reaches_the_engines(
    job_spec: GRPOJobSpec, is_one_machine: bool, reach: Reach
) -> None:
    run = run_config(job_spec, is_one_machine=is_one_machine)
    assert find_backend(run.weight_sync_backend).reach is reach


@pytest.mark.parametrize(
    ("job_spec", "written", "name"),
    [
        (spec(), "InProcess", "in_process"),
        (spec(rollout=ROLLOUT), "Gloo", "gloo"),
        (spec(rollout=ROLLOUT | GPU, trainer=GPU, weightSync={"backend": "Gloo"}), "Gloo", "gloo"),
        (spec(rollout=ROLLOUT | GPU, trainer=GPU), "NCCL", "nccl"),
        (
            spec(rollout=ROLLOUT | GPU, trainer=GPU, weightSync={"backend": "VllmNative"}),
            "VllmNative",
            "vllm_native",
        ),
        (spec(engine=OWN), "SharedMemory", "shared_memory"),
        (spec(engine=OWN, trainer=GPU), "IPC", "ipc"),
        (
            spec(engine=OWN, trainer=GPU, weightSync={"backend": "SharedMemory"}),
            "SharedMemory",
            "shared_memory",
        ),
    ],
)
def test_a_run_names_its_backend(job_spec: GRPOJobSpec, written: str, name: str) -> None:
    run = run_config(job_spec)
    assert run.to_object()["weightSync"]["backend"] == written
    assert parse_run_config(run.model_dump_json(by_alias=True)).weight_sync_backend == name


def snapshot_of(job_spec: GRPOJobSpec) -> JobSnapshot:
    return JobSnapshot.take(namespace="team", job="copy", uid="1", spec=job_spec, image="image")


@pytest.mark.parametrize(
    ("job_spec", "backend"),
    [
        (spec(), "InProcess"),
        (spec(rollout=ROLLOUT, weightSync={"backend": "Auto"}), "Gloo"),
        (spec(rollout=ROLLOUT | GPU, trainer=GPU), "NCCL"),
        (spec(rollout=ROLLOUT | GPU, trainer=GPU, weightSync={"backend": "Gloo"}), "Gloo"),
        (spec(rollout=ROLLOUT | GPU, trainer=GPU, weightSync={"backend": "VllmNative"}), "VllmNative"),
    ],
)
def test_the_backend_of_a_started_job_is_read_back_as_it_was_chosen(
    job_spec: GRPOJobSpec, backend: str
) -> None:
    run = snapshot_of(job_spec)
    read = stored_spec(config_map(run).body)
    assert (run.spec.weight_sync.backend, read.weight_sync.backend) == (backend, backend)
    assert read == run.spec
    assert replace(run, spec=read).config == run.config


def test_on_one_machine_auto_takes_gloo_where_only_what_changed_is_sent() -> None:
    job_spec = spec(rollout={"replicas": 1}, weightSync={"sparse": {"fullEverySteps": 10}})
    found = run_config(job_spec, is_one_machine=True)
    assert found.weight_sync_backend == "sparse_gloo"
    assert found.weight_sync.sparse is not None
    assert found.weight_sync.sparse.full_every_steps == 10
    assert (
        run_config(spec(rollout={"replicas": 1}), is_one_machine=True).weight_sync_backend == "shared_memory"
    )
