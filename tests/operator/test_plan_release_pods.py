"""What becomes of the pods of a job that has failed: those that tell why stay, without their hardware."""

from datetime import timedelta

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import Phase

from .fake_cluster import FakeCluster, report, spec, termination, termination_message

BACK_OFF = ReasonMessage("CrashLoopBackOff", "back-off 10s")


def failed_by_an_engine() -> FakeCluster:
    """An engine ended with 40 before the first step, and its node has started it again."""
    cluster = FakeCluster().start()
    cluster.progress = report(state=TrainerState.WAITING_FOR_ROLLOUT, step=0)
    end = termination(40, termination_message(40, "UserError", "vLLM refuses engine.args"))
    cluster.change(cluster.pod("rollout-1-i0"), last_termination=end, restarts=1, is_ready=False)
    cluster.step()
    assert cluster.status.phase == Phase.FAILED
    return cluster


def test_the_pods_of_an_engine_that_failed_the_job_and_of_its_trainer_stay_stopped():
    cluster = failed_by_an_engine()
    trainer, engine = cluster.pod("trainer-a1-0"), cluster.pod("rollout-1-i0")
    assert cluster.pods[trainer].is_stopping
    assert cluster.names("rollout", is_deleting=True) == ["rollout-0-i0"]  # it has nothing to tell
    cluster.change(engine, start_problem=BACK_OFF)  # it has ended again
    cluster.step()
    assert cluster.pods[engine].is_stopping
    cluster.end(trainer, termination(143))
    cluster.change(engine, phase="Failed", termination=termination(40))
    cluster.vanish_deleted()
    plan = cluster.step()
    assert (plan.delete, plan.stop, len(cluster.pods)) == ((), (), 2)


def test_an_engine_that_runs_again_has_a_minute_to_say_why_it_ends_and_keeps_its_node_no_longer():
    cluster = failed_by_an_engine()
    engine = cluster.pods[cluster.pod("rollout-1-i0")]
    assert (engine.is_stopping, cluster.step().requeue_after) == (False, 60.0)
    cluster.now += timedelta(seconds=60)
    cluster.step()
    assert cluster.running() == []


def test_a_pod_of_a_failed_job_that_never_ran_has_no_log_and_goes():
    cluster = FakeCluster(spec(startupDeadlineSeconds=60))
    cluster.settle()
    cluster.run_all()
    cluster.change(cluster.pod("rollout-1-i0"), phase="Pending", is_ready=False)
    cluster.change(cluster.pod("rollout-0-i0"), is_ready=False)
    cluster.settle()
    cluster.progress = report(state=TrainerState.WAITING_FOR_ROLLOUT, step=0)
    cluster.now += timedelta(seconds=61)
    cluster.settle()
    assert cluster.status.phase == Phase.FAILED
    assert cluster.names("rollout", is_deleting=True) == ["rollout-1-i0"]
    assert cluster.running() == [] and cluster.pods[cluster.pod("rollout-0-i0")].is_stopping
