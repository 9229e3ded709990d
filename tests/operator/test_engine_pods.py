"""The pods of one engine, seen as one."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from grpo_api.contract.reasons import ReasonMessage
from grpo_operator.observe.engine_pods import as_engines
from grpo_operator.observe.observed import ContainerTermination, PodView

NOW = datetime(2026, 11, 25, tzinfo=UTC)


def member(node_index: int, *, ended_after: float) -> PodView:
    end = ContainerTermination("rollout", 1, "Error", "", NOW + timedelta(seconds=ended_after))
    return PodView(
        f"rollout-{node_index}",
        str(node_index),
        position=(0, 0),
        phase="Failed",
        is_ready=False,
        is_deleting=False,
        termination=end,
        node_index=node_index,
    )


def test_the_pod_that_ended_first_stands_for_its_engine():
    members = [member(0, ended_after=5), member(1, ended_after=2), member(2, ended_after=9)]
    [engine] = as_engines(members, num_nodes=3)
    assert engine.name == "rollout-1"
    assert engine.termination is not None and engine.termination.finished_at == NOW + timedelta(seconds=2)


def test_the_pod_that_finds_no_node_stands_for_an_engine_whose_others_wait_for_it():
    waits, no_room = (ReasonMessage(reason, "") for reason in ("WaitingForGroup", "Unschedulable"))
    problems = (waits, no_room, waits)
    members = [
        replace(member(index, ended_after=0), phase="Pending", termination=None, start_problem=why)
        for index, why in enumerate(problems)
    ]
    [engine] = as_engines(members, num_nodes=3)
    assert engine.name == "rollout-1"
