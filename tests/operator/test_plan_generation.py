"""A generation without progress, on the object of its job."""

from datetime import timedelta

from grpo_api.contract.progress import Progress
from grpo_api.v1alpha1.status import Condition, ConditionType, Phase
from grpo_operator.observe.process_state import ProcessState

from .fake_cluster import NOW, UID, FakeCluster, report, spec

KEY = ("default", "copy")
STILL = "step 5: 12 of 32 samples are done, and none was finished in the last {} s; open are 20 on rollout-0"


class Trainer:
    """A trainer that is polled: the cluster gets what an operator's memory makes of its answers."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.state = ProcessState()
        self.num_plans = 0
        self._cluster = cluster

    def answer(self, seconds: float, progress: Progress) -> Condition:
        """Ready after this answer, which causes a plan only if it is news."""
        cluster = self._cluster
        cluster.now = NOW + timedelta(seconds=seconds)
        is_news = self.state.remember_progress(KEY, progress, now=cluster.now)
        heard = self.state.report(KEY, uid=UID, attempt=1)
        cluster.progress, cluster.liveness, cluster.is_news = heard.progress, heard.liveness, heard.is_news
        if is_news:
            self.num_plans += 1
            cluster.settle()
            self.state.mark_written(KEY, heard)
        return cluster.condition(ConditionType.READY)


def still(seconds: int) -> Progress:
    """The heartbeat stays the same with the generation."""
    return report(heartbeat=7, message=STILL.format(seconds))


def test_it_is_on_the_object_while_it_lasts_and_ready_does_not_flap():
    trainer = Trainer(FakeCluster().start())
    before = trainer.answer(0, report(heartbeat=6))
    assert (before.status, before.reason, before.message) == ("True", "Training", "the trainer makes steps")
    during = trainer.answer(12, still(10))
    assert during.message == STILL.format(10)
    assert (during.status, during.reason) == (before.status, before.reason)
    assert during.last_transition_time == before.last_transition_time
    after = trainer.answer(14, report(heartbeat=8))
    assert after == before


def test_the_same_sentence_is_not_written_again():
    trainer = Trainer(FakeCluster().start())
    trainer.answer(0, report(heartbeat=6))
    for seconds in range(12, 20, 2):
        trainer.answer(seconds, still(10))
    assert trainer.num_plans == 2


def test_a_generation_that_stands_still_for_the_stall_timeout_ends_the_attempt_and_names_the_engine():
    cluster = FakeCluster(spec(stallTimeoutSeconds=60)).start()
    trainer = Trainer(cluster)
    trainer.answer(0, report(heartbeat=7))
    for seconds in range(10, 60, 10):
        trainer.answer(seconds, still(seconds))
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 1)
    trainer.answer(60, still(60))
    assert (cluster.status.attempt, cluster.status.restarts) == (2, 1)
    failure = cluster.status.last_failure
    assert failure is not None and failure.reason == "TrainerStalled"
    assert "no progress for 60 s" in failure.message and STILL.format(60) in failure.message
