"""Jobs in a queue of the real Kueue, on real pods."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from grpo_demo.follow import condition
from grpo_demo.target import Target
from grpo_scenarios.bare_pod import NAME_LABEL, bare_pod
from grpo_scenarios.disturbed import NUM_STEPS, attempt_and_counts, digests, long_job, trained_model
from grpo_scenarios.kueue import GROUP, HAS_PODS_CHECKED, Kueue, kueue
from grpo_scenarios.kueue_objects import (
    Workloads,
    cluster_queue,
    flavor,
    is_admitted,
    local_queue,
    priority_class,
    state,
    workload,
)
from grpo_scenarios.namespace import Namespace, Object, copy_job, volume_claim
from grpo_scenarios.pace import hurry, slow_down

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

CHART_VALUES = {"kueue.enabled": "true"}
NAMESPACE = "e2e-kueue"
FLAVOR, CLUSTER_QUEUE, QUEUE = "e2e-cpu", "e2e-queue", "team"
LOW, HIGH = ("e2e-low", 10), ("e2e-high", 1000)
NODE_LABELS = {"kubernetes.io/hostname": "node0"}


@pytest.fixture(scope="module", autouse=True)
def running_kueue(target: Target) -> Iterator[Kueue]:
    """Kueue, which is there before the operator, and until the end of the namespace."""
    with kueue(target) as running:
        yield running
        target.run_kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")


@pytest.fixture(scope="module", autouse=True)
def queue(running_kueue: Kueue, namespace: Namespace) -> None:
    """A queue of the namespace."""
    assert namespace.name == NAMESPACE
    quota_is(namespace, cpu="1")
    namespace.apply(
        flavor(FLAVOR, node_labels=NODE_LABELS),
        local_queue(QUEUE, cluster_queue=CLUSTER_QUEUE),
        *(priority_class(name, value) for name, value in (LOW, HIGH)),
    )


@pytest.fixture
def workloads(namespace: Namespace) -> Workloads:
    """The Workloads in that queue."""
    return Workloads(namespace)


def test_kueue_preempts_a_workload_of_nobody_and_admits_it_again(
    namespace: Namespace, workloads: Workloads
) -> None:
    quota_is(namespace, cpu="350m")
    namespace.apply(workload("low", queue=QUEUE, priority=LOW, pods={"trainer": 1, "rollout": 2}, cpu="100m"))
    low = workloads.wait_for_admission("low")
    for assignment in low["status"]["admission"]["podSetAssignments"]:
        assert assignment["flavors"] == {"cpu": FLAVOR}

    namespace.apply(competitor(cpu="200m"))
    low = workloads.wait_for_eviction("low")
    assert state(low, "Evicted") == ("True", "Preempted")
    assert not is_admitted(workloads.get("high"))
    workloads.give_back(low)
    workloads.wait_for_admission("high")

    workloads.finish("high")
    low = workloads.wait_for_admission("low")
    assert state(low, "Evicted")[0] == "False"
    workloads.delete("high")
    workloads.delete("low")


def test_of_two_jobs_and_quota_for_one_the_second_waits_for_the_end_of_the_first(
    namespace: Namespace, workloads: Workloads
) -> None:
    quota_is(namespace, cpu="250m")
    apply_held(namespace, queued(small_job("first", num_steps=3)))
    namespace.wait_for_step("first", 1)
    namespace.apply(labelled(small_job("second", num_steps=3)))
    namespace.wait_until(
        lambda: "insufficient unused quota for cpu" in said_of_queue(namespace, "second"),
        "Kueue's own words about quota",
        timeout_seconds=30,
    )
    namespace.wait_until(
        lambda: "it is the first in its queue" in said_of_queue(namespace, "second"),
        "its place in the queue, of Kueue's visibility API",
        timeout_seconds=30,
    )
    assert namespace.pods("grpo.dev/job=second") == []
    assert workloads.of_job("second")["spec"]["priority"] == LOW[1]
    for pod in namespace.pods("grpo.dev/job=first"):
        assert pod["spec"]["nodeSelector"].items() >= NODE_LABELS.items()
    assert state(workloads.of_job("first"), "PodsReady") == ("True", "Started")

    hurry(namespace, claim="first")
    for job in ("first", "second"):
        status = namespace.wait_for_finish(job)
        assert condition(namespace.job(job), "Complete") == "True", namespace.describe()
        assert attempt_and_counts(status) == (1, {})
        namespace.wait_until(
            lambda job=job: state(workloads.of_job(job), "Finished") == ("True", "Succeeded"),
            f"the end of the Workload of {job}",
            timeout_seconds=30,
        )


def test_a_preempted_job_saves_gives_its_quota_back_and_continues_to_the_same_weights(
    namespace: Namespace, workloads: Workloads
) -> None:
    quota_is(namespace, cpu="350m")
    apply_slow(namespace, queued(long_job("preempted")))
    namespace.wait_for_step("preempted", 2)
    namespace.apply(competitor(cpu="200m"))
    workloads.wait_for_admission("high", timeout_seconds=120)
    assert namespace.pods_of("preempted", "trainer") == namespace.pods_of("preempted", "rollout") == []
    assert state(workloads.of_job("preempted"), "Requeued") == ("True", "Preempted")
    namespace.kubectl("wait", "--for=condition=Suspended", "grpojob/preempted", "--timeout=60s")
    status = namespace.status("preempted")
    saved = status["checkpointStep"]
    assert 2 <= saved == status["step"] < NUM_STEPS

    workloads.finish("high")
    status = namespace.wait_for_finish("preempted")
    assert condition(namespace.job("preempted"), "Complete") == "True", namespace.describe()
    assert attempt_and_counts(status) == (2, {})
    attempts = {each.step: each.attempt for each in namespace.metrics("preempted")}
    assert attempts == {step: 1 if step <= saved else 2 for step in range(1, NUM_STEPS + 1)}

    apply_slow(namespace, queued(long_job("whole")))
    namespace.wait_for_finish("whole")
    assert digests(namespace, "preempted") == digests(namespace, "whole")
    assert trained_model(namespace, "preempted") == trained_model(namespace, "whole")
    workloads.delete("high")


def test_preemption_takes_the_newest_engine_alone_and_training_continues(
    namespace: Namespace, workloads: Workloads
) -> None:
    quota_is(namespace, cpu="350m")
    apply_held(namespace, queued(small_job("grows", num_steps=200)))
    namespace.wait_for_step("grows", 1)
    namespace.kubectl("scale", "grpojob/grows", "--replicas=2")
    wait_for_engines(namespace, "grows", 2)
    assert [is_admitted(each) for each in workloads.all_of_job("grows")] == [True, True]
    (trainer,) = namespace.pods_of("grows", "trainer")

    namespace.apply(competitor(cpu="150m"))
    workloads.wait_for_admission("high", timeout_seconds=60)
    assert len(namespace.pods_of("grows", "rollout")) == 1
    assert is_admitted(workloads.of_job("grows"))
    namespace.wait_for_step("grows", namespace.status("grows")["step"] + 2)
    (still,) = namespace.pods_of("grows", "trainer")
    assert still["metadata"]["uid"] == trainer["metadata"]["uid"]

    workloads.finish("high")
    wait_for_engines(namespace, "grows", 2)
    why = "Kueue had taken its quota and has given it back: Preempted to accommodate a workload"
    assert why in namespace.kubectl("get", "events", "--output", "wide")
    hurry(namespace, claim="grows")
    status = namespace.wait_for_finish("grows")
    assert condition(namespace.job("grows"), "Complete") == "True", namespace.describe()
    assert attempt_and_counts(status) == (1, {})
    workloads.delete("high")


def test_a_job_is_admitted_with_part_of_its_engines_and_the_others_follow(
    namespace: Namespace, workloads: Workloads
) -> None:
    quota_is(namespace, cpu="250m")
    job = queued(small_job("part", num_steps=200))
    job["spec"]["rollout"] |= {"replicas": 2, "minReplicas": 1}
    apply_held(namespace, job)
    namespace.wait_for_step("part", 1)
    assignments = workloads.of_job("part")["status"]["admission"]["podSetAssignments"]
    assert [each["count"] for each in assignments] == [1, 1]
    assert len(namespace.pods_of("part", "rollout")) == 1

    quota_is(namespace, cpu="350m")
    wait_for_engines(namespace, "part", 2)
    assert [is_admitted(each) for each in workloads.all_of_job("part")] == [True, True]
    hurry(namespace, claim="part")
    assert attempt_and_counts(namespace.wait_for_finish("part")) == (1, {})


def test_the_quota_of_an_engine_that_goes_is_free_and_the_engine_asks_for_it_again(
    namespace: Namespace, workloads: Workloads
) -> None:
    quota_is(namespace, cpu="350m")
    job = queued(small_job("shrinks", num_steps=200))
    job["spec"]["rollout"]["replicas"] = 2
    apply_held(namespace, job)
    namespace.wait_for_step("shrinks", 1)
    namespace.kubectl("scale", "grpojob/shrinks", "--replicas=1")
    namespace.apply(workload("other", queue=QUEUE, priority=LOW, pods={"main": 1}, cpu="150m"))
    workloads.wait_for_admission("other", timeout_seconds=60)
    found = workloads.of_job("shrinks")
    assert found["status"]["reclaimablePods"] == [{"name": "rollout", "count": 1}]
    assert is_admitted(found)

    namespace.kubectl("scale", "grpojob/shrinks", "--replicas=2")
    namespace.wait_until(
        lambda: [is_admitted(each) for each in workloads.all_of_job("shrinks")] == [True, False],
        "a Workload of the engine that waits",
        timeout_seconds=30,
    )
    assert len(namespace.pods_of("shrinks", "rollout")) == 1
    workloads.delete("other")
    wait_for_engines(namespace, "shrinks", 2)
    hurry(namespace, claim="shrinks")
    assert attempt_and_counts(namespace.wait_for_finish("shrinks")) == (1, {})


def test_a_job_of_a_queue_that_is_drained_waits_until_it_is_open_again(
    namespace: Namespace, workloads: Workloads
) -> None:
    quota_is(namespace, cpu="350m")
    apply_held(namespace, queued(small_job("drained", num_steps=60)))
    namespace.wait_for_step("drained", 1)
    quota_is(namespace, cpu="350m", is_drained=True)
    namespace.wait_until(
        lambda: state(workloads.of_job("drained"), "Requeued") == ("False", "ClusterQueueStopped"),
        "quota that was given back",
        timeout_seconds=120,
    )
    assert namespace.pods_of("drained", "trainer") == namespace.pods_of("drained", "rollout") == []
    hurry(namespace, claim="drained")
    quota_is(namespace, cpu="350m")
    status = namespace.wait_for_finish("drained")
    assert condition(namespace.job("drained"), "Complete") == "True", namespace.describe()
    assert attempt_and_counts(status) == (2, {})


def test_while_kueue_is_down_running_jobs_continue_and_new_ones_wait(
    namespace: Namespace, running_kueue: Kueue
) -> None:
    quota_is(namespace, cpu="500m")
    apply_held(namespace, queued(small_job("before", num_steps=60)))
    namespace.wait_for_step("before", 1)
    running_kueue.stop()
    namespace.apply(queued(small_job("after", num_steps=2)))
    namespace.wait_until(
        lambda: "Kueue does not answer" in said_of_queue(namespace, "after"),
        "what the new job waits for",
        timeout_seconds=30,
    )
    assert namespace.pods("grpo.dev/job=after") == []
    assert "Queued" in namespace.kubectl("get", "grpojob", "after")
    namespace.wait_for_step("before", namespace.status("before")["step"] + 2)

    running_kueue.start()
    namespace.wait_for_finish("after")
    assert condition(namespace.job("after"), "Complete") == "True", namespace.describe()
    hurry(namespace, claim="before")
    assert attempt_and_counts(namespace.wait_for_finish("before")) == (1, {})


def test_a_job_whose_pods_do_not_get_ready_in_time_is_evicted_requeued_and_then_left_alone(
    namespace: Namespace, workloads: Workloads, running_kueue: Kueue
) -> None:
    quota_is(namespace, cpu="350m")
    job = queued(small_job("late", num_steps=60))
    job["spec"]["checkpoint"] = {"claimName": "late", "everySteps": 10}
    wait = {"timeout": "25s", "requeuingStrategy": {"backoffBaseSeconds": 5}}
    with running_kueue.configured(waitForPodsReady=wait):
        namespace.apply(slow_down(job, seconds=0.5, is_held=True), job)  # and no claim
        namespace.wait_until(
            lambda: (
                "queue" in namespace.status("late")
                and state(workloads.of_job("late"), "Evicted") == ("True", "PodsReadyTimeout")
            ),
            "an eviction",
            timeout_seconds=60,
        )
        namespace.apply(volume_claim("late"))
        namespace.wait_for_step("late", 45)  # longer than the timeout after its pods are ready
        assert state(workloads.of_job("late"), "PodsReady") == ("True", "Started")
        hurry(namespace, claim="late")
        status = namespace.wait_for_finish("late")
    assert condition(namespace.job("late"), "Complete") == "True", namespace.describe()
    assert attempt_and_counts(status) == (2, {})


def test_where_kueue_holds_back_pods_without_a_queue_jobs_without_a_queue_train_too(
    namespace: Namespace, workloads: Workloads, running_kueue: Kueue, target: Target
) -> None:
    quota_is(namespace, cpu="1")
    integrations = {
        "frameworks": ["batch/job", "deployment", "pod"],
        "externalFrameworks": ["GRPOJob.v1alpha1.grpo.dev"],
    }
    configuration = {
        "manageJobsWithoutQueueName": True,
        "managedJobsNamespaceSelector": {"matchLabels": HAS_PODS_CHECKED},
        "integrations": integrations,
    }
    with running_kueue.configured(**configuration), a_pod_held_back(namespace) as held_back:
        namespace.apply(small_job("without", num_steps=2))
        namespace.wait_until(
            lambda: "mpod.kb.io" in json.dumps(namespace.status("without")),
            "what keeps its pods from being made",
            timeout_seconds=60,
        )
        with kueue_may_read_jobs(target):
            namespace.scale_operator(0)
            namespace.scale_operator(1)
            namespace.wait_for_finish("without")
            namespace.apply(queued(small_job("within", num_steps=2)))
            namespace.wait_for_finish("within")
        (pod,) = namespace.pods(held_back)
        assert {"name": f"{GROUP}/admission"} in pod["spec"]["schedulingGates"]
    for job in ("without", "within"):
        assert condition(namespace.job(job), "Complete") == "True", namespace.describe()
    assert "queue" not in namespace.status("without")


@contextmanager
def a_pod_held_back(namespace: Namespace) -> Iterator[str]:
    """The selector of a pod of nobody in a namespace where Kueue is asked about each pod. It goes while Kueue
    is there, which has finalizers on it and its Workload."""
    ((key, value),) = HAS_PODS_CHECKED.items()
    selector = f"{NAME_LABEL}=nobodys"
    namespace.target.run_kubectl("label", "namespace", namespace.name, f"{key}={value}")
    try:
        namespace.apply(bare_pod("nobodys", ["true"], image="none"))
        yield selector
    finally:
        namespace.kubectl("delete", "pod", "--selector", selector, "--timeout=60s")
        namespace.kubectl("delete", f"workloads.{GROUP}", "--all", "--timeout=60s")
        namespace.target.run_kubectl("label", "namespace", namespace.name, f"{key}-")


@contextmanager
def kueue_may_read_jobs(target: Target) -> Iterator[None]:
    """The rights that Kueue needs for a framework that is not its own, as the guide has them."""
    name, verbs = "kueue-grpojobs", "--verb=get,list,watch"
    account = "--serviceaccount=kueue-system:kueue-controller-manager"
    target.run_kubectl("create", "clusterrole", name, verbs, "--resource=grpojobs.grpo.dev")
    target.run_kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", account)
    try:
        yield
    finally:
        target.run_kubectl("delete", f"clusterrole/{name}", f"clusterrolebinding/{name}")


def small_job(name: str, *, num_steps: int) -> Object:
    """One trainer pod and one engine, which ask for 100m of CPU each."""
    return copy_job(name, algorithm={"steps": num_steps}, rollout={"replicas": 1})


def queued(job: Object) -> Object:
    """The job in the queue, with low priority."""
    job["spec"] |= {"queueName": QUEUE, "scheduling": {"priorityClass": LOW[0]}}
    return job


def labelled(job: Object) -> Object:
    """The same, said by the labels that all jobs have for it."""
    job["metadata"]["labels"] = {f"{GROUP}/queue-name": QUEUE, f"{GROUP}/priority-class": LOW[0]}
    return job


def apply_slow(namespace: Namespace, job: Object) -> None:
    """Apply a job with the claim of its name. It takes a second for a step."""
    namespace.apply(slow_down(job, seconds=1.0), volume_claim(job["metadata"]["name"]), job)


def apply_held(namespace: Namespace, job: Object) -> None:
    """Apply a job with the claim of its name. It makes its last step once it is told to hurry."""
    name = job["metadata"]["name"]
    job["spec"]["checkpoint"] = {"claimName": name, "everySteps": 10}
    namespace.apply(slow_down(job, seconds=0.5, is_held=True), volume_claim(name), job)


def competitor(*, cpu: str) -> Object:
    """A Workload of high priority and of nobody, which takes quota and has no pods."""
    return workload("high", queue=QUEUE, priority=HIGH, pods={"main": 1}, cpu=cpu)


def quota_is(namespace: Namespace, *, cpu: str, is_drained: bool = False) -> None:
    quota = {"cpu": cpu, "memory": "64Gi"}
    namespace.apply(cluster_queue(CLUSTER_QUEUE, flavor=FLAVOR, quota=quota, is_drained=is_drained))


def wait_for_engines(namespace: Namespace, job: str, number: int) -> None:
    namespace.wait_until(
        lambda: namespace.status(job).get("rollout", {}).get("current") == number,
        f"{number} engines with the newest weights",
        timeout_seconds=120,
    )


def said_of_queue(namespace: Namespace, job: str) -> str:
    """What a job that runs no pods says that it waits for in its queue; empty when it says nothing of it."""
    conditions = namespace.status(job).get("conditions", ())
    message: str = next((each["message"] for each in conditions if each["type"] == "Running"), "")
    return message if f"queue {QUEUE}" in message else ""
