"""What a user sees of the weight-sync backend of a job."""

import json

import pytest

from .api_server import Kubectl
from .fake_kubelet import FakeKubelet, running_job
from .operator_harness import Namespace, OperatorProcess, wait_for_pods, wait_until

pytestmark = pytest.mark.apiserver
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
CHOSEN = {"backend": "Gloo", "reason": "the engines run on CPU"}


@pytest.mark.matrix
def test_kubectl_describe_tells_what_auto_chose_and_why_and_it_stays_over_restarts(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet, kubectl: Kubectl
):
    operator.start()
    (trainer,) = running_job(namespace, kubelet, trainer=GPU)
    assert namespace.status()["weightSync"] == CHOSEN
    told = kubectl.run("describe", "grpojob", "copy", "--namespace", namespace.name).split()
    assert " ".join(["Weight Sync: Backend: Gloo Reason:", CHOSEN["reason"]]) in " ".join(told)
    operator.kill()
    operator.start()
    kubelet.end(trainer, exit_code=1, message="boom")
    wait_for_pods(namespace, "trainer", 1, attempt=2)
    assert namespace.status()["weightSync"] == CHOSEN


def test_pods_read_the_backend_that_a_spec_names(namespace: Namespace, operator: OperatorProcess):
    operator.start()
    rollout = {"replicas": 1} | GPU
    namespace.apply_job("named", trainer=GPU, rollout=rollout, weightSync={"backend": "Gloo"})
    namespace.apply_job("auto", trainer=GPU, rollout=rollout)
    named, auto = (wait_until(name, lambda of=name: namespace.status(of).get("weightSync")) for name in JOBS)
    assert named == {"backend": "Gloo", "reason": "spec.weightSync.backend is Gloo"}
    assert auto == {"backend": "NCCL", "reason": "trainer and engines have GPUs"}

    def backends() -> dict[str, str]:
        found = namespace.core.list_namespaced_config_map(
            namespace.name, label_selector="app.kubernetes.io/managed-by=grpo-operator"
        ).items
        runs = [json.loads(config.data["run.json"]) for config in found]
        return {run["job"]["name"]: run["weightSync"]["backend"] for run in runs}

    wait_until("both runs are written", lambda: len(backends()) == len(JOBS))
    assert backends() == {"named": "Gloo", "auto": "NCCL"}


JOBS = ("named", "auto")
