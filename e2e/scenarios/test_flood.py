"""Who reaches the port on which a trainer reports, and what a flood of it does.

The local cluster enforces no NetworkPolicy: the flood arrives, and the first test enforces that of the job
itself. The tests share the job.
"""

from collections.abc import Iterator

import pytest

from grpo_api.contract.endpoints import METRICS_PATH, TRAINER_PORT
from grpo_demo.install import ensure_namespace
from grpo_scenarios.bare_pod import bare_pod
from grpo_scenarios.enforcement import enforced
from grpo_scenarios.flood import start_flood
from grpo_scenarios.namespace import Namespace, Object, copy_job
from grpo_scenarios.pace import slow_down

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

ELSEWHERE = "e2e-flood-elsewhere"
PROMETHEUS = "networkPolicies.reportsFrom[0]"
CHART_VALUES = {
    rf"{PROMETHEUS}.namespaceSelector.matchLabels.kubernetes\.io/metadata\.name": ELSEWHERE,
    rf"{PROMETHEUS}.podSelector.matchLabels.app\.kubernetes\.io/name": "prometheus",
}

JOB = "copy"
PACE_SECONDS = 0.6
"""The job outlives the flood."""
FLOOD_SECONDS = 75
"""Longer than a liveness probe that asked this port would wait."""
ASK = """
import sys, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=15) as answer:
        print(answer.status)
except TimeoutError:
    print("dropped")
except urllib.error.URLError as error:
    print("dropped" if isinstance(error.reason, TimeoutError) else error)
"""


@pytest.fixture(scope="module")
def trainer(namespace: Namespace) -> Object:
    """The trainer pod of a job that runs as long as all tests of this file."""
    small = copy_job(
        JOB,
        algorithm={"steps": 2000, "promptsPerStep": 2},
        trainer={"processesPerNode": 1},
        rollout={"replicas": 1},
    )
    namespace.apply(slow_down(small, seconds=PACE_SECONDS), small)
    namespace.wait_for_step(JOB, 3)
    return trainer_pod(namespace)


@pytest.fixture(scope="module")
def elsewhere(namespace: Namespace) -> Iterator[Namespace]:
    """Another namespace, without an operator and without jobs."""
    other = Namespace(target=namespace.target, name=ELSEWHERE)
    other.target.run_kubectl("delete", "namespace", other.name, "--ignore-not-found", "--wait")
    ensure_namespace(other.target, other.name)
    yield other
    other.target.run_kubectl("delete", "namespace", other.name, "--wait=false")


def test_the_operator_and_prometheus_reach_the_reports_and_a_stranger_does_not(
    namespace: Namespace, elsewhere: Namespace, trainer: Object
) -> None:
    # each has its name as its label, and the release lets that of Prometheus in
    for name in ("prometheus", "stranger"):
        elsewhere.apply(bare_pod(name, ["sleep", "infinity"], image=namespace.target.runtime_image))
    elsewhere.kubectl("wait", "--for=condition=Ready", "pod/prometheus", "pod/stranger", "--timeout=60s")

    def answers() -> dict[str, str]:
        url = f"http://{trainer['status']['podIP']}:{TRAINER_PORT}{METRICS_PATH}"
        ask = ("python3.11", "-S", "-E", "-c", ASK, url)
        return {name: elsewhere.execute(name, *ask).strip() for name in ("prometheus", "stranger")}

    assert answers() == {"prometheus": "200", "stranger": "200"}, "without enforcement both do"
    (policy,) = (
        child for kind, child in namespace.children(JOB).items() if kind.startswith("NetworkPolicy/")
    )
    with enforced(namespace, policy):
        assert answers() == {"prometheus": "200", "stranger": "dropped"}
        namespace.wait_for_step(JOB, namespace.status(JOB)["step"] + 5)


def test_a_flood_of_a_trainers_port_costs_no_restart_and_its_job_goes_on(
    namespace: Namespace, elsewhere: Namespace, trainer: Object
) -> None:
    address = trainer["status"]["podIP"]
    flood = start_flood(elsewhere, host=address, port=TRAINER_PORT, seconds=FLOOD_SECONDS)
    first = namespace.status(JOB)["step"]
    namespace.wait_for_step(JOB, first + 5)
    assert flood.is_running, "it ended before the status moved"
    num_opened = flood.wait_for_end(timeout_seconds=2 * FLOOD_SECONDS)
    assert all(min(pod.values()) > 500 for pod in num_opened), num_opened
    after = namespace.wait_for_step(JOB, namespace.status(JOB)["step"] + 3)
    assert (after["attempt"], after["restarts"], after["disruptions"]) == (1, 0, 0)
    assert trainer_pod(namespace)["metadata"]["uid"] == trainer["metadata"]["uid"]
    # one failure ends nothing yet, and how many come in a row is chance
    assert [said for said in failed_probes(namespace, trainer) if said.startswith("Liveness")] == []


def trainer_pod(namespace: Namespace) -> Object:
    (pod,) = namespace.pods_of(JOB, "trainer")
    return pod


def failed_probes(namespace: Namespace, pod: Object) -> list[str]:
    about = f"involvedObject.uid={pod['metadata']['uid']},reason=Unhealthy"
    events = namespace.target.get("events", "--namespace", namespace.name, "--field-selector", about)["items"]
    return [event["message"] for event in events]
