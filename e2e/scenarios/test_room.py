"""Jobs that do not get all the nodes that they need: they wait, say what for, and run once there is room."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from grpo_demo.follow import condition
from grpo_demo.target import Target
from grpo_scenarios.bare_pod import bare_pod
from grpo_scenarios.namespace import Namespace, Object, copy_job, volume_claim
from grpo_scenarios.slots import SLOT, set_slots

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

CHART_VALUES = {"giveBack.afterSeconds": "20", "giveBack.forSeconds": "20"}
NUM_SLOTS = 6
CLAIM = "checkpoints"


@pytest.fixture(autouse=True)
def _slots_are_removed(target: Target) -> Iterator[None]:
    yield
    set_slots(target, None)


def test_two_jobs_that_each_got_a_part_of_what_they_need_run_one_after_the_other(
    namespace: Namespace,
) -> None:
    # each has one pod that fits and one that does not, and all slots are enough for either job
    set_slots(namespace.target, 5)
    for job, slots in (("large", 3), ("small", 2)):
        trainer = {"numNodes": 2, "processesPerNode": 1, "resources": with_slots(slots)}
        namespace.apply(copy_job(job, algorithm={"steps": 5}, trainer=trainer, rollout={"replicas": 1}))
        namespace.wait_until(lambda job=job: with_node(namespace, job), "a bound pod", timeout_seconds=20)
    set_slots(namespace.target, NUM_SLOTS)
    for job in ("large", "small"):
        namespace.wait_until(
            lambda job=job: names_the_slots(namespace, job), f"what {job} waits for", timeout_seconds=10
        )
        assert "waitingForRoom" in namespace.status(job)

    ends = {job: namespace.wait_for_finish(job, timeout_seconds=300) for job in ("large", "small")}
    for job, status in ends.items():
        assert condition(namespace.job(job), "Complete") == "True", namespace.describe()
        assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)
    assert sum(status.get("givenBack", 0) for status in ends.values()) >= 1
    first, second = sorted(ran(namespace, job) for job in ends)
    assert second[0] >= first[1], "they ran side by side"


def test_a_job_that_was_preempted_waits_longer_than_its_startup_deadline_and_goes_on_when_there_is_room(
    namespace: Namespace,
) -> None:
    job, urgent, steps = "preempted", f"{namespace.name}-urgent", 40
    set_slots(namespace.target, NUM_SLOTS)
    namespace.apply(
        volume_claim(CLAIM),
        copy_job(job, claim=CLAIM, algorithm={"steps": steps}, trainer={"resources": with_slots(4)}),
    )
    namespace.wait_until(
        lambda: namespace.status(job).get("checkpointStep"), "a checkpoint", timeout_seconds=180
    )
    namespace.apply(priority_class(urgent), urgent_pod(namespace, urgent))
    try:
        namespace.wait_until(lambda: namespace.status(job)["attempt"] == 2, "attempt 2", timeout_seconds=60)
        namespace.wait_until(lambda: names_the_slots(namespace, job), "what it waits for", timeout_seconds=30)
        before = namespace.status(job)
        set_startup_deadline(namespace, job, 5)
        namespace.wait_until(
            lambda: waited_seconds(namespace, job) > 20, "a wait beyond the deadline", timeout_seconds=40
        )
        assert names_the_slots(namespace, job)
        set_startup_deadline(namespace, job, 600)
    finally:
        namespace.delete_pod(urgent, is_graceful=False)
        namespace.target.run_kubectl("delete", "priorityclass", urgent)

    status = namespace.wait_for_finish(job)
    assert condition(namespace.job(job), "Complete") == "True", namespace.describe()
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (2, 0, 1)
    assert before["lastFailure"]["reason"] == "PreemptionByScheduler"
    records = namespace.metrics(CLAIM)
    assert [record.step for record in records] == list(range(1, steps + 1))
    assert min(record.step for record in records if record.attempt == 2) > before["checkpointStep"]


def with_slots(number: int) -> Object:
    """Resources of a trainer that asks for so many slots a pod."""
    limits = {"memory": "4Gi", SLOT: str(number)}
    return {"limits": limits, "requests": {"cpu": "100m", "memory": "512Mi"}}


def with_node(namespace: Namespace, job: str) -> list[str]:
    """Trainer pods of the job that have a node."""
    pods = namespace.pods_of(job, "trainer")
    return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]


def names_the_slots(namespace: Namespace, job: str) -> bool:
    """Whether the condition Running says that slots are missing, while the job waits or is held back."""
    conditions = namespace.status(job).get("conditions", [])
    running = next((item for item in conditions if item["type"] == "Running"), {})
    is_waiting = running.get("reason") in ("Unschedulable", "WaitingForRoom")
    return is_waiting and running["status"] == "False" and SLOT in running["message"]


def ran(namespace: Namespace, job: str) -> tuple[str, str]:
    """When the trainers of a finished job started, and when the last of them ended."""
    pods = namespace.pods(f"grpo.dev/job={job},grpo.dev/role=trainer")
    ends = [pod["status"]["containerStatuses"][0]["state"]["terminated"] for pod in pods]
    return min(end["startedAt"] for end in ends), max(end["finishedAt"] for end in ends)


def waited_seconds(namespace: Namespace, job: str) -> float:
    """For how long the job has waited for room. Fails when it waits no longer."""
    since = datetime.fromisoformat(namespace.status(job)["waitingForRoom"]["since"])
    return (datetime.now(UTC) - since).total_seconds()


def set_startup_deadline(namespace: Namespace, job: str, seconds: int) -> None:
    patch = json.dumps({"spec": {"startupDeadlineSeconds": seconds}})
    namespace.kubectl("patch", "grpojob", job, "--type=merge", "--patch", patch)


def priority_class(name: str) -> Object:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return {**kind, "metadata": {"name": name}, "value": 1000}


def urgent_pod(namespace: Namespace, name: str) -> Object:
    """A pod that asks for all slots, with a higher priority than any job."""
    pod = bare_pod(name, ["sleep", "infinity"], image=namespace.target.runtime_image)
    pod["spec"]["priorityClassName"] = name
    pod["spec"]["containers"][0]["resources"] = {"limits": {SLOT: str(NUM_SLOTS)}}
    return pod
