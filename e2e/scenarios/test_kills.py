"""Each part of a job is killed while it runs; the job still learns its task.

The tests share the job and run in the order they are written in.
"""

import pytest

from grpo_demo.follow import condition
from grpo_runtime.report.metrics_file import METRICS_FILE, MetricsRecord, parse_metrics
from grpo_scenarios.kill import KILL_A_RANK
from grpo_scenarios.namespace import Namespace, Object, copy_job, volume_claim
from grpo_scenarios.pace import hurry, slow_down

pytestmark = pytest.mark.cluster

JOB = "copy"
CLAIM = "checkpoints"
STEPS, SAVED_EVERY_STEPS = 120, 20
PACE_SECONDS = 0.3
"""The job outlives all kills, and leaves the machine to what is started again."""


@pytest.fixture(scope="module")
def job(namespace: Namespace) -> str:
    wanted = copy_job(
        JOB, claim=CLAIM, algorithm={"steps": STEPS}, checkpoint={"everySteps": SAVED_EVERY_STEPS}
    )
    namespace.apply(slow_down(wanted, seconds=PACE_SECONDS, is_held=True), volume_claim(CLAIM), wanted)
    namespace.wait_for_step(JOB, 5)
    return JOB


def is_calm(job: Object) -> bool:
    """Whether it is ready and has nothing more to say."""
    ready = next(found for found in job["status"]["conditions"] if found["type"] == "Ready")
    return ready["status"] == "True" and ready["message"] == "the trainer makes steps"


def uids(namespace: Namespace, role: str) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in namespace.pods_of(JOB, role)}


def test_training_goes_on_when_a_rollout_pod_is_killed_and_its_successor_is_synced(
    job: str, namespace: Namespace
) -> None:
    trainers, rollouts = uids(namespace, "trainer"), uids(namespace, "rollout")
    step = namespace.status(job)["step"]
    namespace.delete_pod(sorted(rollouts)[0], is_graceful=False)
    (successor,) = namespace.wait_until(
        lambda: uids(namespace, "rollout").keys() - rollouts.keys(), "a new rollout pod", timeout_seconds=60
    )

    # A rollout pod is ready from its first admission, and it is admitted after a verified sync.
    namespace.wait_until(lambda: is_ready(namespace, successor), f"{successor} to serve", timeout_seconds=180)
    status = namespace.wait_until(
        lambda: (
            (found := namespace.status(job))["rollout"]["current"] == 2
            and found["rollout"]["summary"] == "2/2"
            and found
        ),
        "two engines on the newest weights",
        timeout_seconds=60,
    )
    assert uids(namespace, "trainer") == trainers
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)
    after = [record for record in namespace.metrics(CLAIM) if record.step > step]
    assert sum(record.values["sync/engines"] == 1.0 for record in after) >= 3, "training waited"


def test_an_operator_that_was_killed_changes_only_what_progress_changes(
    job: str, namespace: Namespace
) -> None:
    # what was lost before is told for some steps
    before = namespace.wait_until(
        lambda: is_calm(found := namespace.job(job)) and found,
        "a job that tells of no loss",
        timeout_seconds=60,
    )
    children = namespace.children(job)
    (operator,) = namespace.pods("app.kubernetes.io/name=grpo-operator")
    namespace.delete_pod(operator["metadata"]["name"], is_graceful=False)
    namespace.kubectl("rollout", "status", "deployment/grpo-operator", "--timeout=90s")
    namespace.wait_for_step(job, before["status"]["step"] + 5)

    after, now = namespace.job(job), namespace.children(job)
    assert identities(now) == identities(children)
    still = {name for name in children if not name.startswith("Pod/")}
    assert {name: version(now[name]) for name in still} == {name: version(children[name]) for name in still}
    checkpoints = {"checkpointStep", "highestCheckpointStep"}
    progress = {"step", "highestStep", "progress", "reward", "policyVersion", "tokensPerSecond"} | checkpoints
    assert without(after["status"], progress) == without(before["status"], progress)
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_a_killed_training_process_is_attempt_2_from_the_checkpoint(job: str, namespace: Namespace) -> None:
    # on the claim, as the status comes later: the kill must come before the next checkpoint
    namespace.wait_until(
        lambda: (saved := newest_checkpoint(namespace)) and 3 <= last_step(namespace) - saved <= 8,
        "some steps after a checkpoint",
        timeout_seconds=120,
    )
    (trainer,) = namespace.pods_of(job, "trainer")
    namespace.execute(trainer["metadata"]["name"], "python3.11", "-c", KILL_A_RANK)

    status = wait_for_attempt(namespace, 2)
    assert status["restarts"] == 1
    failure = status["lastFailure"]
    assert (failure["role"], failure["pod"], failure["exitCode"]) == (
        "trainer",
        trainer["metadata"]["name"],
        137,
    )
    assert failure["message"]
    resumed = namespace.wait_until(
        lambda: first_step_of(namespace, 2), "a step of attempt 2", timeout_seconds=180
    )
    assert resumed > SAVED_EVERY_STEPS, "the second attempt began from scratch"


