"""The conditions of a job in each situation of its life: every one of them, its status and its reason."""

from collections.abc import Callable
from typing import Any

import pytest

from grpo_api.contract.learning_signal import StepsWithoutSignal
from grpo_api.contract.left_out import LeftOutEnvironment
from grpo_api.contract.progress import EngineCounts, Mismatch, TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType

from .fake_cluster import FakeCluster, report, spec, termination

NOT_ENDED = {"Complete": "False InProgress", "Failed": "False InProgress", "Finished": "False InProgress"}
NOT_RESTARTING = {"Restarting": "False NotRestarting"}


def conditions(cluster: FakeCluster) -> dict[str, str]:
    """Status and reason of each."""
    return {c.type.value: f"{c.status.value} {c.reason}" for c in cluster.status.conditions}


def created() -> FakeCluster:
    cluster = FakeCluster()
    cluster.step()
    return cluster


def starting() -> FakeCluster:
    cluster = FakeCluster()
    cluster.settle()
    return cluster


def without_room() -> FakeCluster:
    cluster = FakeCluster()
    cluster.has_room = False
    cluster.settle()
    cluster.unbind(cluster.pod("trainer-a1-0"), why=ReasonMessage("Unschedulable", "0/1 nodes are available"))
    cluster.settle()
    return cluster


def unread() -> FakeCluster:
    cluster = FakeCluster(problem="spec.model: unknown field")
    cluster.settle()
    return cluster


def not_reported() -> FakeCluster:
    return FakeCluster().start()


def waiting() -> FakeCluster:
    cluster = FakeCluster().start()
    message = "0/2 engines have joined"
    cluster.progress = report(state=TrainerState.WAITING_FOR_ROLLOUT, step=0, message=message)
    cluster.settle()
    return cluster


def told(cluster: FakeCluster, **changes: Any) -> FakeCluster:
    """Once the trainer has reported this."""
    cluster.progress = report(**changes)
    cluster.settle()
    return cluster


def training() -> FakeCluster:
    return told(FakeCluster().start())


def disagreeing() -> FakeCluster:
    return told(training(), step=5, mismatch=Mismatch(step=5, nats=0.5))


def agreeing_again() -> FakeCluster:
    return told(disagreeing(), step=1000, total_steps=2000)


def without_signal() -> FakeCluster:
    lacking = StepsWithoutSignal(step=10, no_reward=10, rewards="copy")
    return told(training(), step=10, total_steps=2000, steps_without_signal=lacking)


def learning_again() -> FakeCluster:
    return told(without_signal(), step=11, total_steps=2000)


def with_a_failing_environment() -> FakeCluster:
    failing = (LeftOutEnvironment(name="go", num_groups=16),)
    return told(training(), step=10, total_steps=2000, left_out=failing)


def with_all_environments_again() -> FakeCluster:
    return told(with_a_failing_environment(), step=11, total_steps=2000)


def with_a_lost_engine() -> FakeCluster:
    cluster = training()
    cluster.vanish(cluster.pod("rollout-1-i0"))
    cluster.settle()
    return cluster


def colocated() -> FakeCluster:
    cluster = FakeCluster(spec(rollout=None)).start()
    cluster.progress = report(engines=EngineCounts(desired=1, known=1, current=0))
    cluster.settle()
    return cluster


def colocated_with_engines() -> FakeCluster:
    cluster = colocated()
    cluster.progress = report(step=5, engines=EngineCounts(desired=1, known=1, current=1))
    cluster.settle()
    return cluster


def restarting() -> FakeCluster:
    cluster = training()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    return cluster


def failed() -> FakeCluster:
    cluster = FakeCluster(spec(failurePolicy={"maxRestarts": 0})).start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    return cluster


def complete() -> FakeCluster:
    cluster = training()
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    cluster.settle()
    return cluster


