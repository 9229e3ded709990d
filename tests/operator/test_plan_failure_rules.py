"""failurePolicy.rules: what the first rule that is about a failure makes of it, and what is left to today's
rules."""

from datetime import timedelta
from typing import Any

import pytest

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, ErrorSignature, Phase

from .fake_cluster import FakeCluster, report, spec, termination, termination_message
from .test_plan_suspend import events_of, resume, suspend, with_suspend

BOOM = "ValueError: boom"


def job(*rules: dict[str, Any], max_restarts: int = 3, **more: Any) -> FakeCluster:
    policy = {"maxRestarts": max_restarts, "rules": [{"name": "ours", **rule} for rule in rules]}
    return FakeCluster(spec(failurePolicy=policy, checkpoint={"claimName": "runs"}, **more)).start()


def fail(cluster: FakeCluster, code: int = 1, *, reason: str = "UnexpectedError") -> FakeCluster:
    """The trainer of the current attempt ends, and everything that follows has happened."""
    said = termination_message(code, reason, BOOM)
    cluster.end(cluster.pod(f"trainer-a{cluster.status.attempt}-0"), termination(code, said))
    cluster.settle()
    return cluster


def counted(cluster: FakeCluster) -> tuple[Phase, int, int, int]:
    status = cluster.status
    return status.phase, status.attempt, status.restarts, status.disruptions


FAILED, AGAIN, UNCOUNTED = (Phase.FAILED, 1, 0, 0), (Phase.STARTING, 2, 1, 0), (Phase.STARTING, 2, 0, 1)


@pytest.mark.parametrize(
    ("rule", "code", "follows"),
    [
        ({"action": "Fail"}, 1, FAILED),
        ({"action": "Fail"}, 137, FAILED),
        ({"action": "Ignore"}, 1, UNCOUNTED),
        # no retry helps, by default
        ({"action": "Restart"}, 40, AGAIN),
        ({"action": "Ignore"}, 42, UNCOUNTED),
        # it is about other failures
        ({"action": "Fail", "exitCodes": [2, 3]}, 1, AGAIN),
        ({"action": "Fail", "exitCodes": [2, 1]}, 1, FAILED),
        ({"action": "Fail", "reasons": ["OOMKilled"]}, 1, AGAIN),
        ({"action": "Fail", "reasons": ["UnexpectedError"]}, 1, FAILED),
        ({"action": "Fail", "role": "rollout"}, 1, AGAIN),
        ({"action": "Fail", "role": "trainer"}, 1, FAILED),
        ({"action": "Fail", "fromAttempt": 2}, 1, AGAIN),
        ({"action": "Fail", "fromAttempt": 1}, 1, FAILED),
        ({"action": "Fail", "reasons": ["UnexpectedError"], "exitCodes": [2]}, 1, AGAIN),
    ],
)
def test_a_rule_decides_about_the_failures_that_match_all_its_fields(
    rule: dict[str, Any], code: int, follows: tuple[Phase, int, int, int]
):
    assert counted(fail(job(rule), code)) == follows


def test_the_first_rule_that_matches_acts():
    cluster = job(
        {"action": "Fail", "exitCodes": [2]},
        {"name": "then", "action": "Ignore", "exitCodes": [1]},
        {"name": "last", "action": "Fail"},
    )
    assert counted(fail(cluster)) == UNCOUNTED
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.message == f"{BOOM} (rule then of failurePolicy: Ignore)"
    assert "rule then of failurePolicy" in cluster.condition(ConditionType.RESTARTING).message


def test_the_end_of_the_job_names_the_rule():
    failed = fail(job({"action": "Fail"})).condition(ConditionType.FAILED)
    assert failed.message == f"{BOOM} (rule ours of failurePolicy: Fail)"


def test_a_restart_is_counted_and_ends_at_max_restarts():
    cluster = fail(job({"action": "Restart", "exitCodes": [40]}, max_restarts=1), 40)
    cluster.run_all()
    cluster.settle()
    assert counted(fail(cluster, 40)) == (Phase.FAILED, 2, 1, 0)
    assert "maxRestarts (1) is used up" in cluster.condition(ConditionType.FAILED).message


