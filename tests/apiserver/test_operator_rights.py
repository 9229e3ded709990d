"""The operator with the rights of its chart and not one more, and what it does at the edges of them."""

import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import yaml

from grpo_api.contract.progress import EngineCounts, Progress, TrainerState
from grpo_cluster.versions import program_path

from .api_server import Kubectl
from .fake_kubelet import FakeKubelet, all_pods
from .fake_trainer import FakeTrainer, serving_trainer
from .operator_harness import (
    Namespace,
    OperatorProcess,
    killed_at_the_end,
    wait_for_pods,
    wait_until,
)

pytestmark = pytest.mark.apiserver

CHART = Path(__file__).parents[2] / "charts" / "grpo-operator"
GOLDEN = Path(__file__).parent / "golden"
WIDE = ("--set", "watch.allNamespaces=true")
SELECTOR = "grpo.dev/ignored!=true"
SCOPES = {
    "namespaced": (),
    "cluster-wide": WIDE,
    "some-by-label": (*WIDE, "--set", f"watch.namespaceSelector={SELECTOR}"),
}
TRAINER_ADDRESS = "127.0.77.1"


def rendered_chart(namespace: str, *arguments: str) -> list[dict]:
    command = [str(program_path("helm")), "template", "grpo-operator", str(CHART), "-n", namespace]
    command += arguments
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def install_rights(kubectl: Kubectl, namespace: Namespace, *arguments: str) -> None:
    """The chart without what runs: its account and every right it gives, to it and to people."""
    kinds = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    made = [item for item in rendered_chart(namespace.name, *arguments) if item["kind"] in kinds]
    kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump_all(made))


def operator_of_the_chart(
    kubectl: Kubectl, namespace: Namespace, folder: Path, *arguments: str
) -> OperatorProcess:
    """An operator with the service account of the chart, its Roles and bindings and no other right."""
    install_rights(kubectl, namespace, *arguments)
    request = {"spec": {"expirationSeconds": 3600}}
    token = namespace.core.create_namespaced_service_account_token("grpo-operator", namespace.name, request)
    settings = yaml.safe_load(namespace.kubeconfig.read_text())
    for user in settings["users"]:
        user["user"] = {"token": token.status.token}
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(settings))
    return OperatorProcess(namespace, folder / "operator.log", kubeconfig=kubeconfig)


@pytest.fixture
def operator(namespace: Namespace, kubectl: Kubectl, tmp_path: Path) -> Iterator[OperatorProcess]:
    """The operator of one namespace."""
    made = operator_of_the_chart(kubectl, namespace, tmp_path)
    with killed_at_the_end(made):
        yield made


@pytest.fixture
def wide_operator(namespace: Namespace, kubectl: Kubectl, tmp_path: Path) -> Iterator[OperatorProcess]:
    """The operator of the whole cluster."""
    made = operator_of_the_chart(kubectl, namespace, tmp_path, *SCOPES["cluster-wide"])
    with killed_at_the_end(made):
        yield made


@pytest.fixture
def fake_trainer() -> Iterator[FakeTrainer]:
    with serving_trainer(TRAINER_ADDRESS) as made:
        yield made


def refusals(operator: OperatorProcess) -> list[str]:
    """What its log says of rights that it lacks. Namespaces of earlier tests may be on their way out while an
    operator of the cluster looks at their jobs."""
    lines = operator.log().splitlines()
    return [line for line in lines if "orbidden" in line and "being terminated" not in line]


