"""GRPOJobs of 0.1.0, their ConfigMaps and their children, read by the operator and the runtime of today."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from grpo_api.contract.run_config import RunConfig, parse_run_config
from grpo_api.v1alpha1.job import GRPOJob, parse_job
from grpo_api.v1alpha1.spec import Dtype, GRPOJobSpec, LossType, Mode, ScaleRewards, Schedule
from grpo_api.v1alpha1.status import ConditionStatus, ConditionType, LastFailure, Phase
from grpo_operator.children.config import frozen_spec
from grpo_operator.cluster.kinds import JOBS, WATCHED
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.memory import Memory
from grpo_operator.observe.snapshot import job_and_pods, job_view, observe
from grpo_operator.plan import make_plan

from .released import JOB_UID, OBJECTS, cluster, config_map, lost

NAMES = sorted(path.stem for path in OBJECTS.glob("*.json"))
LATER = datetime(2026, 11, 21, 14, 0, 0, tzinfo=UTC)


def defaults() -> GRPOJobSpec:
    """The spec of a job that sets only what it must."""
    spec = {
        "model": {"source": "builtin://tiny"},
        "dataset": {"source": "builtin://copy"},
        "rewards": [{"name": "a", "builtin": "exact_match"}],
        "algorithm": {"steps": 1},
    }
    return GRPOJobSpec.from_object(spec)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_loses_nothing_of_its_spec_and_status(name: str) -> None:
    stored, _ = cluster(name)
    job = parse_job(stored)
    assert lost(stored["spec"], job.spec.to_object()) == {}
    assert lost(stored["status"], job.status.to_object()) == {}
    assert (job.metadata.name, job.metadata.namespace, job.metadata.uid) == ("copy", "default", JOB_UID)


def test_the_disaggregated_job_sets_every_section_away_from_its_defaults() -> None:
    spec = parse_job(cluster("disaggregated")[0]).spec
    same = {name for name in GRPOJobSpec.model_fields if getattr(spec, name) == getattr(defaults(), name)}
    # 0.1.0 had no such fields
    newer = {"scheduling_deadline_seconds", "colocated", "export", "report", "resume_from", "trackers"}
    assert same == newer


def test_the_numbers_of_a_spec_mean_what_they_meant() -> None:
    spec = parse_job(cluster("disaggregated")[0]).spec
    algorithm, optimizer = spec.algorithm, spec.algorithm.optimizer
    assert (algorithm.steps, algorithm.prompts_per_step, algorithm.group_size) == (200, 32, 4)
    assert (algorithm.loss_type, algorithm.scale_rewards) == (LossType.GRPO, ScaleRewards.BATCH)
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.num_iterations) == (0.1, 0.28, 2)
    assert (optimizer.learning_rate, optimizer.schedule, optimizer.warmup_steps) == (
        2e-6,
        Schedule.COSINE,
        10,
    )
    assert (spec.model.dtype, spec.dataset.answer, spec.dataset.shuffle) == (
        Dtype.BFLOAT16,
        "solution",
        False,
    )
    assert [reward.weight for reward in spec.rewards] == [2.0, 0.5, 0.25, -0.5, 0.125]
    assert (spec.trainer.num_nodes, spec.trainer.num_processes, spec.trainer.resources.num_gpus) == (2, 4, 4)
    assert spec.rollout is not None
    assert (spec.rollout.replicas, spec.rollout.lost_timeout_seconds) == (3, 600)
    assert (spec.checkpoint.every_steps, spec.checkpoint.keep, spec.checkpoint.claim_name) == (20, 3, "runs")
    assert (spec.startup_deadline_seconds, spec.stall_timeout_seconds) == (3600, 900)
    assert spec.failure_policy.max_restarts == 5


def conditions(job: GRPOJob) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in job.status.conditions}


def test_a_running_status_means_what_it_meant() -> None:
    job = parse_job(cluster("disaggregated")[0])
    status = job.status
    assert (status.phase, status.attempt, status.restarts, status.disruptions) == (Phase.RUNNING, 3, 1, 1)
    assert (status.step, status.total_steps, status.checkpoint_step) == (88, 200, 80)
    assert (status.mode, status.policy_version, status.reward) == ("Disaggregated", "3.88", "0.438")
    # newer than the object, and only there once it has been True
    assert set(conditions(job)) == set(ConditionType) - {ConditionType.MISMATCH_HIGH}
    assert conditions(job)[ConditionType.RUNNING][0] == ConditionStatus.TRUE
    assert status.last_failure == LastFailure(
        attempt=2,
        role="trainer",
        pod="copy-e5621d-trainer-a2-1",
        node="node-a",
        container="trainer",
        reason="Killed",
        exit_code=137,
        message="rank 2 was killed by SIGKILL; mostly this means out of memory",
    )


def test_a_colocated_status_means_what_it_meant() -> None:
    job = parse_job(cluster("colocated")[0])
    assert (job.spec.mode, job.spec.chosen_mode, job.status.mode) == (Mode.AUTO, Mode.COLOCATED, "Colocated")
    assert (job.status.phase, job.status.attempt, job.status.restarts) == (Phase.RUNNING, 2, 1)
    assert job.status.last_failure is not None
    assert (job.status.last_failure.reason, job.status.last_failure.exit_code) == ("UnexpectedError", 1)


@pytest.mark.parametrize(
    ("name", "phase", "true"),
    [("succeeded", Phase.SUCCEEDED, ConditionType.COMPLETE), ("failed", Phase.FAILED, ConditionType.FAILED)],
)
def test_the_end_of_a_job_means_what_it_meant(name: str, phase: Phase, true: ConditionType) -> None:
    job = parse_job(cluster(name)[0])
    assert job.status.phase is phase
    met = {kind for kind, (status, _) in conditions(job).items() if status == ConditionStatus.TRUE}
    assert met - {ConditionType.READY} == {true, ConditionType.FINISHED}
    assert job.status.completion_time == datetime(2026, 11, 21, 12, 1, 30, tzinfo=UTC)


def run_config(name: str) -> RunConfig:
    return parse_run_config(config_map(name)["data"]["run.json"])


@pytest.mark.parametrize("name", NAMES)
def test_the_config_map_of_a_job_loses_nothing(name: str) -> None:
    data = config_map(name)["data"]
    assert lost(json.loads(data["run.json"]), run_config(name).to_object()) == {}
    assert lost(json.loads(data["spec.json"]), frozen_spec(config_map(name)).to_object()) == {}


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_of_a_run_of_0_1_0_go_the_way_they_went(name: str) -> None:
    run = run_config(name)
    backend, named = ("in_process", "InProcess") if run.mode is Mode.COLOCATED else ("gloo", "Gloo")
    assert run.weight_sync_backend == backend
    assert frozen_spec(config_map(name)).weight_sync.backend == named


def test_pods_of_0_1_0_are_told_what_their_job_asks_for() -> None:
    run, spec = run_config("disaggregated"), frozen_spec(config_map("disaggregated"))
    assert (run.job.namespace, run.job.name, run.job.uid) == ("default", "copy", JOB_UID)
    assert (run.mode, spec.mode) == (Mode.DISAGGREGATED, Mode.DISAGGREGATED)
    assert (run.topology.num_nodes, run.topology.processes_per_node) == (2, 4)
    assert (run.topology.rollout_replicas, run.rollout_lost_timeout_seconds) == (3, 600)
    for section in ("model", "dataset", "rewards", "algorithm", "sampling", "engine", "checkpoint", "hub"):
        assert getattr(run, section) == getattr(spec, section)
    assert run_config("colocated").topology.rollout_replicas == 0


def filled_cache(name: str) -> Cache:
    """What the operator knows once it has listed everything."""
    job, children = cluster(name)
    cache = Cache()
    cache.put(JOBS, job)
    by_name = {kind.name: kind for kind in WATCHED}
    for child in children:
        assert cache.put(by_name[child["kind"]], child)
    return cache


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_that_is_upgraded_leaves_a_job_of_0_1_0_as_it_is(name: str) -> None:
    stored, _ = cluster(name)
    cache, key = filled_cache(name), ("default", "copy")
    found = job_and_pods(cache, key)
    assert found is not None
    observed = observe(cache, found, Memory().remember_pods(key, found, now=LATER))
    assert observed.frozen_problem == ""
    before = job_view(stored).status
    for minutes in (0, 1, 30):
        now = LATER + timedelta(minutes=minutes)
        plan = make_plan(observed, runtime_image="registry.example/grpo-runtime:0.2.0", now=now)
        is_running = name not in ("succeeded", "failed")
        # what its later pods are made from, written down when it is first seen
        assert [child.name.split("-")[2] for child in plan.create] == (["pods"] if is_running else [])
        assert plan.delete == ()
        assert summary(plan.status) == summary(before)


def summary(status: Any) -> tuple[Any, ...]:
    """What must not move because another release looks at the job."""
    return (status.phase, status.attempt, status.restarts, status.revision, status.image, status.last_failure)
