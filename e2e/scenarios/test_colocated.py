"""A job whose trainer holds its engines: a trainer that dies continues from its checkpoint.

The tests share the job and run in the order they are written in.
"""

import pytest

from grpo_cluster.settings import ClusterError
from grpo_demo.follow import condition
from grpo_scenarios.kill import KILL_A_RANK
from grpo_scenarios.namespace import Namespace, Object, copy_job, volume_claim

pytestmark = pytest.mark.cluster

JOB = "copy"
CLAIM = "checkpoints"
STEPS = 45


@pytest.fixture(scope="module")
def job(namespace: Namespace) -> str:
    """The copy task on two ranks, each with an engine: the mode is Colocated, because there is no rollout."""
    wanted = copy_job(JOB, claim=CLAIM, algorithm={"steps": STEPS})
    del wanted["spec"]["rollout"]
    namespace.apply(volume_claim(CLAIM), wanted)
    return JOB


def test_without_rollout_the_engines_are_in_the_trainer_and_the_status_says_why(
    job: str, namespace: Namespace
) -> None:
    status = namespace.wait_for_step(job, 3)
    assert (status["mode"], status["modeReason"]) == (
        "Colocated",
        "spec.mode is Auto and spec.rollout is not set",
    )
    assert namespace.pods_of(job, "rollout") == []
    assert not [name for name in namespace.children(job) if "rollout" in name or name.startswith("Secret/")]
    # two engines, both with the newest weights
    status = namespace.wait_until(
        lambda: (found := namespace.status(job))["rollout"]["current"] == 2 and found,
        "two engines in the trainer",
        timeout_seconds=30,
    )
    assert condition(namespace.job(job), "RolloutReady") == "True", status


def test_scaling_says_why_there_is_nothing_to_scale(job: str, namespace: Namespace) -> None:
    with pytest.raises(ClusterError, match="cannot be added or removed once the job exists"):
        namespace.kubectl("scale", "grpojob", job, "--replicas", "3")


def test_a_killed_training_process_is_attempt_2_from_the_checkpoint(job: str, namespace: Namespace) -> None:
    namespace.wait_until(
        lambda: namespace.status(job).get("checkpointStep"), "a committed checkpoint", timeout_seconds=60
    )
    (trainer,) = namespace.pods_of(job, "trainer")
    namespace.execute(trainer["metadata"]["name"], "python3.11", "-c", KILL_A_RANK)
    failure = namespace.wait_until(
        lambda: (status := namespace.status(job)).get("attempt") == 2 and status["lastFailure"],
        "attempt 2",
        timeout_seconds=120,
    )
    assert (failure["pod"], failure["exitCode"]) == (trainer["metadata"]["name"], 137)


def test_the_job_completes_with_every_step_in_its_metrics(job: str, namespace: Namespace) -> None:
    namespace.wait_for_finish(job)
    finished: Object = namespace.job(job)
    assert condition(finished, "Complete") == "True", namespace.describe()
    metrics = namespace.metrics(CLAIM)
    assert [record.step for record in metrics] == list(range(1, STEPS + 1))
    assert min(record.step for record in metrics if record.attempt == 2) > 10
    assert finished["status"]["reward"] == f"{metrics[-1].values['reward']:.3f}"


def test_after_every_sync_engines_and_trainer_agree(job: str, namespace: Namespace) -> None:
    metrics = namespace.metrics(CLAIM)
    assert max(record.values.get("sync/max_probe_error", 0.0) for record in metrics) <= 1e-4
    assert max(record.values.get("sampling/sampling_logp_difference/max", 0.0) for record in metrics) <= 1e-4