def test_a_whole_job_runs_under_the_rights_of_the_chart(
    namespace: Namespace, operator: OperatorProcess, fake_trainer: FakeTrainer
):
    fast = ("--progress", "pod-ip", "--poll-seconds", "0.2", "--resync-seconds", "1")
    operator.start("--leader-elect=true", *fast)
    kubelet = FakeKubelet(namespace)
    job = namespace.apply_job()
    trainer = all_pods(namespace, kubelet)[0]
    fake_trainer.body = Progress(
        job_uid=job["metadata"]["uid"],
        attempt=1,
        state=TrainerState.TRAINING,
        step=7,
        total_steps=200,
        reward=0.25,
        policy_version="1.7",
        tokens_per_second=99.6,
        engines=EngineCounts(desired=2, known=2, current=2),
    ).model_dump_json(by_alias=True)
    for pod in [trainer, *namespace.pods("rollout")]:
        kubelet.run(pod, address=TRAINER_ADDRESS)
    wait_until("progress is in status", lambda: namespace.status()["progress"] == "7/200")
    status = namespace.status()
    assert (status["reward"], status["policyVersion"], status["tokensPerSecond"]) == ("0.250", "1.7", "100")
    assert status["rollout"]["current"] == 2
    assert namespace.condition("Ready")["status"] == "True"
    wait_until("the trainer is told of the engines", lambda: fake_trainer.paths[-1] == "/progress?engines=2")

    namespace.core.patch_namespaced_service(
        next(s.metadata.name for s in namespace.core.list_namespaced_service(namespace.name).items),
        namespace.name,
        {"spec": {"publishNotReadyAddresses": False}},
    )
    (policy,) = namespace.network.list_namespaced_network_policy(namespace.name).items
    namespace.network.patch_namespaced_network_policy(
        policy.metadata.name, namespace.name, {"spec": {"ingress": [{}]}}
    )
    wait_until(
        "an opened NetworkPolicy is put right",
        lambda: (
            namespace.network.read_namespaced_network_policy(policy.metadata.name, namespace.name).spec
            == policy.spec
        ),
    )
    wait_until(
        "a changed Service is put right",
        lambda: all(
            s.spec.publish_not_ready_addresses
            for s in namespace.core.list_namespaced_service(namespace.name).items
        ),
    )
    kubelet.end(trainer, exit_code=1, message="boom")
    (trainer,) = wait_until("attempt 2 comes", lambda: namespace.pods("trainer", attempt=2))
    kubelet.schedule(trainer, at=datetime.now(UTC))
    namespace.core.delete_namespaced_pod(namespace.pods("rollout")[0].metadata.name, namespace.name)
    wait_until("the engine is replaced", lambda: len(namespace.pods("rollout")) == 2)
    kubelet.end(namespace.pods("trainer", attempt=2)[0], exit_code=0)
    wait_until("it is complete", lambda: namespace.condition("Complete")["status"] == "True")
    wait_until("engines are gone", lambda: namespace.pods("rollout") == [])
    namespace.patch_job({"spec": {"ttlSecondsAfterFinished": 0}})
    wait_until("the job is deleted", lambda: namespace.jobs() == [])
    assert refusals(operator) == []
    assert operator.stop() == 0


def test_a_job_whose_progress_stands_still_is_not_written_to(
    namespace: Namespace, operator: OperatorProcess, fake_trainer: FakeTrainer
):
    operator.start("--progress", "pod-ip", "--poll-seconds", "0.1", "--resync-seconds", "0.5")
    kubelet = FakeKubelet(namespace)
    uid = namespace.apply_job()["metadata"]["uid"]
    for pod in all_pods(namespace, kubelet):
        kubelet.run(pod, address=TRAINER_ADDRESS)

    def say(**changes: object) -> None:
        told = {"schemaVersion": 1, "jobUid": uid, "attempt": 1, "totalSteps": 200, "state": "Training"}
        fake_trainer.body = json.dumps(told | changes)

    say(step=3, heartbeat=1)
    wait_until("the first report is folded", lambda: namespace.status().get("step") == 3)
    wait_until("all is counted", lambda: namespace.status()["rollout"]["summary"] == "2/2")
    before = namespace.versions()
    asked = len(fake_trainer.paths)

    def was_asked_often() -> bool:
        say(step=3, heartbeat=len(fake_trainer.paths))
        return len(fake_trainer.paths) > asked + 20

    wait_until("it was asked often", was_asked_often)
    assert namespace.versions() == before
    say(step=4, heartbeat=1000)
    wait_until("the next step is folded", lambda: namespace.status()["step"] == 4)


CORE = (
    "configmaps",
    "namespaces",
    "nodes",
    "persistentvolumeclaims",
    "pods",
    "resourcequotas",
    "secrets",
    "serviceaccounts",
    "services",
    "users",
)
GROUPS = {
    "grpojobs": "grpo.dev",
    "deployments": "apps",
    "rolebindings": "rbac.authorization.k8s.io",
    "leases": "coordination.k8s.io",
    **dict.fromkeys(CORE, ""),
}
"""The API group of each resource that is asked about: a wrong one would be denied whatever the rights are."""


