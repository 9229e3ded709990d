"""Each command of the plug-in of kubectl against a job that runs on real pods."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from grpo_scenarios.disturbed import long_job
from grpo_scenarios.namespace import Namespace, volume_claim
from grpo_scenarios.pace import slow_down

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB = "copy"
PLUGIN = Path(__file__).parents[2] / "operator" / "kubectl-grpo"


def says(namespace: Namespace, folder: Path, *arguments: str) -> str:
    """What `kubectl grpo` prints, started by kubectl, which finds it on PATH."""
    kubectl, *connection = namespace.target.kubectl
    environment = {**os.environ, "PATH": f"{Path(kubectl).parent}:{PLUGIN.parent}:{os.environ['PATH']}"}
    command = [kubectl, "grpo", *arguments, *connection, "--namespace", namespace.name]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}\n{namespace.describe()}"
    return done.stdout


@pytest.fixture(scope="module")
def running(namespace: Namespace) -> Namespace:
    """A namespace with a job that has made two steps and makes more, and keeps the completions of each."""
    job = long_job(JOB)
    job["spec"]["report"] = {"samplesEverySteps": 1}
    namespace.apply(slow_down(job, seconds=15.0), volume_claim(JOB), job)
    namespace.wait_for_step(JOB, 2)
    return namespace


def test_a_running_job_is_explained_listed_and_read(running: Namespace, tmp_path: Path) -> None:
    said = says(running, tmp_path, "why", JOB)
    assert f"{JOB} in namespace {running.name}: Running" in said
    (row,) = [line.split() for line in says(running, tmp_path, "top").splitlines()[1:]]
    assert row[1:3] == [JOB, "Running"] and float(row[4]) > 0
    lines = says(running, tmp_path, "logs", JOB, "--role", "trainer", "--attempt", "1").splitlines()
    assert any("step 1/" in line for line in lines)
    assert "[pod/" in says(running, tmp_path, "logs", JOB, "--role", "rollout", "--tail", "1")


def test_its_completions_and_its_page_come_through_a_port_forward(running: Namespace, tmp_path: Path) -> None:
    said = says(running, tmp_path, "samples", JOB, "--groups", "2", "--order", "mixed")
    assert "2 of 4 groups" in said and "--- reward " in said
    assert says(running, tmp_path, "report", JOB) == f"{JOB}-report.html\n"
    page = (tmp_path / f"{JOB}-report.html").read_text()
    assert page.rstrip().endswith("</html>") and f"{running.name}/{JOB}" in page


def test_nobody_in_the_cluster_gets_them_without_one(running: Namespace) -> None:
    (pod,) = running.pods_of(JOB, "trainer")
    (engine, *_) = running.pods_of(JOB, "rollout")
    program = (
        "import urllib.error, urllib.request\n"
        f"base = 'http://{pod['status']['podIP']}:8780'\n"
        "print(urllib.request.urlopen(base + '/healthz').status)\n"
        "try:\n    urllib.request.urlopen(base + '/samples')\n"
        "except urllib.error.HTTPError as error:\n    print(error.code)\n"
    )
    name = engine["metadata"]["name"]
    assert running.execute(name, "python", "-c", program).split() == ["200", "403"]


def test_a_bundle_has_its_logs(running: Namespace, tmp_path: Path) -> None:
    says(running, tmp_path, "diagnose", JOB, "--output", "copy.tar.gz")
    with tarfile.open(tmp_path / "copy.tar.gz") as bundle:
        names = bundle.getnames()
    (pod,) = running.pods_of(JOB, "trainer")
    assert f"copy/logs/{pod['metadata']['name']}-trainer.log" in names
    assert {"copy/why.txt", "copy/configmaps.json", "copy/operator.txt"} <= set(names)


def test_it_is_suspended_and_resumed(running: Namespace, tmp_path: Path) -> None:
    says(running, tmp_path, "suspend", JOB)
    running.kubectl("wait", "--for=condition=Suspended", f"grpojob/{JOB}", "--timeout=240s")
    assert f"kubectl grpo resume {JOB}" in says(running, tmp_path, "why", JOB)
    says(running, tmp_path, "resume", JOB)
    running.wait_until(
        lambda: running.status(JOB)["attempt"] == 2, "the next attempt to begin", timeout_seconds=60
    )
