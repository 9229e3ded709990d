"""Every phase of a job as tools of GitOps see it, from runs of the operator on a real API server.

After a wanted change: `pytest tests/apiserver/test_gitops_recorded.py --update-golden`, then read the diff.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from grpo_api.contract.progress import EngineCounts, Progress, TrainerState

from ..gitops.phases import (
    FINALIZER,
    NAMES,
    RECORDED,
    SERVICE_ACCOUNT,
    SUSPENDING_RULE,
    essence,
    recorded,
    without_chance,
)
from .api_server import Kubectl
from .fake_kubelet import FakeKubelet
from .fake_trainer import FakeTrainer, serving_trainer
from .operator_harness import Namespace, OperatorProcess, termination_message, wait_until
from .test_operator_queue import install_kueue

pytestmark = [pytest.mark.apiserver, pytest.mark.matrix]
TRAINER_ADDRESS = "127.0.77.2"
BOOM = termination_message(1, "UnexpectedError", "boom")


def report(state: TrainerState, *, uid: str) -> str:
    """What the trainer of a job says."""
    engines = EngineCounts(desired=2, known=2, current=2)
    step = 4 if state is TrainerState.TRAINING else 0
    said = Progress(job_uid=uid, attempt=1, state=state, step=step, total_steps=200, engines=engines)
    return said.model_dump_json(by_alias=True)


@pytest.fixture
def trainer() -> Iterator[FakeTrainer]:
    with serving_trainer(TRAINER_ADDRESS) as made:
        yield made


@dataclass
class Recorder:
    """Jobs of a namespace with its operator, and what they are like in each phase."""

    namespace: Namespace
    operator: OperatorProcess
    kubelet: FakeKubelet
    trainer: FakeTrainer
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def take(self, name: str, job: str, *, is_so: Callable[[dict[str, Any]], bool]) -> None:
        """The job as it is once `is_so` of its conditions, as "STATUS REASON" by type."""

        def reached() -> dict[str, Any] | None:
            found = self.namespace.job(job)
            return found if is_so(essence(found)) else None

        self.found[name] = without_chance(wait_until(f"{job} is {name}", reached), name=name)

    def running(
        self, job: str, *, address: str = "127.0.0.1", num_trainers: int = 1, **spec: Any
    ) -> list[Any]:
        """A job whose pods run; returns its trainer pods, whose deletion waits for the kubelet."""
        self.namespace.apply_job(job, **spec)
        trainers = self.pods(job, "trainer", num_trainers)
        for pod in trainers:
            self.kubelet.bind(pod)
            self.kubelet.run(pod, address=address)
        for pod in self.pods(job, "rollout", 2):
            self.kubelet.run(pod, address=address)
        wait_until(
            f"{job} runs with its engines",
            lambda: (
                (status := self.namespace.status(job)).get("phase") == "Running"
                and status["rollout"]["summary"] == "2/2"
            ),
        )
        return trainers

    def pods(self, job: str, role: str, count: int) -> list[Any]:
        (found,) = wait_until(
            f"{count} {role} pods of {job}",
            lambda: len(found := self.namespace.pods_of(job, role)) == count and (found,),
        )
        return found


@pytest.fixture
def recorder(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet, trainer: FakeTrainer
) -> Recorder:
    return Recorder(namespace, operator, kubelet, trainer)


def test_every_phase_is_in_a_real_run_what_was_recorded(
    recorder: Recorder, kubectl: Kubectl, is_updating_golden: bool
):
    install_kueue(kubectl)
    record_before_pods_run(recorder)
    record_training_and_suspended(recorder)
    record_failures_and_ends(recorder)
    found = recorder.found
    assert sorted(found) == sorted(NAMES)
    if is_updating_golden:
        for name, job in found.items():
            (RECORDED / f"{name}.json").write_text(json.dumps(job, indent=2, ensure_ascii=False) + "\n")
    assert {name: essence(job) for name, job in found.items()} == {
        name: essence(recorded(name)) for name in found
    }


def record_before_pods_run(of: Recorder) -> None:
    """Jobs that wait, and one whose pods start."""
    namespace = of.namespace
    namespace.apply_job("unseen")
    of.take("unseen", "unseen", is_so=lambda said: not said["is observed"])
    namespace.delete_job("unseen")
    fast = ("--progress", "pod-ip", "--poll-seconds", "0.2", "--resync-seconds", "1")
    of.operator.start("--kueue=true", *fast)
    namespace.apply_job("not-permitted", **SERVICE_ACCOUNT)
    of.take("not_permitted", "not-permitted", is_so=lambda said: said.get("Ready") == "False NotPermitted")
    namespace.apply_job("queued", queueName="team")
    of.take("queued", "queued", is_so=lambda said: said.get("Suspended") == "True Queued")
    namespace.apply_job("starting")
    (pod,) = of.pods("starting", "trainer", 1)
    of.kubelet.bind(pod)
    of.pods("starting", "rollout", 2)
    of.take("starting", "starting", is_so=lambda said: said.get("RolloutReady") == "False EnginesStarting")


def record_training_and_suspended(of: Recorder) -> None:
    """One job, from its first report until it is suspended."""
    name = "training"
    (pod,) = of.running(name, address=TRAINER_ADDRESS)
    uid = of.namespace.job(name)["metadata"]["uid"]
    of.trainer.body = report(TrainerState.WAITING_FOR_ROLLOUT, uid=uid)
    of.take("not_training", name, is_so=lambda said: said["Ready"] == "False WaitingForRollout")
    of.trainer.body = report(TrainerState.TRAINING, uid=uid)
    of.take("training", name, is_so=lambda said: said["Ready"] == "True Training")
    of.operator.freeze()
    of.namespace.patch_job({"spec": {"ttlSecondsAfterFinished": 3600}}, name)
    of.take("changed", name, is_so=lambda said: not said["is observed"])
    of.operator.thaw()
    of.namespace.patch_job({"spec": {"suspend": True}}, name)
    of.take("suspending", name, is_so=lambda said: said.get("Suspended") == "False Suspending")
    of.kubelet.finish(pod.metadata.name)
    of.take("suspended", name, is_so=lambda said: said.get("Suspended") == "True Suspended")


def record_failures_and_ends(of: Recorder) -> None:
    """Jobs whose trainer ends, and one that is deleted."""
    kubelet, namespace = of.kubelet, of.namespace
    first, _ = of.running("restarting", num_trainers=2, trainer={"numNodes": 2, "processesPerNode": 1})
    kubelet.end(first, exit_code=1, message=BOOM)  # the other pod is bound, and does not end
    of.take(
        "restarting",
        "restarting",
        is_so=lambda said: (
            said["Restarting"] == "True UnexpectedError"
            and said["Ready"] == "False WaitingForEarlierAttempt"
            and said["phase"] == "Restarting"
        ),
    )
    (pod,) = of.running("by-rule", failurePolicy=SUSPENDING_RULE)
    kubelet.end(pod, exit_code=1, message=BOOM)
    by_rule = "True SuspendedByRule"
    of.take("suspended_by_a_rule", "by-rule", is_so=lambda said: said.get("Suspended") == by_rule)
    (pod,) = of.running("complete")
    kubelet.end(pod, exit_code=0)
    of.take("complete", "complete", is_so=lambda said: said["Complete"] == "True Completed")
    (pod,) = of.running("failed", failurePolicy={"maxRestarts": 0})
    kubelet.end(pod, exit_code=1, message=BOOM)
    of.take("failed", "failed", is_so=lambda said: said["Failed"] == "True UnexpectedError")

    of.running("deleted")
    namespace.patch_job({"metadata": {"finalizers": [FINALIZER]}}, "deleted")
    namespace.delete_job("deleted")
    of.take("deleted", "deleted", is_so=lambda said: said["Ready"] == "False BeingDeleted")
    namespace.patch_job({"metadata": {"finalizers": None}}, "deleted")
