"""The operator against a real API server: what a user sees after each thing that can happen."""

from pathlib import Path
from typing import Any

import pytest

from .api_server import Kubectl
from .fake_kubelet import FakeKubelet, running_job
from .operator_harness import Namespace, OperatorProcess, termination_message, wait_for_pods, wait_until

pytestmark = pytest.mark.apiserver


def test_a_job_becomes_pods_services_config_and_tokens_and_the_pods_pass_pod_security(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    job = namespace.apply_job()
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    kubelet.bind(trainer)
    wait_for_pods(namespace, "rollout", 2)
    core, name = namespace.core, namespace.name
    (service,) = core.list_namespaced_service(name).items
    assert service.spec.selector["grpo.dev/role"] == "rollout"
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
    # Keys are looked at in turn, and the first job's was there before those of the markers.
    for marker in ("marker-1", "marker-2"):
        namespace.apply_job(marker)
        wait_until(f"{marker} is served", lambda of=marker: namespace.status(of).get("phase") == "Starting")
    after = {name: version for name, version in namespace.versions().items() if "marker" not in name}
    assert after == before
    assert operator.stop() == 0


def test_a_deleted_job_that_a_foreign_finalizer_holds_gives_up_its_pods(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet, kubectl: Kubectl
):
    operator.start()
    running_job(namespace, kubelet)
    held = '{"metadata": {"finalizers": ["fault.example/x"]}}'
    of = ("--namespace", namespace.name, "grpojob", "copy")
    kubectl.run("patch", *of, "--type=merge", f"--patch={held}")
    kubectl.run("delete", *of, "--wait=false")
    wait_until("the pods are gone", lambda: not namespace.pods("trainer") and not namespace.pods("rollout"))
    ready = namespace.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "BeingDeleted")
    assert "fault.example/x" in ready["message"]
    kubectl.run("patch", *of, "--type=merge", '--patch={"metadata": {"finalizers": null}}')