LIFE: dict[Callable[[], FakeCluster], dict[str, str]] = {
    created: {
        "Running": "False CreatingPods",
        "RolloutReady": "False WaitingForTrainer",
        "Ready": "False CreatingPods",
        **NOT_ENDED,
    },
    starting: {
        "Running": "False PodsStarting",
        "RolloutReady": "False EnginesStarting",
        "Ready": "False PodsStarting",
        **NOT_ENDED,
    },
    without_room: {
        "Running": "False Unschedulable",
        "RolloutReady": "False WaitingForTrainer",
        "Ready": "False Unschedulable",
        **NOT_ENDED,
    },
    unread: {
        "Running": "False SchemaSkew",
        "RolloutReady": "False SchemaSkew",
        "Ready": "False SchemaSkew",
        **NOT_ENDED,
    },
    not_reported: {
        "Running": "True TrainerRunning",
        "RolloutReady": "True EnginesReady",
        "Ready": "False TrainerStarting",
        **NOT_ENDED,
    },
    waiting: {
        "Running": "True TrainerRunning",
        "RolloutReady": "True EnginesReady",
        "Ready": "False WaitingForRollout",
        **NOT_ENDED,
    },
    training: {
        "Running": "True TrainerRunning",
        "RolloutReady": "True EnginesReady",
        "Ready": "True Training",
        **NOT_ENDED,
    },
    disagreeing: {
        "Running": "True TrainerRunning",
        "RolloutReady": "True EnginesReady",
        "Ready": "True Training",
        "MismatchHigh": "True LogprobsDiffer",
        **NOT_ENDED,
    },
    agreeing_again: {
        "Running": "True TrainerRunning",
        "RolloutReady": "True EnginesReady",
        "Ready": "True Training",
        "MismatchHigh": "False LogprobsAgree",
        **NOT_ENDED,
    },
    without_signal: {
        "Running": "True TrainerRunning",
        "RolloutReady": "True EnginesReady",
        "Ready": "True Training",
        "NoLearningSignal": "True NoReward",
        **NOT_ENDED,
    },
    learning_again: {
        "Running": "True TrainerRunning",
        "RolloutReady": "True EnginesReady",
        "Ready": "True Training",
        "NoLearningSignal": "False LearningAgain",
        **NOT_ENDED,
    },
    with_a_failing_environment: {
        "Running": "True TrainerRunning",
        "RolloutReady": "True EnginesReady",
        "Ready": "True Training",
        "EnvironmentFailing": "True GroupsLeftOut",
        **NOT_ENDED,
    },
    with_all_environments_again: {
        "Running": "True TrainerRunning",
        "RolloutReady": "True EnginesReady",
        "Ready": "True Training",
        "EnvironmentFailing": "False EnvironmentsWork",
        **NOT_ENDED,
    },
    with_a_lost_engine: {
        "Running": "True TrainerRunning",
        "RolloutReady": "False EnginesStarting",
        "Ready": "True Training",
        **NOT_ENDED,
    },
    colocated: {
        "Running": "True TrainerRunning",
        "RolloutReady": "False EnginesStarting",
        "Ready": "True Training",
        **NOT_ENDED,
    },
    colocated_with_engines: {
        "Running": "True TrainerRunning",
        "RolloutReady": "True InProcess",
        "Ready": "True Training",
        **NOT_ENDED,
    },
    failed: {
        "Running": "False UnexpectedError",
        "RolloutReady": "False JobFinished",
        "Ready": "False UnexpectedError",
        "Complete": "False UnexpectedError",
        "Failed": "True UnexpectedError",
        "Finished": "True UnexpectedError",
        "Stalled": "True UnexpectedError",
    },
    complete: {
        "Running": "False Completed",
        "RolloutReady": "False JobFinished",
        "Ready": "True Completed",
        "Complete": "True Completed",
        "Failed": "False Completed",
        "Finished": "True Completed",
    },
}


@pytest.mark.parametrize("situation", LIFE, ids=lambda situation: situation.__name__)
def test_every_condition_is_there_with_the_reason_of_the_situation(
    situation: Callable[[], FakeCluster],
) -> None:
    assert conditions(situation()) == LIFE[situation] | NOT_RESTARTING


def test_the_restart_is_told_with_its_cause_until_every_pod_runs_again() -> None:
    cluster = restarting()
    told = cluster.condition(ConditionType.RESTARTING)
    assert (told.status, cluster.condition(ConditionType.RUNNING).status) == ("True", "False")
    assert told.message.startswith("attempt 2 follows because: ") and "boom" in told.message
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.condition(ConditionType.RESTARTING) == told
    cluster.run_all()
    cluster.settle()
    assert conditions(cluster)["Restarting"] == "False NotRestarting"