def test_the_same_error_twice_does_not_end_a_job_of_which_a_rule_says_that_it_restarts():
    cluster = job({"action": "Ignore"})
    said = termination_message(
        1, "UnexpectedError", BOOM, error=ErrorSignature(type="ValueError", where="mine:3", step=4)
    )
    for attempt in (1, 2):
        cluster.end(cluster.pod(f"trainer-a{attempt}-0"), termination(1, said))
        cluster.settle()
        cluster.now += timedelta(minutes=1)
        cluster.settle()
        cluster.run_all()
        cluster.settle()
    assert counted(cluster) == (Phase.RUNNING, 3, 0, 2)


def test_a_rule_may_be_about_a_disruption_too():
    cluster = job({"action": "Fail", "reasons": ["Evicted"]})
    cluster.change(
        cluster.pod("trainer-a1-0"), phase="Failed", disruption=ReasonMessage("Evicted", "low on memory")
    )
    cluster.settle()
    assert cluster.status.phase is Phase.FAILED


# The action Suspend


def suspended(suspend_was: bool | None = None) -> FakeCluster:
    more = {} if suspend_was is None else {"suspend": suspend_was}
    cluster = fail(job({"action": "Suspend", "exitCodes": [1]}, **more))
    cluster.vanish_deleted()
    cluster.settle()
    return cluster


def test_a_rule_suspends_the_job_and_the_failed_pod_stays_for_its_log():
    cluster = suspended()
    assert counted(cluster) == (Phase.SUSPENDED, 1, 0, 0)
    assert (cluster.names("trainer"), cluster.names("rollout")) == (["trainer-a1-0"], [])
    condition = cluster.condition(ConditionType.SUSPENDED)
    assert (condition.status, condition.reason) == ("True", "SuspendedByRule")
    assert condition.message.startswith(
        f"rule ours of failurePolicy has suspended the job until you set spec.suspend to false: {BOOM}; "
        "attempt 2 follows"
    )
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.message == f"{BOOM} (rule ours of failurePolicy: Suspend)"


def test_a_job_that_a_rule_suspends_is_stalled_until_it_continues():
    cluster = suspended()
    stalled = cluster.condition(ConditionType.STALLED)
    assert (stalled.status, stalled.reason) == ("True", "SuspendedByRule")
    assert BOOM in stalled.message
    resume(cluster).settle()
    stalled = cluster.condition(ConditionType.STALLED)
    assert (stalled.status, stalled.reason) == ("False", "Unsuspended")


def test_it_stays_suspended_whatever_else_is_changed_and_over_the_operators_restart():
    cluster = suspended()
    cluster.spec = cluster.spec and cluster.spec.model_copy(update={"stall_timeout_seconds": 99})
    cluster.now += timedelta(days=1)
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED


def test_where_suspend_was_absent_false_continues():
    cluster = resume(suspended())
    cluster.settle()
    assert counted(cluster) == (Phase.STARTING, 2, 0, 0)


def test_where_suspend_was_false_true_takes_the_place_of_the_rule_and_false_continues():
    cluster = suspended(suspend_was=False)
    assert "set spec.suspend to true and then to false" in cluster.condition(ConditionType.SUSPENDED).message
    since = cluster.status.suspension and cluster.status.suspension.since
    cluster.now += timedelta(seconds=30)
    suspend(cluster).settle()
    assert cluster.condition(ConditionType.SUSPENDED).reason == "Suspended"
    assert cluster.status.suspension is not None and cluster.status.suspension.since == since
    resume(cluster).settle()
    assert counted(cluster) == (Phase.STARTING, 2, 0, 0)


def test_a_git_that_puts_the_field_back_ends_no_suspension_of_a_rule():
    cluster = suspended(suspend_was=False)
    with_suspend(cluster, False).settle()
    assert cluster.status.phase is Phase.SUSPENDED


@pytest.mark.parametrize("suspend_was", [None, False])
def test_what_a_rule_suspends_while_the_spec_cannot_be_read_lasts_until_somebody_changes_suspend(
    suspend_was: bool | None,
):
    cluster = job({"action": "Suspend"}, **({} if suspend_was is None else {"suspend": suspend_was}))
    live = cluster.spec
    cluster.stored_spec, cluster.spec, cluster.problem = live, None, "spec.new: unknown"
    cluster.unread_suspend = suspend_was
    fail(cluster)
    cluster.spec, cluster.problem = live, ""
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED, "nobody has changed spec.suspend"
    said = "true and then to false" if suspend_was is False else "false"
    assert f"until you set spec.suspend to {said}: " in cluster.condition(ConditionType.SUSPENDED).message
    with_suspend(cluster, True).settle()
    resume(cluster).settle()
    assert counted(cluster) == (Phase.STARTING, 2, 0, 0)


