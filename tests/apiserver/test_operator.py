"""The operator against a real API server: what a user sees after each thing that can happen."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .operator_harness import (
    FakeKubelet,
    Namespace,
    OperatorProcess,
    operator_process,
    termination_message,
    wait_until,
)

pytestmark = pytest.mark.apiserver


@pytest.fixture
def namespace(kubeconfig: Path) -> Iterator[Namespace]:
    made = Namespace(kubeconfig, f"operator-{secrets.token_hex(3)}")
    made.create()
    yield made
    made.core.delete_namespace(made.name)


@pytest.fixture
def kubelet(namespace: Namespace) -> FakeKubelet:
    return FakeKubelet(namespace)


@pytest.fixture
def operator(namespace: Namespace, tmp_path: Path) -> Iterator[OperatorProcess]:
    yield from operator_process(namespace, tmp_path)


def wait_for_pods(namespace: Namespace, role: str, count: int, **more: Any) -> list[Any]:
    wait_until(f"{count} {role} pods", lambda: len(namespace.pods(role, **more)) == count)
    return namespace.pods(role, **more)


def running_job(namespace: Namespace, kubelet: FakeKubelet, **spec: Any) -> list[Any]:
    """A job whose pods all run; returns its trainer pods."""
    num_trainers = spec.get("trainer", {}).get("numNodes", 1)
    namespace.apply_job(**spec)
    trainers = wait_for_pods(namespace, "trainer", num_trainers)
    for pod in [*trainers, *wait_for_pods(namespace, "rollout", 2)]:
        kubelet.run(pod)
    wait_until("the job runs", lambda: namespace.status().get("phase") == "Running")
    wait_until("the engines are counted", lambda: namespace.status()["rollout"]["summary"] == "2/2")
    return trainers


def test_a_job_becomes_pods_services_config_and_tokens_and_the_pods_pass_pod_security(
    namespace: Namespace, operator: OperatorProcess
):
    operator.start()
    job = namespace.apply_job()
    wait_for_pods(namespace, "trainer", 1)
    wait_for_pods(namespace, "rollout", 2)
    core, name = namespace.core, namespace.name
    assert len(core.list_namespaced_service(name).items) == 2
    (config,) = core.list_namespaced_config_map(
        name, label_selector="app.kubernetes.io/managed-by=grpo-operator"
    ).items
    assert config.immutable
    (tokens,) = core.list_namespaced_secret(name).items
    assert sorted(tokens.data) == ["admin-token", "data-token"]
    owned = [*namespace.pods("trainer"), *namespace.pods("rollout"), config, tokens]
    assert {ref.uid for child in owned for ref in child.metadata.owner_references} == {job["metadata"]["uid"]}
    assert len(namespace.status()["conditions"]) == 7


def test_an_operator_that_is_killed_and_started_again_writes_nothing(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    running_job(namespace, kubelet)
    before = namespace.versions()
    operator.kill()
    operator.start("--resync-seconds", "1")
    wait_until("it has looked again", lambda: namespace.versions() == before)
    marker = namespace.apply_job("marker")  # once this one is served, the first has been looked at
    wait_until("the marker is served", lambda: namespace.status("marker").get("phase") == "Starting")
    after = {k: v for k, v in namespace.versions().items() if "marker" not in k}
    assert after == before
    assert marker["metadata"]["name"] == "marker"
    assert operator.stop() == 0


def test_a_failed_trainer_pod_leads_to_attempt_2_and_its_cause_is_in_status(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    first, second = running_job(namespace, kubelet, trainer={"numNodes": 2, "processesPerNode": 1})
    kubelet.bind(first)
    kubelet.end(second, exit_code=137, reason="OOMKilled")
    wait_until("attempt 2 is decided", lambda: namespace.status()["attempt"] == 2)
    failure = namespace.status()["lastFailure"]
    assert (failure["pod"], failure["reason"], failure["exitCode"]) == (
        second.metadata.name,
        "OOMKilled",
        137,
    )
    wait_until(
        "the other pod is asked to end",
        lambda: (
            namespace.core.read_namespaced_pod(
                first.metadata.name, namespace.name
            ).metadata.deletion_timestamp
        ),
    )
    wait_until("it is said", lambda: "must end first" in namespace.condition("Running")["message"])
    assert namespace.pods("trainer", attempt=2) == []
    kubelet.finish(first.metadata.name)
    for pod in wait_for_pods(namespace, "trainer", 2, attempt=2):
        kubelet.run(pod)
    wait_until("it runs again", lambda: namespace.status()["phase"] == "Running")
    assert namespace.status()["restarts"] == 1
    assert len(namespace.pods("rollout")) == 2


def test_an_error_of_the_user_finishes_the_job_with_its_sentence(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    (trainer,) = running_job(namespace, kubelet)
    sentence = "rewards[0].function: no module named nowhere: install it into spec.image"
    kubelet.end(trainer, exit_code=40, message=termination_message(40, "UserError", sentence))
    wait_until("it is finished", lambda: namespace.condition("Finished").get("status") == "True")
    assert namespace.condition("Failed")["message"] == sentence
    wait_for_pods(namespace, "rollout", 0)
    assert len(namespace.pods("trainer")) == 1  # for its logs


def test_a_job_whose_trainer_is_done_is_complete_and_gives_its_engines_back(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    (trainer,) = running_job(namespace, kubelet)
    kubelet.end(trainer, exit_code=0, reason="Completed")
    wait_until("it is complete", lambda: namespace.condition("Complete").get("status") == "True")
    assert namespace.condition("Finished")["status"] == "True"
    wait_for_pods(namespace, "rollout", 0)


def test_a_deleted_rollout_pod_is_replaced_while_the_old_one_is_still_going(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    running_job(namespace, kubelet)
    lost = namespace.pods("rollout")[1]
    kubelet.bind(lost)
    namespace.core.delete_namespaced_pod(lost.metadata.name, namespace.name)
    names = {pod.metadata.name for pod in wait_for_pods(namespace, "rollout", 2)}
    assert lost.metadata.name not in names
    assert namespace.status()["attempt"] == 1
    kubelet.finish(lost.metadata.name)


def test_a_trainer_pod_that_vanished_while_the_operator_was_down_starts_the_next_attempt(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    first, second = running_job(namespace, kubelet, trainer={"numNodes": 2, "processesPerNode": 1})
    operator.kill()
    kubelet.finish(second.metadata.name)
    operator.start()
    wait_for_pods(namespace, "trainer", 2, attempt=2)
    status = namespace.status()
    assert (status["restarts"], status["disruptions"]) == (0, 1)
    assert status["lastFailure"]["pod"] == second.metadata.name
    assert first.metadata.name not in {pod.metadata.name for pod in namespace.pods("trainer")}


def test_two_operators_at_once_make_one_set_of_pods_and_come_to_rest(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet, tmp_path: Path
):
    second = OperatorProcess(namespace, tmp_path / "second.log")
    operator.start("--resync-seconds", "1")
    second.start("--resync-seconds", "1")
    try:
        (trainer,) = running_job(namespace, kubelet)
        kubelet.end(trainer, exit_code=1, message="boom")
        for pod in wait_for_pods(namespace, "trainer", 1, attempt=2):
            kubelet.run(pod)
        for pod in namespace.pods("rollout"):
            namespace.core.delete_namespaced_pod(pod.metadata.name, namespace.name)
        for pod in wait_for_pods(namespace, "rollout", 2):
            kubelet.run(pod)
        wait_until("the engines are counted", lambda: namespace.status()["rollout"]["summary"] == "2/2")
        namespace.apply_job("marker")
        wait_until("the marker is served", lambda: namespace.status("marker").get("phase") == "Starting")
        status = namespace.status()
        assert (status["attempt"], status["restarts"], status["phase"]) == (2, 1, "Running")
        assert len(namespace.pods_of("copy", "rollout")) == 2
    finally:
        second.kill()


def test_kubectl_scale_adds_and_removes_engines(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    running_job(namespace, kubelet)
    namespace.patch_job({"spec": {"rollout": {"replicas": 3}}})
    wait_for_pods(namespace, "rollout", 3)
    namespace.patch_job({"spec": {"rollout": {"replicas": 1}}})
    (left,) = wait_for_pods(namespace, "rollout", 1)
    assert left.metadata.name.endswith("-rollout-0-i0")
    wait_until("status says so", lambda: namespace.status()["rollout"]["replicas"] == 1)


@pytest.mark.parametrize("is_operator_running", [True, False])
def test_a_deleted_job_leaves_nothing_behind(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet, is_operator_running: bool
):
    operator.start()
    running_job(namespace, kubelet)
    if not is_operator_running:
        operator.kill()
    namespace.delete_job()
    wait_until(
        "only what the namespace came with is left",
        lambda: set(namespace.versions()) == {"V1ConfigMap/kube-root-ca.crt"},
        seconds=30,
    )


def test_a_pod_that_cannot_start_is_explained_on_the_job(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    namespace.apply_job()
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    kubelet.wait(trainer, reason="ErrImagePull", message="pull access denied for example.test/runtime")
    found = wait_until(
        "the reason is shown",
        lambda: (c := namespace.condition("Running")).get("reason") == "ErrImagePull" and c,
    )
    assert found["status"] == "False" and "pull access denied" in found["message"]
    assert namespace.condition("Finished")["status"] == "False"


def test_a_quota_is_named_and_the_pods_come_when_it_is_raised(
    namespace: Namespace, operator: OperatorProcess
):
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}}
    namespace.core.create_namespaced_resource_quota(namespace.name, quota)
    operator.start()
    namespace.apply_job()
    wait_until("the quota is named", lambda: namespace.condition("Running").get("reason") == "QuotaExceeded")
    namespace.core.patch_namespaced_resource_quota("small", namespace.name, {"spec": {"hard": {"pods": "9"}}})
    wait_for_pods(namespace, "trainer", 1)


def test_a_name_taken_by_somebody_else_is_said_and_left_alone(
    namespace: Namespace, operator: OperatorProcess
):
    job = namespace.apply_job()
    from grpo_operator.names import Names

    taken = Names.of(job="copy", uid=job["metadata"]["uid"]).service("trainer")
    service = {"metadata": {"name": taken}, "spec": {"ports": [{"port": 80}], "clusterIP": "None"}}
    namespace.core.create_namespaced_service(namespace.name, service)
    operator.start()
    wait_until("it is said", lambda: namespace.condition("Running").get("reason") == "NameTaken")
