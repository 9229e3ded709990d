"""The plug-in of kubectl with the real kubectl, as people who may only view or edit."""

import json
import os
import subprocess
import tarfile
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from grpo_cluster.versions import program_path

from .api_server import Kubectl
from .fake_kubelet import FakeKubelet
from .operator_harness import EXAMPLES, Namespace, OperatorProcess, wait_for_pods, wait_until
from .test_operator_rights import install_rights, may

pytestmark = pytest.mark.apiserver

PLUGIN = Path(__file__).parents[2] / "operator" / "kubectl-grpo"
VIEWER, EDITOR = "a-viewer", "an-editor"


@dataclass(frozen=True)
class Person:
    """Somebody with a shell: runs `kubectl grpo` as kubectl does."""

    name: str
    namespace: Namespace
    folder: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        kubectl = program_path("kubectl")
        where = ["--kubeconfig", str(self.namespace.kubeconfig), "-n", self.namespace.name]
        environment = {"PATH": f"{kubectl.parent}:{PLUGIN.parent}:{os.environ['PATH']}", "COLUMNS": "1000"}
        done = subprocess.run(
            [str(kubectl), "grpo", *arguments, *where, f"--as={self.name}"],
            check=False,
            **{"cwd": self.folder, "env": environment, "timeout": 60},
            **{"capture_output": True, "text": True},
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def says(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def refusal_of(self, *arguments: str) -> str:
        """What it says as it fails."""
        done = self.run(*arguments)
        assert done.returncode == 1, done.stdout
        assert done.stderr.startswith(f"kubectl grpo {arguments[0]}: ") and len(done.stderr.splitlines()) == 1
        return done.stderr


@pytest.fixture
def people(namespace: Namespace, kubectl: Kubectl, tmp_path: Path) -> tuple[Person, Person, Person]:
    """One who may view, one who may edit, and a stranger."""
    install_rights(kubectl, namespace)
    for role, user in (("view", VIEWER), ("edit", EDITOR)):
        binding = ("create", "rolebinding", role, f"--clusterrole={role}", f"--user={user}")
        kubectl.run(*binding, "-n", namespace.name)
    for user, verb in ((VIEWER, "list"), (EDITOR, "patch")):
        wait_until("the roles are aggregated", partial(may, user, verb, "grpojobs", within=namespace))
    viewer, editor, stranger = (Person(name, namespace, tmp_path) for name in (VIEWER, EDITOR, "a-stranger"))
    return viewer, editor, stranger


def test_people_learn_why_a_job_waits_and_which_right_they_lack(
    namespace: Namespace,
    operator: OperatorProcess,
    kubelet: FakeKubelet,
    people: tuple[Person, Person, Person],
) -> None:
    viewer, editor, stranger = people
    namespace.apply_job()
    said = viewer.says("why", "copy")
    assert "no operator has looked at the job" in said and "app.kubernetes.io/name=grpo-operator" in said

    operator.start()
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    name = trainer.metadata.name
    kubelet.schedule(trainer, at=datetime.now(UTC))
    kubelet.wait(trainer, reason="ImagePullBackOff", message="not found")
    wait_until(
        "it is told", lambda: namespace.status().get("lastFailure", {}).get("reason") == "ErrImagePull"
    )
    said = viewer.says("why", "copy")
    for title, sentence in {
        "\nCause\n": "ErrImagePull: the image example.test/runtime:1 cannot be pulled: not found: ",
        "\nPods\n": f"{name}, container trainer, waits: ImagePullBackOff: not found",
        "\nWhat to do\n": "Correct the image",
    }.items():
        assert sentence in said.partition(title)[2].partition("\n\n")[0], said
    assert "Not looked at" not in said
    table = viewer.says("top").splitlines()
    assert table[0].split() == [
        "NAMESPACE",
        "NAME",
        "PHASE",
        "STEP",
        "STEPS/S",
        "REWARD",
        "TOKENS/S",
        "GPUS",
        "IDLE",
    ]
    assert table[1].split()[:4] == [namespace.name, "copy", "Starting", "0/200"]

    kubelet.run(trainer)
    said = stranger.refusal_of("top")
    assert f"a-stranger may not list grpojobs in namespace {namespace.name}: the ClusterRole view has" in said
    said = viewer.refusal_of("report", "copy")
    assert f"{VIEWER} may not create pods/portforward in namespace {namespace.name}: the ClusterRole" in said
    assert "may not" not in editor.refusal_of("samples", "copy"), "there is no kubelet"
    said = viewer.refusal_of("suspend", "copy")
    assert f"{VIEWER} may not patch grpojobs" in said and "the ClusterRole edit has" in said
    assert "there is no GRPOJob nowhere here" in viewer.refusal_of("why", "nowhere")


def test_a_job_is_suspended_resumed_checked_and_bundled(
    namespace: Namespace,
    operator: OperatorProcess,
    kubelet: FakeKubelet,
    people: tuple[Person, Person, Person],
    tmp_path: Path,
) -> None:
    viewer, editor, _ = people
    bad = tmp_path / "bad.yaml"
    job = (EXAMPLES / "copy-disaggregated.yaml").read_text()
    bad.write_text(job.replace("steps: 200", "steps: 0"))
    assert "spec.algorithm.steps" in editor.refusal_of("validate", str(bad))
    good = tmp_path / "good.yaml"
    good.write_text(job)
    assert "copy created in a dry run: the API server takes it" in editor.says("validate", str(good))
    assert namespace.jobs() == []

    operator.start()
    namespace.apply_job(hub={"tokenSecret": "hub"})
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    kubelet.run(trainer)
    namespace.core.create_namespaced_secret(
        namespace.name, {"metadata": {"name": "hub"}, "stringData": {"token": "x" * 40}}
    )
    viewer.says("diagnose", "copy", "--output", "copy.tar.gz")
    with tarfile.open(tmp_path / "copy.tar.gz") as bundle:
        files = {each.name: bundle.extractfile(each).read().decode() for each in bundle}
    assert {Path(name).name for name in files} >= {
        "job.json",
        "pods.json",
        "configmaps.json",
        "why.txt",
        "README.txt",
    }
    assert json.loads(files["copy/job.json"])["spec"]["hub"]["tokenSecret"] == "hub"
    assert f"{VIEWER} may not list deployments in the whole cluster" in files["copy/README.txt"]
    assert "x" * 40 not in "".join(files.values())

    assert "saves a checkpoint" in editor.says("suspend", "copy")
    wait_until("it is suspended", lambda: namespace.status()["phase"] == "Suspended")
    said = viewer.says("why", "copy")
    assert "\nCause\n  Suspended is " in said and "kubectl grpo resume copy." in said
    assert "continues as its next attempt" in editor.says("resume", "copy")
    wait_until("it continues", lambda: namespace.status()["phase"] != "Suspended")
    assert "nobody has suspended copy" in editor.says("resume", "copy")
