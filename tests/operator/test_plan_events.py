"""The Events that people get, each once."""

from datetime import timedelta
from typing import Any

import pytest

from grpo_api.contract.learning_signal import StepsWithoutSignal
from grpo_api.contract.progress import BestEvaluation
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.apply.events import event_of
from grpo_operator.cluster.kinds import WORKLOAD_PRIORITY_CLASSES
from grpo_operator.observe.observed import Refusal
from grpo_operator.observe.process_state import ProcessState
from grpo_operator.plan.blockers import UNSEEN_SECONDS
from grpo_operator.plan.draft import EventDraft

from . import fake_kueue as kueue
from .fake_cluster import NOW, FakeCluster, report, spec, termination
from .queued_job import a_cluster_of, workload


def events_until_settled(cluster: FakeCluster) -> list[EventDraft]:
    """Every Event until the cluster comes to rest."""
    events: list[EventDraft] = []
    for _ in range(10):
        before = (cluster.status, dict(cluster.pods))
        events += cluster.step().events
        if (cluster.status, cluster.pods) == before:
            break
    return events


def test_the_mode_is_an_event_with_its_reason_and_so_is_the_start_when_all_pods_run():
    cluster = FakeCluster()
    (chosen,) = events_until_settled(cluster)
    assert (chosen.why.reason, chosen.is_warning) == ("ModeChosen", False)
    assert chosen.why.message == "Disaggregated, because spec.mode is Auto and spec.rollout is set"
    cluster.run_all()
    (started,) = events_until_settled(cluster)
    assert (started.why.reason, started.why.message) == ("Started", "attempt 1: every trainer pod runs")


def test_a_second_plan_has_no_events():
    cluster = FakeCluster().start()
    assert cluster.plan().events == ()


def test_a_new_attempt_is_an_event_with_its_cause():
    cluster = FakeCluster().start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    (restarting,) = events_until_settled(cluster)
    assert (restarting.why.reason, restarting.is_warning) == ("Restarting", True)
    assert (
        restarting.why.message.startswith("attempt 2 follows because: ") and "boom" in restarting.why.message
    )
    cluster.run_all()
    (started,) = events_until_settled(cluster)
    assert (started.why.reason, started.key) == ("Started", "2")


def test_a_replaced_engine_is_an_event_with_what_happened_to_the_old_one():
    cluster = FakeCluster().start()
    lost = cluster.pod("rollout-1-i0")
    cluster.change(
        lost, is_deleting=True, disruption=ReasonMessage("TaintManagerEviction", "the node is drained")
    )
    (replaced,) = events_until_settled(cluster)
    assert replaced.why.reason == "EngineReplaced"
    assert replaced.why.message == (
        f"rollout pod {lost} is replaced by {cluster.pod('rollout-1-i1')}: the node is drained"
    )


def test_an_engine_that_ended_at_once_is_an_event_when_it_is_replaced():
    cluster = FakeCluster().start()
    cluster.change(
        cluster.pod("rollout-1-i0"),
        phase="Failed",
        is_ready=False,
        start_problem=ReasonMessage("OutOfcpu", "no cpu left"),
        created_at=cluster.now,
    )
    (refused,) = events_until_settled(cluster)
    assert (refused.why.reason, "no cpu left" in refused.why.message) == ("OutOfcpu", True)
    cluster.now += timedelta(seconds=10)
    (replaced,) = events_until_settled(cluster)
    assert (replaced.why.reason, "no cpu left" in replaced.why.message) == ("EngineReplaced", True)


def refuse(cluster: FakeCluster, name: str, reason: str) -> None:
    """A node takes the pod and refuses it at once."""
    problem = ReasonMessage(reason, "the node has no room")
    cluster.change(name, phase="Failed", is_ready=False, start_problem=problem, created_at=cluster.now)