def may(user: str, verb: str, resource: str, *, within: Namespace) -> bool:
    """What `kubectl auth can-i` asks, of a user or a service account; a subresource follows a colon, and a
    name a slash."""
    kind, _, subresource = resource.partition(":")
    kind, _, name = kind.partition("/")
    groups = ["system:authenticated"]
    if user.startswith("system:serviceaccount:"):
        groups += ["system:serviceaccounts", f"system:serviceaccounts:{within.name}"]
    attributes = {"namespace": within.name, "verb": verb, "group": GROUPS[kind], "resource": kind}
    attributes |= {"subresource": subresource, "name": name}
    review = within.authorization.create_subject_access_review(
        {"spec": {"user": user, "groups": groups, "resourceAttributes": attributes}}
    )
    return bool(review.status.allowed)


def rights_of(kubectl: Kubectl, account: str, *, within: str) -> list[str]:
    """`kubectl auth can-i --list`, one right a line, without the random name of the test's namespace."""
    told = kubectl.run("auth", "can-i", "--list", f"--as=system:serviceaccount:{account}", "-n", within)
    lines = [re.sub(r"\s{2,}", "  ", line.strip()) for line in told.splitlines()[1:]]
    return sorted(line.replace(within, "NAMESPACE") for line in lines)


@pytest.mark.parametrize("scope", sorted(SCOPES))
def test_the_operators_rights_are_the_golden_ones(
    namespace: Namespace,
    elsewhere: Namespace,
    kubectl: Kubectl,
    scope: str,
    *,
    is_updating_golden: bool,
):
    install_rights(kubectl, namespace, *SCOPES[scope])
    account = f"{namespace.name}:grpo-operator"
    everybody = set(rights_of(kubectl, f"{namespace.name}:default", within=namespace.name))
    made = ""
    for title, within in (("its own namespace", namespace), ("any other namespace", elsewhere)):
        own = [line for line in rights_of(kubectl, account, within=within.name) if line not in everybody]
        made += "\n".join([f"# in {title}", *own]) + "\n"
    golden = GOLDEN / f"rights-{scope}.txt"
    if is_updating_golden:
        golden.write_text(made)
    assert made == golden.read_text()


def test_an_operator_of_the_cluster_serves_a_namespace_that_came_after_it(
    wide_operator: OperatorProcess, kubeconfig: Path
):
    wide_operator.start(is_everywhere=True)
    later = Namespace(kubeconfig, f"later-{secrets.token_hex(3)}")
    later.create()
    later.apply_job()
    all_pods(later, FakeKubelet(later))
    assert len(later.network.list_namespaced_network_policy(later.name).items) == 1
    assert refusals(wide_operator) == []
    later.core.delete_namespace(later.name)
    assert wide_operator.stop() == 0


def test_an_operator_of_the_cluster_leaves_namespaces_alone_whose_labels_do_not_match(
    namespace: Namespace, elsewhere: Namespace, kubectl: Kubectl, tmp_path: Path
):
    operator = operator_of_the_chart(kubectl, namespace, tmp_path, *SCOPES["some-by-label"])
    left_out = f"namespace {elsewhere.name} is left out: its labels do not match {SELECTOR}"
    with killed_at_the_end(operator):
        kubectl.run("label", "namespace", elsewhere.name, "grpo.dev/ignored=true")
        elsewhere.apply_job()
        operator.start(f"--namespace-selector={SELECTOR}", is_everywhere=True)
        namespace.apply_job()
        wait_for_pods(namespace, "trainer", 1)
        assert (elsewhere.status(), elsewhere.num_pods("trainer")) == ({"observedGeneration": -1}, 0)
        assert operator.log().count(left_out) == 1
        kubectl.run("label", "namespace", elsewhere.name, "grpo.dev/ignored-")
        (trainer,) = wait_for_pods(elsewhere, "trainer", 1)
        kubectl.run("label", "namespace", elsewhere.name, "grpo.dev/ignored=true")
        wait_until("it is left out again", lambda: operator.log().count(left_out) == 2)
        # neither is a change of the job followed, nor of its pods
        FakeKubelet(elsewhere).run(trainer)
        elsewhere.patch_job({"spec": {"suspend": True}})
        namespace.patch_job({"spec": {"suspend": True}})
        wait_until("the other is", lambda: namespace.status().get("phase") == "Suspended")
        assert elsewhere.status()["phase"] in ("Pending", "Starting")
        assert elsewhere.num_pods("trainer") == 1
        assert refusals(operator) == []
        assert operator.stop() == 0


