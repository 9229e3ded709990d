"""The operator with the rights of its chart and not one more, and what it does at the edges of them."""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from grpo_api.contract.endpoints import TRAINER_PORT
from grpo_api.contract.progress import EngineCounts, Progress, TrainerState
from grpo_cluster.versions import program_path

from .operator_harness import FakeKubelet, Namespace, OperatorProcess, wait_until

pytestmark = pytest.mark.apiserver

CHART = Path(__file__).parents[2] / "charts" / "grpo-operator"
TRAINER_ADDRESS = "127.0.77.1"


@pytest.fixture
def namespace(kubeconfig: Path) -> Iterator[Namespace]:
    made = Namespace(kubeconfig, f"rights-{secrets.token_hex(3)}")
    made.create()
    yield made
    made.core.delete_namespace(made.name)


def rendered_chart(namespace: str, *arguments: str) -> list[dict]:
    command = [str(program_path("helm")), "template", "grpo-operator", str(CHART), "-n", namespace]
    command += arguments
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.fixture
def operator(namespace: Namespace, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator with the service account, Role and RoleBinding of the chart."""
    for document in rendered_chart(namespace.name):
        match document["kind"]:
            case "ServiceAccount":
                name = document["metadata"]["name"]
                namespace.core.create_namespaced_service_account(namespace.name, document)
            case "Role":
                namespace.rbac.create_namespaced_role(namespace.name, document)
            case "RoleBinding":
                namespace.rbac.create_namespaced_role_binding(namespace.name, document)
    request = {"spec": {"expirationSeconds": 3600}}
    token = namespace.core.create_namespaced_service_account_token(name, namespace.name, request)
    settings = yaml.safe_load(namespace.kubeconfig.read_text())
    for user in settings["users"]:
        user["user"] = {"token": token.status.token}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(settings))
    operator = OperatorProcess(namespace, tmp_path / "operator.log", kubeconfig=kubeconfig)
    yield operator
    if operator.is_running:
        operator.kill()


@dataclass
class FakeTrainer:
    """Answers on a trainer's port with `body`, and counts how often it was asked."""

    body: str = ""
    num_asked: int = 0


@pytest.fixture
def fake_trainer() -> Iterator[FakeTrainer]:
    trainer = FakeTrainer()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(trainer.body.encode())
            trainer.num_asked += 1

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer((TRAINER_ADDRESS, TRAINER_PORT), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    yield trainer
    server.shutdown()
    server.server_close()


def test_a_whole_job_runs_under_the_rights_of_the_chart(
    namespace: Namespace, operator: OperatorProcess, fake_trainer: FakeTrainer
):
    operator.start("--progress", "pod-ip", "--poll-seconds", "0.2", "--resync-seconds", "1")
    kubelet = FakeKubelet(namespace)
    job = namespace.apply_job()
    wait_until("all pods are there", lambda: len(namespace.pods("trainer") + namespace.pods("rollout")) == 3)
    (trainer,) = namespace.pods("trainer")
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

    namespace.core.patch_namespaced_service(
        next(s.metadata.name for s in namespace.core.list_namespaced_service(namespace.name).items),
        namespace.name,
        {"spec": {"publishNotReadyAddresses": False}},
    )
    wait_until(
        "a changed Service is put right",
        lambda: all(
            s.spec.publish_not_ready_addresses
            for s in namespace.core.list_namespaced_service(namespace.name).items
        ),
    )
    kubelet.end(trainer, exit_code=1, message="boom")
    wait_until("attempt 2 comes", lambda: namespace.pods("trainer", attempt=2))
    namespace.core.delete_namespaced_pod(namespace.pods("rollout")[0].metadata.name, namespace.name)
    wait_until("the engine is replaced", lambda: len(namespace.pods("rollout")) == 2)
    kubelet.end(namespace.pods("trainer", attempt=2)[0], exit_code=0)
    wait_until("it is complete", lambda: namespace.condition("Complete")["status"] == "True")
    wait_until("engines are gone", lambda: namespace.pods("rollout") == [])
    assert "orbidden" not in operator.log()
    assert operator.stop() == 0


def test_a_job_whose_progress_stands_still_is_not_written_to(
    namespace: Namespace, operator: OperatorProcess, fake_trainer: FakeTrainer
):
    operator.start("--progress", "pod-ip", "--poll-seconds", "0.1", "--resync-seconds", "0.5")
    kubelet = FakeKubelet(namespace)
    uid = namespace.apply_job()["metadata"]["uid"]
    wait_until("all pods are there", lambda: len(namespace.pods("trainer") + namespace.pods("rollout")) == 3)
    for pod in [*namespace.pods("trainer"), *namespace.pods("rollout")]:
        kubelet.run(pod, address=TRAINER_ADDRESS)

    def say(**changes: object) -> None:
        told = {"schemaVersion": 1, "jobUid": uid, "attempt": 1, "totalSteps": 200, "state": "Training"}
        fake_trainer.body = json.dumps(told | changes)

    say(step=3, heartbeat=1)
    wait_until("the first report is folded", lambda: namespace.status().get("step") == 3)
    wait_until("all is counted", lambda: namespace.status()["rollout"]["summary"] == "2/2")
    before = namespace.versions()
    asked = fake_trainer.num_asked

    def was_asked_often() -> bool:
        say(step=3, heartbeat=fake_trainer.num_asked)
        return fake_trainer.num_asked > asked + 20

    wait_until("it was asked often", was_asked_often)
    assert namespace.versions() == before
    say(step=4, heartbeat=1000)
    wait_until("the next step is folded", lambda: namespace.status()["step"] == 4)


def test_a_kubeconfig_that_is_not_there_ends_the_operator_with_a_sentence(tmp_path: Path):
    command = [sys.executable, "-m", "grpo_operator", "--runtime-image", "image"]
    command += ["--kubeconfig", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "--kubeconfig" in done.stderr and "Traceback" not in done.stderr