def test_a_node_that_refuses_every_engine_gets_them_ever_more_slowly_and_is_one_event():
    cluster = FakeCluster().start()
    events, waits = [], []
    for incarnation in range(6):
        refuse(cluster, cluster.pod(f"rollout-1-i{incarnation}"), "OutOfcpu")
        plan = cluster.settle()
        assert plan.requeue_after is not None
        waits.append(plan.requeue_after)
        cluster.now += timedelta(seconds=plan.requeue_after)
        events += events_until_settled(cluster)
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 160.0]
    assert len({each.key for each in events if each.why.reason == "EngineReplaced"}) == 1
    refuse(cluster, cluster.pod("rollout-1-i6"), "OutOfmemory")
    cluster.now += timedelta(seconds=160)
    events += events_until_settled(cluster)
    assert len({each.key for each in events if each.why.reason == "EngineReplaced"}) == 2


def test_an_engine_that_ran_is_replaced_without_a_longer_wait_and_is_an_event_each_time():
    cluster = FakeCluster().start()
    events = []
    for incarnation in range(4):
        cluster.run_all()
        lost = cluster.pod(f"rollout-1-i{incarnation}")
        cluster.change(lost, created_at=cluster.now)
        cluster.now += timedelta(seconds=10)
        cluster.end(lost, termination(137))
        events += events_until_settled(cluster)
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i4"]
    assert len({each.key for each in events if each.why.reason == "EngineReplaced"}) == 4


def test_more_replicas_are_no_replacement():
    cluster = FakeCluster().start()
    cluster.spec, cluster.generation = spec(rollout={"replicas": 4}), 2
    assert told(events_until_settled(cluster)) == [("Scaled", False)]


def test_a_replica_that_comes_back_after_it_was_taken_away_is_no_replacement():
    cluster = FakeCluster().start()
    for replicas in (1, 2):
        cluster.spec, cluster.generation = spec(rollout={"replicas": replicas}), cluster.generation + 1
        assert told(events_until_settled(cluster)) == [("Scaled", False)]
        cluster.vanish_deleted()
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]


def test_either_end_is_one_event():
    for code, reason, is_warning in ((0, "Completed", False), (40, "Failed", True)):
        cluster = FakeCluster().start()
        cluster.end(cluster.pod("trainer-a1-0"), termination(code, "the dataset has no column question"))
        (end,) = events_until_settled(cluster)
        assert (end.why.reason, end.is_warning) == (reason, is_warning)
        assert is_warning == ("no column question" in end.why.message)


