"""Everything that can be killed is killed while one job runs; it still ends where it should.

The tests share the job and run in the order they are written in.
"""

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.kill import KILL_A_RANK
from grpo_scenarios.world import Object, World, copy_job, volume_claim

pytestmark = pytest.mark.cluster

JOB = "copy"
CLAIM = "checkpoints"
STEPS = 160


@pytest.fixture(scope="module")
def job(world: World) -> str:
    world.apply(volume_claim(CLAIM), copy_job(JOB, claim=CLAIM, algorithm={"steps": STEPS}))
    world.wait_for_step(JOB, 5)
    return JOB


def uids(world: World, role: str) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.pods_of(JOB, role)}


def test_training_goes_on_when_a_rollout_pod_is_killed_and_its_successor_is_synced(
    job: str, world: World
) -> None:
    trainers, rollouts = uids(world, "trainer"), uids(world, "rollout")
    world.delete_pod(sorted(rollouts)[0], is_graceful=False)
    (successor,) = world.wait_until(
        lambda: uids(world, "rollout").keys() - rollouts.keys(), "a new rollout pod", timeout_seconds=60
    )

    world.wait_for_step(job, world.status(job)["step"] + 5)
    assert not is_ready(world, successor), "the engine came back too fast to show that training did not wait"
    # A rollout pod is ready from its first admission, which a verified sync comes before.
    world.wait_until(lambda: is_ready(world, successor), f"{successor} to serve", timeout_seconds=180)
    status = world.wait_until(
        lambda: (
            (found := world.status(job))["rollout"]["current"] == 2
            and found["rollout"]["summary"] == "2/2"
            and found
        ),
        "two engines on the newest weights",
        timeout_seconds=60,
    )
    assert uids(world, "trainer") == trainers
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)


def test_an_operator_that_was_killed_writes_nothing_that_was_not_due(job: str, world: World) -> None:
    before, children = world.job(job), world.children(job)
    (operator,) = world.pods("app.kubernetes.io/name=grpo-operator")
    world.delete_pod(operator["metadata"]["name"], is_graceful=False)
    world.kubectl("rollout", "status", "deployment/grpo-operator", "--timeout=90s")
    world.wait_for_step(job, before["status"]["step"] + 5)

    after, now = world.job(job), world.children(job)
    assert identities(now) == identities(children)
    still = {name for name in children if not name.startswith("Pod/")}
    assert {name: version(now[name]) for name in still} == {name: version(children[name]) for name in still}
    progress = {"step", "progress", "reward", "policyVersion", "tokensPerSecond", "checkpointStep"}
    assert without(after["status"], progress) == without(before["status"], progress)
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_a_killed_training_process_is_attempt_2_from_the_checkpoint(job: str, world: World) -> None:
    world.wait_until(
        lambda: world.status(job).get("checkpointStep"), "a committed checkpoint", timeout_seconds=60
    )
    (trainer,) = world.pods_of(job, "trainer")
    world.execute(trainer["metadata"]["name"], "python3.11", "-c", KILL_A_RANK)

    status = wait_for_attempt(world, 2)
    assert status["restarts"] == 1
    failure = status["lastFailure"]
    assert (failure["role"], failure["pod"], failure["exitCode"]) == (
        "trainer",
        trainer["metadata"]["name"],
        137,
    )
    assert failure["message"]
    resumed = world.wait_until(lambda: first_step_of(world, 2), "a step of attempt 2", timeout_seconds=180)
    assert resumed > 10, "the second attempt began from scratch"


def test_a_killed_trainer_pod_is_attempt_3_and_is_not_counted(job: str, world: World) -> None:
    (trainer,) = world.pods_of(job, "trainer")
    world.delete_pod(trainer["metadata"]["name"], is_graceful=False)

    status = wait_for_attempt(world, 3)
    assert (status["restarts"], status["disruptions"]) == (1, 1)
    second = first_step_of(world, 2)
    resumed = world.wait_until(lambda: first_step_of(world, 3), "a step of attempt 3", timeout_seconds=180)
    assert second is not None and resumed > second


def test_after_all_that_the_job_reaches_the_gate(job: str, world: World) -> None:
    world.wait_for_finish(job, timeout_seconds=600)
    assert condition(world.job(job), "Complete") == "True", world.describe()
    metrics = world.metrics(CLAIM)
    assert [record.step for record in metrics] == list(range(1, STEPS + 1))
    assert sum(record.values["reward"] for record in metrics[-10:]) / 10 >= 0.95
    assert metrics[-1].values["stale_samples"] == 0
    assert max(record.values["sync/max_probe_error"] for record in metrics) <= 1e-4


def is_ready(world: World, pod: str) -> bool:
    conditions = world.target.get("pod", pod, "--namespace", world.namespace)["status"].get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def wait_for_attempt(world: World, attempt: int) -> Object:
    return world.wait_until(
        lambda: (status := world.status(JOB)).get("attempt") == attempt and status,
        f"attempt {attempt}",
        timeout_seconds=120,
    )


def first_step_of(world: World, attempt: int) -> int | None:
    """The first step that an attempt finished, once it has."""
    return min((record.step for record in world.metrics(CLAIM) if record.attempt == attempt), default=None)


def identities(children: dict[str, Object]) -> dict[str, str]:
    return {name: child["metadata"]["uid"] for name, child in children.items()}


def version(child: Object) -> str:
    resource_version: str = child["metadata"]["resourceVersion"]
    return resource_version


def without(status: Object, keys: set[str]) -> Object:
    return {key: value for key, value in status.items() if key not in keys}
