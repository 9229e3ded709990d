"""Engines that the trainer cannot give weights: their pods say nothing of it, so the conditions say why."""

from grpo_api.contract.progress import EngineCounts, EngineNote, TrainerState
from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.plan.policies.conditions import ConditionState

from .fake_cluster import FakeCluster, report, spec

WHY = "verify: its logprobs differ from the trainer's by 0.01 nats, more than 0.0001"


def revoke(cluster: FakeCluster, *engines: str) -> list[str]:
    """The trainer takes these out of service; returns the names of their pods."""
    pods = [cluster.pod(engine) for engine in engines]
    for pod in pods:
        cluster.change(pod, is_ready=False)
    return pods


def conditions(
    cluster: FakeCluster, message: str, *, state: TrainerState, current: int, **told: str
) -> list[ConditionState]:
    """RolloutReady and Ready after the trainer has said this, and of engines by name what is `told`."""
    notes = tuple(EngineNote(name=name, text=text) for name, text in told.items())
    engines = EngineCounts(desired=2, known=2, current=current, notes=notes or None)
    cluster.progress = report(state=state, message=message, engines=engines)
    cluster.step()
    kinds = (ConditionType.ROLLOUT_READY, ConditionType.READY)
    return [ConditionState.of(cluster.condition(kind)) for kind in kinds]


def test_a_job_that_waits_for_engines_without_weights_says_why():
    cluster = FakeCluster().start()
    first, _ = revoke(cluster, "rollout-0-i0", "rollout-1-i0")
    found = "no rollout engine has the newest weights: 2 of 2 engines have answered"
    of_engine = f"engine {first} did not get weights 1.0: {WHY}"
    said = f"{of_engine}; {found}"
    waiting = TrainerState.WAITING_FOR_ROLLOUT
    rollout, ready = conditions(cluster, said, state=waiting, current=0, **{first: of_engine})
    late = f"0/2 engines have been admitted: rollout pod {first} is not ready, and the trainer says: "
    assert rollout == ConditionState(False, "EnginesStarting", late + of_engine)
    assert ready == ConditionState(False, "WaitingForRollout", said)


def test_a_job_that_trains_without_one_of_its_engines_says_which_and_why():
    """Also when another one is late for a cause of its own, which stands in its log."""
    cluster = FakeCluster(spec(rollout={"replicas": 3})).start()
    _, second = revoke(cluster, "rollout-0-i0", "rollout-1-i0")
    said = f"engine {second} has failed 4 weight syncs, the last one of weights 1.3: {WHY}"
    rollout, ready = conditions(cluster, said, state=TrainerState.TRAINING, current=1, **{second: said})
    late = f"1/3 engines have been admitted: rollout pod {second} is not ready, and the trainer says: {said}"
    assert rollout == ConditionState(False, "EnginesStarting", late)
    assert ready == ConditionState(True, "Training", said)


def test_an_engine_of_which_the_trainer_says_nothing_is_looked_for_in_its_log():
    cluster = FakeCluster().start()
    (pod,) = revoke(cluster, "rollout-1-i0")
    of_another = {f"{pod}0": f"engine {pod}0 did not get weights 1.3: {WHY}"}
    rollout, _ = conditions(cluster, "", state=TrainerState.TRAINING, current=1, **of_another)
    assert rollout.message == f"1/2 engines have been admitted: rollout pod {pod} is not ready, see its log"


def test_an_operator_that_begins_anew_leaves_what_the_trainer_said_of_an_engine_until_it_reports():
    cluster = FakeCluster().start()
    (pod,) = revoke(cluster, "rollout-1-i0")
    said = f"engine {pod} has failed 4 weight syncs, the last one of weights 1.3: {WHY}"
    before, _ = conditions(cluster, said, state=TrainerState.TRAINING, current=1, **{pod: said})
    late = f"engines have been admitted: rollout pod {pod} is not ready"
    assert before.message == f"1/2 {late}, and the trainer says: {said}"

    cluster.progress = None
    cluster.step()
    assert ConditionState.of(cluster.condition(ConditionType.ROLLOUT_READY)) == before

    first = revoke(cluster, "rollout-0-i0")
    cluster.step()
    counted_anew = f"0/2 engines have been admitted: rollout pod {first[0]} is not ready, see its log"
    assert cluster.condition(ConditionType.ROLLOUT_READY).message == counted_anew

    cluster.change(*first, is_ready=True)
    after, _ = conditions(cluster, "", state=TrainerState.TRAINING, current=1)
    assert after.message == f"1/2 {late}, see its log"