class ToldCluster(FakeCluster):
    """A cluster that knows which Events have been written."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._names: set[tuple[str, str]] = set()

    def written(self, *, seconds: int = 60) -> list[EventDraft]:
        """The Events of these seconds, in which the job is planned every ten. One with the name of an earlier
        one is not written, also by an operator that starts anew."""
        drafts: list[EventDraft] = []
        for _ in range(0, seconds, 10):
            self.now += timedelta(seconds=10)
            drafts += self.step().events
        drafts += events_until_settled(self)
        new = {draft.identity: draft for draft in reversed(drafts) if draft.identity not in self._names}
        self._names |= new.keys()
        return [draft for draft in reversed(new.values()) if draft.why.reason != "ModeChosen"]


def told(events: list[EventDraft]) -> list[tuple[str, bool]]:
    return [(event.why.reason, event.is_warning) for event in events]


NO_GPU = ReasonMessage("Unschedulable", "0/3 nodes have enough nvidia.com/gpu")
LATE_IMAGE = ReasonMessage("ErrImagePull", "the image cannot be pulled")


def test_a_blocker_is_one_warning_while_it_lasts_and_another_one_is_another():
    cluster = ToldCluster()
    cluster.settle()
    trainer = cluster.pod("trainer-a1-0")
    cluster.change(trainer, start_problem=NO_GPU, created_at=cluster.now)
    (blocked,) = cluster.written()
    assert (blocked.why.reason, blocked.is_warning) == ("Unschedulable", True)
    assert blocked.why.message == f"trainer pod {trainer}: {NO_GPU.message}"
    # other numbers, an operator that starts anew, and one that has not read the Events of the pod yet
    cluster.change(trainer, start_problem=ReasonMessage("Unschedulable", "0/4 nodes"))
    assert cluster.written() == []
    cluster.state = ProcessState()
    cluster.change(trainer, start_problem=None)
    assert cluster.written() == []
    cluster.change(trainer, start_problem=NO_GPU)
    assert cluster.written() == []
    cluster.change(trainer, start_problem=LATE_IMAGE)
    assert told(cluster.written()) == [("ErrImagePull", True)]
    cluster.change(trainer, start_problem=None)
    cluster.run_all()
    assert told(cluster.written()) == [("Started", False)]


def test_a_blocker_that_comes_back_after_it_was_over_is_another_warning():
    cluster = ToldCluster().start()
    engine = cluster.pod("rollout-1-i0")

    def end(*, restarts: int) -> None:
        died = termination(137, reason="OOMKilled", after=(cluster.now - NOW).total_seconds())
        cluster.change(engine, last_termination=died, restarts=restarts, is_ready=False)

    assert cluster.written(seconds=10) == []
    end(restarts=1)
    assert told(cluster.written()) == [("OOMKilled", True)]
    end(restarts=2)
    assert cluster.written() == []
    cluster.change(engine, is_ready=True)
    assert cluster.written() == []
    end(restarts=3)
    assert told(cluster.written()) == [("OOMKilled", True)]


def test_many_pods_with_one_problem_are_one_warning():
    cluster = ToldCluster(spec(trainer={"numNodes": 4}))
    cluster.has_room = False
    cluster.settle()
    names = [cluster.pod(f"trainer-a1-{index}") for index in range(4)]
    for name in names:
        cluster.change(name, start_problem=NO_GPU, created_at=cluster.now)
    assert told(cluster.written()) == [("Unschedulable", True)]
    cluster.bind(names[0])
    cluster.change(names[0], start_problem=None, phase="Running", is_ready=True)
    assert cluster.written() == []


def test_a_refused_child_and_a_job_that_is_not_permitted_are_warnings():
    cluster = ToldCluster()
    planned = next(child.name for child in cluster.plan().create if child.name.endswith("trainer-a1-0"))
    cluster.refused_pods = {planned}
    cluster.refusal = Refusal(planned, ReasonMessage("QuotaExceeded", "does not fit"))
    assert told(cluster.written()) == [("QuotaExceeded", True)]
    newer = ToldCluster(problem='spec.foo: unknown field "spec.foo"')
    (skew,) = newer.written()
    assert (skew.why.reason, skew.is_warning, "spec.foo" in skew.why.message) == ("SchemaSkew", True, True)


def test_a_scheduler_that_does_not_exist_is_a_warning_after_half_a_minute():
    cluster = ToldCluster()
    cluster.settle()
    cluster.unbind(name := cluster.pod("trainer-a1-0"))
    cluster.change(name, unseen_by="nope", created_at=cluster.now)
    assert cluster.written(seconds=int(UNSEEN_SECONDS) - 10) == []
    assert told(cluster.written()) == [("NoScheduler", True)]


def admitted() -> ToldCluster:
    """A job of a queue that trains."""
    cluster = a_cluster_of(ToldCluster)
    cluster.settle()
    kueue.admit(workload(cluster))
    cluster.start()
    cluster.written()
    return cluster


def test_a_queue_that_a_new_job_cannot_be_in_is_one_warning_and_no_wait_in_it_is():
    cluster = a_cluster_of(ToldCluster, scheduling={"priorityClass": "high"})
    kind = WORKLOAD_PRIORITY_CLASSES
    cluster.cluster_objects[kind, "high"] = "there is no WorkloadPriorityClass high"
    (blocked,) = cluster.written()
    assert (blocked.why.reason, blocked.is_warning) == ("QueueUnavailable", True)
    assert "there is no WorkloadPriorityClass high" in blocked.why.message
    cluster.state = ProcessState()
    assert cluster.written() == []
    cluster.cluster_objects[kind, "high"] = {"value": 1000}
    assert cluster.written() == []
    kueue.keep_waiting(workload(cluster), "insufficient quota")
    assert told(cluster.written()) == [("Queued", False)]


def test_a_queue_that_goes_away_while_a_job_waits_in_it_is_one_warning_also_of_the_next_operator():
    cluster = a_cluster_of(ToldCluster)
    cluster.settle()
    kueue.keep_waiting(workload(cluster), "insufficient quota")
    assert told(cluster.written()) == [("Queued", False)]
    cluster.queue_problem = "Workloads cannot be listed: 503"
    (blocked,) = cluster.written()
    assert (blocked.why.reason, blocked.is_warning) == ("QueueUnavailable", True)
    cluster.queue_problem = "Workloads cannot be listed: 500"
    assert cluster.written() == []
    cluster.state = ProcessState()
    assert cluster.plan().events == ()  # the status says it already, whatever an operator remembers
    cluster.queue_problem = ""
    assert cluster.written() == []
    kueue.admit(workload(cluster))
    assert told(cluster.written()) == [("Admitted", False)]


def test_a_workload_that_is_refused_while_the_job_waits_is_a_warning_with_its_reason():
    cluster = a_cluster_of(ToldCluster)
    cluster.refused_pods = {cluster.base}
    cluster.refusal = Refusal(cluster.base, ReasonMessage("QuotaExceeded", "does not fit"))
    assert told(cluster.written()) == [("QuotaExceeded", True)]
    cluster.refusal = Refusal(cluster.base, ReasonMessage("CreateForbidden", "is refused"))
    assert told(cluster.written()) == [("CreateForbidden", True)]


def test_what_kueue_decides_is_no_warning():
    cluster = admitted()
    kueue.evict(workload(cluster))
    assert told(cluster.written()) == [("EvictedFromQueue", False)]


def test_a_queue_without_which_pods_cannot_be_made_again_is_one_warning():
    cluster = admitted()
    cluster.queue_problem, cluster.workloads = "Workloads cannot be listed: 503", {}
    assert cluster.written() == []  # the job goes on with the pods that it has
    cluster.vanish(cluster.pod("trainer-a1-0"))
    assert told(cluster.written()) == [("Restarting", True), ("QueueUnavailable", True)]
    cluster.state = ProcessState()
    assert cluster.written() == []
    cluster.queue_problem, cluster.refused_pods = "", {cluster.base}
    cluster.refusal = Refusal(cluster.base, ReasonMessage("QueueUnavailable", "Kueue does not answer"))
    assert cluster.written() == []
    cluster.refusal = Refusal(cluster.base, ReasonMessage("QuotaExceeded", "does not fit"))
    assert told(cluster.written()) == [("QuotaExceeded", True)]


@pytest.mark.parametrize("is_suspended", [False, True])
def test_a_node_that_seems_lost_is_one_warning_that_says_what_to_do(is_suspended: bool):
    nodes = {"trainer": {"numNodes": 2}}
    cluster = ToldCluster(spec(**nodes)).start()
    cluster.written()
    if is_suspended:
        cluster.spec, cluster.generation = spec(suspend=True, **nodes), 2
    else:
        cluster.end(cluster.pod("trainer-a1-1"), termination(1, reason="OOMKilled"))
    assert told(cluster.written()) == [("Suspended", False) if is_suspended else ("Restarting", True)]
    cluster.change(stuck := cluster.pod("trainer-a1-0"), must_end_by=cluster.now)
    cluster.vanish(*(name for name, pod in cluster.pods.items() if pod.is_deleting and name != stuck))
    assert cluster.written(seconds=50) == []
    (asked,) = cluster.written(seconds=20)
    assert asked.is_warning and stuck in asked.why.message and "is the node lost?" in asked.why.message
    assert asked.why.reason == ("Suspending" if is_suspended else "WaitingForEarlierAttempt")
    assert cluster.written() == []
    cluster.state = ProcessState()
    assert cluster.plan().events == ()


def test_a_long_reason_leaves_room_for_the_question_about_the_node():
    cluster = admitted()
    kueue.evict(workload(cluster), message="preempted " * 200)
    cluster.written()
    cluster.change(cluster.pod("trainer-a1-0"), must_end_by=cluster.now)
    (asked,) = cluster.written(seconds=70)
    assert asked.why.message.endswith("node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
    assert cluster.condition(ConditionType.RUNNING).message == asked.why.message


def test_what_is_wrong_with_a_job_that_goes_on_is_a_warning():
    cluster = ToldCluster().start()
    lacking = StepsWithoutSignal(step=10, no_reward=10, rewards="copy")
    cluster.progress = report(step=10, steps_without_signal=lacking)
    found = told(cluster.written())
    assert ("NoReward", True) in found and len(found) == 2
    cluster.progress, cluster.is_news = None, True
    cluster.report_problem = ReasonMessage("ProgressUnreachable", "the trainer has not answered")
    assert told(cluster.written()) == [("ProgressUnreachable", True)]


def test_a_failed_job_is_one_warning():
    cluster = ToldCluster().start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(40, "no column"))
    assert told(cluster.written()) == [("Failed", True)]


def test_the_first_step_is_an_event_once():
    cluster = ToldCluster().start()
    cluster.progress = report(step=0, reward=None)
    assert cluster.written() == []
    cluster.progress = report(step=1)
    (first,) = cluster.written()
    assert (first.why.reason, first.is_warning) == ("FirstStep", False)
    assert first.why.message == "step 1 of 10 is the first that the job has finished"
    cluster.progress = report(step=2)
    cluster.state = ProcessState()
    assert cluster.written() == []


def test_a_checkpoint_is_an_event_and_of_one_minute_one_is():
    cluster = ToldCluster().start()
    cluster.progress = report(step=2)
    cluster.written()
    steps = []
    for step in range(3, 10):
        cluster.progress = report(step=step, checkpoint_step=step)
        steps += [(event.why.message, event.is_warning) for event in cluster.written(seconds=20)]
    assert steps == [(f"the checkpoint of step {step} is saved", False) for step in (3, 6, 9)]
    assert cluster.written() == []  # nothing new was saved


def test_an_attempt_that_reports_the_checkpoint_it_begins_from_has_saved_none():
    cluster = ToldCluster(spec(checkpoint={"claimName": "runs"})).start()
    cluster.progress = report(step=5, checkpoint_step=4)
    assert told(cluster.written()) == [("FirstStep", False), ("CheckpointSaved", False)]
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.progress = None
    assert told(cluster.written()) == [("Restarting", True)]
    cluster.run_all()
    cluster.progress = report(attempt=2, step=4, checkpoint_step=4, resumed_from_step=4)
    assert told(cluster.written()) == [("Started", False)]


def test_an_evaluation_that_is_the_best_is_an_event():
    cluster = ToldCluster().start()
    cluster.progress = report(step=2)
    cluster.written()
    best = []
    for step, reward in ((2, 0.25), (2, 0.25), (4, 0.51234)):
        evaluation = BestEvaluation(step=step, reward=reward)
        cluster.progress = report(step=5, best_evaluation=evaluation)
        best += [event.why.message for event in cluster.written()]
    assert best == [
        "the evaluation after step 2 is the best so far: reward 0.25",
        "the evaluation after step 4 is the best so far: reward 0.5123",
    ]
    assert cluster.status.best_step == 4


@pytest.mark.parametrize(("replicas", "message"), [(4, "from 2 to 4"), (1, "from 2 to 1")])
def test_another_number_of_engines_is_an_event_and_a_suspension_is_none(replicas: int, message: str):
    cluster = ToldCluster().start()
    cluster.spec, cluster.generation = spec(rollout={"replicas": replicas}), 2
    (scaled,) = cluster.written()
    assert (scaled.why.reason, scaled.is_warning) == ("Scaled", False)
    assert scaled.why.message == f"the job is scaled {message} engines"
    cluster.spec, cluster.generation = spec(rollout={"replicas": replicas}, suspend=True), 3
    assert "Scaled" not in {reason for reason, _ in told(cluster.written())}
    cluster.spec, cluster.generation = spec(rollout={"replicas": replicas}), 4
    assert "Scaled" not in {reason for reason, _ in told(cluster.written())}


def test_an_event_has_a_name_of_its_own_and_the_same_one_for_the_same_reason_and_key():
    cluster = ToldCluster()
    job = cluster.observed().job
    first, again, other = (
        event_of(job, EventDraft(ReasonMessage("Started", message), key=key), now=cluster.now)
        for message, key in (("attempt 1 runs", "1"), ("in other words", "1"), ("attempt 2 runs", "2"))
    )
    assert first["metadata"]["name"] == again["metadata"]["name"] != other["metadata"]["name"]
    assert first["involvedObject"]["uid"] == job.uid
    assert (
        len(
            event_of(job, EventDraft(ReasonMessage("Failed", "x" * 5000), key=""), now=cluster.now)["message"]
        )
        == 1024
    )