# verb and resource, with the subresource after a colon
ALLOWED = ("create pods", "create secrets", "list grpojobs", "patch grpojobs:status", "create leases")
DENIED = (
    "get secrets",
    "list secrets",
    "watch secrets",
    "delete secrets",
    "get pods:exec",
    "create pods:exec",
    "get pods:log",
    "get pods:proxy",
    "update pods",
    "patch pods:ephemeralcontainers",
    "delete services",
    "delete configmaps",
    "patch configmaps",
    "create grpojobs",
    "deletecollection grpojobs",
    "patch grpojobs",
    "create deployments",
    "create rolebindings",
    "create serviceaccounts:token",
    "get nodes",
    "list namespaces",
    "get persistentvolumeclaims",
    "get resourcequotas",
    "patch leases/of-somebody-else",
    "impersonate users",
)


@pytest.mark.parametrize("scope", ["cluster-wide", "namespaced"])
def test_what_the_operator_does_not_need_is_denied(namespace: Namespace, kubectl: Kubectl, scope: str):
    install_rights(kubectl, namespace, *SCOPES[scope])
    account = f"system:serviceaccount:{namespace.name}:grpo-operator"
    for right in ALLOWED:
        verb, resource = right.split()
        wait_until(right, partial(may, account, verb, resource, within=namespace))
    for right in DENIED:
        verb, resource = right.split()
        assert not may(account, verb, resource, within=namespace), right


def test_a_namespaced_operator_can_touch_nothing_in_another_namespace(
    namespace: Namespace, elsewhere: Namespace, kubectl: Kubectl
):
    install_rights(kubectl, namespace)
    identity = f"--as=system:serviceaccount:{namespace.name}:grpo-operator"
    for command in (
        ("get", "grpojobs"),
        ("get", "pods"),
        ("create", "secret", "generic", "x"),
        ("create", "configmap", "x"),
        ("delete", "pod", "x"),
    ):
        said = kubectl.refusal_of(*command, identity, "-n", elsewhere.name)
        assert "is forbidden" in said, command
        assert f'"{elsewhere.name}"' in said


def test_secrets_cannot_be_read_even_those_the_operator_made(namespace: Namespace, kubectl: Kubectl):
    install_rights(kubectl, namespace)
    identity = f"--as=system:serviceaccount:{namespace.name}:grpo-operator"
    kubectl.run("create", "secret", "generic", "made", identity, "-n", namespace.name)
    for command in (("get", "secret", "made"), ("get", "secrets"), ("delete", "secret", "made")):
        assert "is forbidden" in kubectl.refusal_of(*command, identity, "-n", namespace.name)


@pytest.mark.matrix
def test_viewers_editors_and_admins_of_a_namespace_have_the_same_rights_to_its_jobs(
    namespace: Namespace, kubectl: Kubectl
):
    install_rights(kubectl, namespace)
    for right in ("view", "edit", "admin"):
        kubectl.run(
            "create",
            "rolebinding",
            right,
            f"--clusterrole={right}",
            f"--user=a-{right}er",
            "-n",
            namespace.name,
        )

    def verbs(user: str, resource: str) -> str:
        found = [
            verb
            for verb in ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
            if may(user, verb, resource, within=namespace)
        ]
        return " ".join(found)

    read, write = "get list watch", "create update patch delete"
    wait_until("the roles are aggregated", lambda: verbs("a-viewer", "grpojobs") == read)
    wait_until("the roles are aggregated", lambda: verbs("a-adminer", "grpojobs").endswith("collection"))
    assert verbs("a-editer", "grpojobs") == f"{read} {write}"
    assert verbs("a-viewer", "grpojobs:scale") == "get"
    assert verbs("a-editer", "grpojobs:scale") == "get update patch"
    # What the operator says about a job is not a user's to write.
    assert verbs("a-adminer", "grpojobs:status") == "get"
    assert verbs("nobody", "grpojobs") == ""


def test_a_kubeconfig_that_is_not_there_ends_the_operator_with_a_sentence(tmp_path: Path):
    command = [sys.executable, "-m", "grpo_operator", "--runtime-image", "image"]
    command += ["--kubeconfig", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "--kubeconfig" in done.stderr and "Traceback" not in done.stderr