def test_steps_that_were_trained_before_the_kill_are_replayed_from_the_journal_to_the_same_weights(
    job: str, namespace: Namespace
) -> None:
    trained = {record.step for record in all_records(namespace) if record.attempt == 1}
    namespace.wait_until(
        lambda: last_step(namespace) > max(trained), "a step that was not trained before", timeout_seconds=60
    )
    records = all_records(namespace)
    again = [record.values for record in records if record.attempt == 2 and record.step in trained]
    assert len(again) > 1
    algorithm = namespace.job(job)["spec"]["algorithm"]
    num_samples = algorithm["promptsPerStep"] * algorithm["groupSize"]
    assert {values["journal/replayed_samples"] for values in again} == {num_samples}
    *digests, last = (values.get("journal/digest_differs") for values in again)
    # that of the last step may have been on its way to the disk
    assert set(digests) == {0} and last in (0, None)


def test_a_killed_trainer_pod_is_attempt_3_and_is_not_counted(job: str, namespace: Namespace) -> None:
    second = first_step_of(namespace, 2)
    assert second is not None
    namespace.wait_until(
        lambda: newest_checkpoint(namespace) > second, "a checkpoint of attempt 2", timeout_seconds=60
    )
    (trainer,) = namespace.pods_of(job, "trainer")
    namespace.delete_pod(trainer["metadata"]["name"], is_graceful=False)

    status = wait_for_attempt(namespace, 3)
    assert (status["restarts"], status["disruptions"]) == (1, 1)
    resumed = namespace.wait_until(
        lambda: first_step_of(namespace, 3), "a step of attempt 3", timeout_seconds=180
    )
    assert resumed > second


def test_after_all_kills_the_job_completes_and_has_learned_its_task(job: str, namespace: Namespace) -> None:
    hurry(namespace, claim=CLAIM)
    namespace.wait_for_finish(job, timeout_seconds=600)
    assert condition(namespace.job(job), "Complete") == "True", namespace.describe()
    metrics = namespace.metrics(CLAIM)
    assert [record.step for record in metrics] == list(range(1, STEPS + 1))
    # it begins near .015 and reaches .80 to .99, as the seed and a CPU's rounding have it
    assert sum(record.values["reward"] for record in metrics[:10]) / 10 < 0.1
    assert sum(record.values["reward"] for record in metrics[-10:]) / 10 >= 0.6
    assert max(record.values.get("sync/max_probe_error", 0.0) for record in metrics) <= 1e-4
    # the engines' logprobs of all sampled tokens, not only of the probe
    difference = "sampling/sampling_logp_difference/max"
    assert max(record.values.get(difference, 0.0) for record in metrics) <= 1e-4
    assert {1.0, 2.0} == {found for record in metrics if (found := record.values.get("sync/engines"))}


def is_ready(namespace: Namespace, pod: str) -> bool:
    conditions = namespace.target.get("pod", pod, "--namespace", namespace.name)["status"].get(
        "conditions", []
    )
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def wait_for_attempt(namespace: Namespace, attempt: int) -> Object:
    return namespace.wait_until(
        lambda: (status := namespace.status(JOB)).get("attempt") == attempt and status,
        f"attempt {attempt}",
        timeout_seconds=120,
    )


def all_records(namespace: Namespace) -> list[MetricsRecord]:
    """Also of steps that a later attempt made again."""
    return parse_metrics((namespace.output_folder(CLAIM) / METRICS_FILE).read_text())


def last_step(namespace: Namespace) -> int:
    """The step that was finished last."""
    return all_records(namespace)[-1].step


def newest_checkpoint(namespace: Namespace) -> int:
    """Its step; 0 while none is committed."""
    latest = namespace.output_folder(CLAIM) / "checkpoints" / "LATEST"
    return int(latest.read_text().strip().removeprefix("step-")) if latest.exists() else 0


def first_step_of(namespace: Namespace, attempt: int) -> int | None:
    """The first step that an attempt finished, once it has."""
    return min(
        (record.step for record in namespace.metrics(CLAIM) if record.attempt == attempt), default=None
    )


def identities(children: dict[str, Object]) -> dict[str, str]:
    return {name: child["metadata"]["uid"] for name, child in children.items()}


def version(child: Object) -> str:
    resource_version: str = child["metadata"]["resourceVersion"]
    return resource_version


def without(status: Object, keys: set[str]) -> Object:
    return {key: value for key, value in status.items() if key not in keys}
