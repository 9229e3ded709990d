"""How many threads the training processes of a local run have: counted once, and kept by the run."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from local_command import job_object

from grpo_api.v1alpha1.job import GRPOJob, parse_job
from grpo_api.v1alpha1.spec import TrainerSpec
from grpo_runtime.errors import UserError
from grpo_runtime.local.threads import threads_on, usable_cores
from grpo_runtime.local.workspace import Workspace


def trainer(**fields: Any) -> TrainerSpec:
    return TrainerSpec.from_object(fields)


@pytest.mark.parametrize(
    ("num_cores", "fields", "environment", "expected"),
    [
        ("8", {}, {}, 8),
        ("8", {"processesPerNode": 3}, {}, 2),
        ("2", {"processesPerNode": 4}, {}, 1),
        ("8", {"numNodes": 2, "processesPerNode": 2}, {}, 2),
        ("1.5", {}, {}, 1),
        ("8", {"resources": {"limits": {"cpu": "2"}}}, {}, 2),
        ("2", {"resources": {"limits": {"cpu": "64"}}}, {}, 2),
        ("8", {}, {"OMP_NUM_THREADS": "3"}, 3),
        ("8", {}, {"OMP_NUM_THREADS": "2,1"}, 2),
        ("8", {}, {"OMP_NUM_THREADS": "many"}, 8),
        ("8", {}, {"OMP_NUM_THREADS": "0"}, 8),
    ],
)
def test_the_cores_of_the_machine_are_divided_by_its_training_processes(
    num_cores: str, fields: dict[str, Any], environment: dict[str, str], expected: int
) -> None:
    assert threads_on(Decimal(num_cores), trainer(**fields), environment=environment) == expected


def test_a_cgroup_that_limits_the_time_counts_like_fewer_cores(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("1:cpu:/v1\n0::/user/shell\n")
    folder = tmp_path / "fs" / "user" / "shell"
    folder.mkdir(parents=True)
    limits = {"cgroups": tmp_path / "fs", "own_cgroup": own}
    whole = usable_cores(**limits)
    assert whole >= 1
    (folder / "cpu.max").write_text("max 100000\n")
    assert usable_cores(**limits) == whole
    (folder.parent / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(**limits) == Decimal("0.5")
    assert usable_cores(cgroups=tmp_path / "fs", own_cgroup=tmp_path / "missing") == whole


def test_a_cgroup_of_version_1_counts_as_well_also_as_a_container_sees_it(tmp_path: Path) -> None:
    own, cpu = tmp_path / "cgroup", tmp_path / "fs" / "cpu,cpuacct"
    own.write_text("4:memory:/pod/one\n3:cpu,cpuacct:/pod/one\n0::/\n")
    (cpu / "pod" / "one").mkdir(parents=True)
    limits = {"cgroups": tmp_path / "fs", "own_cgroup": own}

    def write(folder: Path, quota: int) -> None:
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")

    write(cpu / "pod" / "one", -1)
    whole = usable_cores(**limits)
    assert whole >= 1
    write(cpu / "pod", 75000)
    assert usable_cores(**limits) == Decimal("0.75")
    # of its own path a container has nothing
    own.write_text("3:cpu,cpuacct:/kubepods/pod/two\n")
    write(cpu, 50000)
    assert usable_cores(**limits) == Decimal("0.5")


def begin(folder: Path, threads: int, **spec: Any) -> int | None:
    """One command on a machine that has so many threads for each process."""
    workspace = Workspace(folder)
    job: GRPOJob = parse_job(job_object(**spec))
    with workspace.held():
        return workspace.begin(job, threads_per_process=threads).threads_per_process


def test_a_run_that_goes_on_on_another_machine_keeps_its_number(tmp_path: Path) -> None:
    assert begin(tmp_path, 4) == 4
    assert begin(tmp_path, 16) == 4


def test_a_run_that_goes_on_on_another_machine_keeps_its_reward_workers(tmp_path: Path) -> None:
    job = parse_job(job_object(rewards=[{"name": "mine", "function": "mine:score"}]))
    workspace = Workspace(tmp_path)
    with workspace.held():
        runs = [workspace.begin(job, threads_per_process=threads) for threads in (4, 16)]
    assert [run.rewards[0].workers for run in runs] == [4, 4]


def test_a_run_that_goes_on_on_another_machine_keeps_the_threads_of_its_reward_model(tmp_path: Path) -> None:
    job = parse_job(job_object(rewards=[{"name": "judge", "model": {"source": "hf://org/judge"}}]))
    workspace = Workspace(tmp_path)
    with workspace.held():
        runs = [workspace.begin(job, threads_per_process=threads) for threads in (4, 16)]
    assert [run.rewards[0].model.threads for run in runs if run.rewards[0].model] == [4, 4]


def test_a_number_that_is_named_holds_everywhere_and_cannot_change(tmp_path: Path) -> None:
    assert begin(tmp_path, 4, trainer={"threadsPerProcess": 3}) == 3
    assert begin(tmp_path, 16, trainer={"threadsPerProcess": 3}) == 3
    with pytest.raises(UserError, match="threadsPerProcess was 3 and is now 2"):
        begin(tmp_path, 16, trainer={"threadsPerProcess": 2})