def test_the_event_is_a_warning():
    cluster = job({"action": "Suspend"})
    said = termination_message(1, "UnexpectedError", BOOM)
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, said))
    (event,) = events_of(cluster, "SuspendedByRule")
    assert event.is_warning and "rule ours" in event.why.message


# Engines


def end_engine(cluster: FakeCluster, code: int) -> FakeCluster:
    """An engine ends and is started again by its kubelet, in the middle of the training."""
    cluster.progress = report()
    cluster.settle()
    ended = termination(code, termination_message(code, "Killed", BOOM))
    cluster.change(cluster.pod("rollout-1-i0"), last_termination=ended, restarts=1, is_ready=False)
    cluster.settle()
    return cluster


@pytest.mark.parametrize(
    ("rule", "code", "phase"),
    [
        ({"action": "Fail", "role": "rollout", "exitCodes": [137]}, 137, Phase.FAILED),
        ({"action": "Suspend", "role": "rollout", "exitCodes": [137]}, 137, Phase.SUSPENDED),
        ({"action": "Restart", "role": "rollout"}, 137, Phase.RESTARTING),
        ({"action": "Ignore", "role": "rollout"}, 137, Phase.RUNNING),
        ({"action": "Fail", "role": "rollout", "exitCodes": [1]}, 137, Phase.RUNNING),
        # about what ends an attempt, which an engine that is only started again does not
        ({"action": "Fail"}, 137, Phase.RUNNING),
        ({"action": "Fail", "role": "trainer"}, 137, Phase.RUNNING),
    ],
)
def test_an_engine_that_would_only_be_started_again_ends_the_attempt_if_a_rule_of_its_role_says_so(
    rule: dict[str, Any], code: int, phase: Phase
):
    assert end_engine(job(rule), code).status.phase is phase


@pytest.mark.parametrize(
    ("rule", "phase"),
    [
        ({"action": "Ignore", "role": "rollout", "exitCodes": [40]}, Phase.RUNNING),
        ({"action": "Restart", "exitCodes": [40]}, Phase.RESTARTING),
        ({"action": "Fail", "role": "trainer"}, Phase.FAILED),
    ],
)
def test_an_engines_error_before_the_first_step_is_the_subject_of_rules_too(
    rule: dict[str, Any], phase: Phase
):
    cluster = job(rule)
    cluster.progress = report(step=0, policy_version="1.0", state=TrainerState.WAITING_FOR_ROLLOUT)
    cluster.settle()
    ended = termination(40, termination_message(40, "UserError", BOOM))
    cluster.change(cluster.pod("rollout-1-i0"), last_termination=ended, restarts=1, is_ready=False)
    cluster.settle()
    assert cluster.status.phase is phase


EVICTED = ReasonMessage("Evicted", "low on memory")


def test_the_exit_code_of_a_trainer_pod_that_was_taken_away_matches_no_rule():
    cluster = job({"action": "Fail", "role": "trainer", "exitCodes": [137]})
    cluster.end(cluster.pod("trainer-a1-0"), termination(137))
    cluster.change(cluster.pod("trainer-a1-0"), disruption=EVICTED)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.STARTING, 2)


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_engine_of_which_a_pod_was_taken_away_is_only_replaced(nodes: int):
    more = {"engine": {"tensorParallelSize": nodes}, "rollout": {"replicas": 2, "nodesPerReplica": nodes}}
    cluster = job({"action": "Fail", "role": "rollout", "exitCodes": [137]}, **more)
    cluster.progress = report()
    cluster.settle()
    cluster.end(cluster.pod("rollout-1-i0"), termination(137))
    cluster.change(cluster.pod("rollout-1-i0"), disruption=EVICTED, is_ready=False)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt) != (Phase.FAILED, 1)


@pytest.mark.parametrize(("action", "phase"), [("Ignore", Phase.STARTING), ("Suspend", Phase.SUSPENDED)])
def test_out_of_gpu_memory_lowers_the_budget_whatever_the_rule(action: str, phase: Phase):
    cluster = job({"action": action})
    cluster.progress = report()
    cluster.settle()
    said = termination_message(1, Reason.GPU_OUT_OF_MEMORY, "out of memory")
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, said))
    cluster.settle()
    assert cluster.status.phase is phase
    assert cluster.status.micro_batch_tokens is not None