def test_the_trainer_pods_of_a_failed_job_stay_and_those_that_run_are_stopped(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    first, second = running_job(namespace, kubelet, trainer={"numNodes": 2, "processesPerNode": 1})
    kubelet.bind(second)
    kubelet.end(first, exit_code=40, message=termination_message(40, "UserError", "the spec is wrong"))
    wait_until("the job has failed", lambda: namespace.status()["phase"] == "Failed")
    wait_until(
        "its node is asked to end the other pod",
        lambda: namespace.pods("trainer")[1].spec.active_deadline_seconds == 1,
    )
    wait_until("the engines have gone", lambda: not namespace.pods("rollout"))
    assert len(namespace.pods("trainer")) == 2


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
    wait_until("a Warning says so", lambda: "QuotaExceeded" in events(namespace))
    operator.kill()
    operator.start("--resync-seconds", "0.5")
    namespace.core.patch_namespaced_resource_quota("small", namespace.name, {"spec": {"hard": {"pods": "9"}}})
    wait_for_pods(namespace, "trainer", 1)
    assert events(namespace) == ["ModeChosen", "QuotaExceeded"]


def test_a_taken_name_is_in_the_status_and_its_object_is_left_alone(
    namespace: Namespace, operator: OperatorProcess
):
    job = namespace.apply_job()
    from grpo_operator.children.names import Names

    taken = Names.of(job="copy", uid=job["metadata"]["uid"]).service("rollout")
    service = {"metadata": {"name": taken}, "spec": {"ports": [{"port": 80}], "clusterIP": "None"}}
    theirs = namespace.core.create_namespaced_service(namespace.name, service).to_dict()
    operator.start()
    wait_until("it is said", lambda: namespace.condition("Running").get("reason") == "NameTaken")
    assert namespace.core.read_namespaced_service(taken, namespace.name).to_dict() == theirs
    assert namespace.pods_of("copy", "trainer") == []


def events(namespace: Namespace, job: str = "copy") -> list[str]:
    """Reasons of the Events about a job, oldest first."""
    about = f"involvedObject.kind=GRPOJob,involvedObject.name={job}"
    found = namespace.core.list_namespaced_event(namespace.name, field_selector=about).items
    found.sort(key=lambda event: int(event.metadata.resource_version))
    return [event.reason for event in found]


def test_a_colocated_job_is_trainer_pods_alone(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    namespace.apply_job(rollout=None)
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    kubelet.run(trainer)
    wait_until("the job runs", lambda: namespace.status().get("phase") == "Running")
    status = namespace.status()
    assert (status["mode"], status["modeReason"]) == (
        "Colocated",
        "spec.mode is Auto and spec.rollout is not set",
    )
    assert (status["rollout"]["summary"], status["rollout"]["replicas"]) == ("in trainer", 0)
    core, name = namespace.core, namespace.name
    assert core.list_namespaced_service(name).items == []
    assert core.list_namespaced_secret(name).items == []
    assert namespace.pods("rollout") == []
    assert namespace.condition("RolloutReady")["reason"] == "EnginesStarting"


def test_pods_with_everything_mounted_pass_the_api_server_and_pod_security(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    namespace.apply_job(
        model={"source": "pvc://models/qwen"},
        dataset={"source": "configmap://data/train.jsonl"},
        rewards=[{"name": "mine", "configMap": {"name": "code", "key": "reward.py", "function": "score"}}],
        checkpoint={"claimName": "models"},
        hub={"tokenSecret": "hub", "cacheClaim": "cache", "offline": True},
        imagePullSecrets=["registry"],
    )
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    kubelet.bind(trainer)
    wait_for_pods(namespace, "rollout", 2)
    claims = {v.persistent_volume_claim.claim_name for v in trainer.spec.volumes if v.persistent_volume_claim}
    assert claims == {"models", "cache"}
    assert [secret.name for secret in trainer.spec.image_pull_secrets] == ["registry"]


def test_each_event_is_written_once_also_with_two_operators(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet, kubectl: Kubectl, tmp_path: Path
):
    second = OperatorProcess(namespace, tmp_path / "second.log")
    for process in (operator, second):
        process.start("--leader-elect", "false", "--resync-seconds", "1")
    try:
        (trainer,) = running_job(namespace, kubelet)
        lost = namespace.pods("rollout")[1]
        kubelet.finish(lost.metadata.name)
        _, successor = wait_for_pods(namespace, "rollout", 2)
        kubelet.run(successor)
        kubelet.end(trainer, exit_code=1, message="boom")
        (trainer,) = wait_for_pods(namespace, "trainer", 1, attempt=2)
        kubelet.run(trainer)
        wait_until("it runs again", lambda: namespace.status()["phase"] == "Running")
        kubelet.end(trainer, exit_code=0, reason="Completed")
        said = ["ModeChosen", "Started", "EngineReplaced", "Restarting", "Started", "Completed"]
        # each operator writes those of the changes that it made, so that the last may come first
        wait_until("every Event is there", lambda: len(events(namespace)) >= len(said))
        assert sorted(events(namespace)) == sorted(said)
        described = kubectl.run("describe", "grpojob", "copy", "-n", namespace.name)
        for part in (
            "spec.mode is Auto and spec.rollout is set",
            # one that is gone at once is told of by its replica alone
            successor.metadata.name,
            "boom",
            "grpo-operator",
        ):
            assert part in described
    finally:
        second.kill()


def test_a_secret_deleted_under_running_pods_is_in_the_status_until_all_pods_are_made_again(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    running_job(namespace, kubelet)
    core, name = namespace.core, namespace.name
    (tokens,) = core.list_namespaced_secret(name).items
    core.delete_namespaced_secret(tokens.metadata.name, name)
    kubelet.finish(namespace.pods("rollout")[1].metadata.name)
    found = wait_until(
        "the loss is said",
        lambda: (c := namespace.condition("RolloutReady")).get("reason") == "TokensLost" and c,
    )
    assert tokens.metadata.name in found["message"]
    assert core.list_namespaced_secret(name).items == []
    for pod in [*namespace.pods("trainer"), *namespace.pods("rollout")]:
        kubelet.finish(pod.metadata.name)
    (trainer,) = wait_for_pods(namespace, "trainer", 1, attempt=2)
    kubelet.bind(trainer)
    wait_for_pods(namespace, "rollout", 2)
    assert len(core.list_namespaced_secret(name).items) == 1


def _engines_of(namespace: Namespace, kubelet: FakeKubelet, trainer: Any) -> list[Any]:
    """The rollout pods, which come once the trainer pod has a node; they get nodes too."""
    kubelet.bind(trainer)
    engines = wait_for_pods(namespace, "rollout", 2)
    for pod in engines:
        kubelet.bind(pod)
    return engines


def test_an_attempt_that_does_not_start_in_time_fails_the_job_with_the_cause(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    namespace.apply_job(startupDeadlineSeconds=600)
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    for pod in [trainer, *_engines_of(namespace, kubelet, trainer)]:
        kubelet.wait(pod, reason="ErrImagePull", message="pull access denied for example.test/runtime")
    wait_until("the reason is shown", lambda: namespace.condition("Running").get("reason") == "ErrImagePull")
    namespace.patch_job({"spec": {"startupDeadlineSeconds": 1}})
    wait_until("it is finished", lambda: namespace.condition("Finished").get("status") == "True")
    failed = namespace.condition("Failed")
    assert failed["reason"] == "StartupDeadlineExceeded"
    assert "pull access denied" in failed["message"]
    assert namespace.status()["lastFailure"]["reason"] == "ErrImagePull"
