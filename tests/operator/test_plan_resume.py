"""A job that resumes from another one."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from grpo_api.contract.reasons import Reason
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.status import ConditionType, Phase, ResumedFrom
from grpo_operator.children.config import content_digest
from grpo_operator.children.names import Names
from grpo_operator.observe.observed import Observed, OtherJob
from grpo_operator.plan.policies.resume import LOOK_AGAIN_SECONDS

from .fake_cluster import FakeCluster, report, spec, termination

OTHER_UID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
FOLDER = Names.of(job="first", uid=OTHER_UID).base
SOURCE = f"pvc://runs/{FOLDER}"
ENDED = OtherJob(OTHER_UID, is_there=True, claim_name="runs", phase=Phase.FAILED)
RUNNING = replace(ENDED, phase=Phase.RUNNING)


def resuming(**resume_from: Any) -> GRPOJobSpec:
    return spec(resumeFrom=resume_from, checkpoint={"claimName": "mine"})


class ResumingCluster(FakeCluster):
    """A job that resumes from the job `first`, and what is known of that one."""

    def __init__(self, other: OtherJob | None, **resume_from: Any) -> None:
        super().__init__(resuming(**(resume_from or {"job": "first"})))
        self.other = other

    def observed(self) -> Observed:
        return replace(super().observed(), other_job=self.other)

    def why(self) -> tuple[str, str]:
        ready = self.condition(ConditionType.READY)
        return ready.reason, ready.message


def test_a_job_that_resumes_from_an_ended_one_reads_its_folder_on_its_claim():
    cluster = ResumingCluster(ENDED)
    cluster.start()
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.status.resumed_from == ResumedFrom(source=SOURCE, job="first", job_uid=OTHER_UID)
    trainer = cluster.bodies[cluster.pod("trainer-a1-0")]["spec"]
    mounts = {mount["mountPath"]: mount for mount in trainer["containers"][0]["volumeMounts"]}
    assert mounts["/grpo/volumes/claims/runs"]["readOnly"] is True
    claims = [volume.get("persistentVolumeClaim") for volume in trainer["volumes"]]
    assert {"claimName": "runs", "readOnly": True} in claims and {"claimName": "mine"} in claims


def test_only_the_first_trainer_pod_mounts_the_claim_of_the_other_job():
    cluster = FakeCluster(
        spec(resumeFrom={"source": "pvc://runs/first"}, trainer={"numNodes": 2}, checkpoint={})
    ).start()
    having = {
        name.removeprefix(f"{cluster.base}-")
        for name, body in cluster.bodies.items()
        if any("persistentVolumeClaim" in volume for volume in body["spec"]["volumes"])
    }
    assert having == {"trainer-a1-0"}


def test_both_jobs_may_have_the_same_claim_and_only_its_own_folder_is_written():
    same = replace(ENDED, claim_name="mine")
    cluster = ResumingCluster(same)
    cluster.start()
    trainer = cluster.bodies[cluster.pod("trainer-a1-0")]["spec"]
    (volume,) = [each for each in trainer["volumes"] if "persistentVolumeClaim" in each]
    mounts = [each for each in trainer["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    assert volume["persistentVolumeClaim"] == {"claimName": "mine"}
    assert mounts == [
        {"name": volume["name"], "mountPath": "/output", "subPath": cluster.base},
        {"name": volume["name"], "mountPath": "/grpo/volumes/claims/mine", "readOnly": True},
    ]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (None, "there is no GRPOJob first in namespace default"),
        (RUNNING, "GRPOJob first has not ended (Running)"),
        (
            replace(ENDED, living_trainer="first-trainer-a1-0"),
            "trainer pod first-trainer-a1-0 of GRPOJob first",
        ),
        (replace(RUNNING, problem="spec.model: it is new"), "it is new"),
    ],
)
def test_it_waits_for_the_end_of_the_other_job_and_says_so(other: OtherJob | None, says: str):
    cluster = ResumingCluster(other)
    plan = cluster.settle()
    reason, message = cluster.why()
    assert reason == Reason.WAITING_FOR_RESUMED_JOB
    assert message.startswith("resumeFrom.job: ") and says in message
    assert (cluster.status.attempt, cluster.pods, plan.requeue_after) == (0, {}, LOOK_AGAIN_SECONDS)
    cluster.other = ENDED
    cluster.start()
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.condition(ConditionType.READY).reason != Reason.WAITING_FOR_RESUMED_JOB
    assert cluster.status.last_failure is None, "to wait is no failure"


def test_a_job_without_a_claim_cannot_be_resumed():
    cluster = ResumingCluster(replace(RUNNING, claim_name=None))
    cluster.settle()
    failed = cluster.condition(ConditionType.FAILED)
    assert (failed.status, failed.reason) == ("True", Reason.NOTHING_TO_RESUME)
    assert "GRPOJob first has no checkpoint.claimName" in failed.message
    assert cluster.status.last_failure is not None
    assert (cluster.status.phase, cluster.status.last_failure.reason, cluster.pods) == (
        Phase.FAILED,
        Reason.NOTHING_TO_RESUME,
        {},
    )


def test_the_other_job_may_be_deleted_while_this_one_waits_for_its_end():
    cluster = ResumingCluster(RUNNING)
    cluster.settle()
    assert cluster.status.resumed_from is not None
    gone = OtherJob(OTHER_UID, is_there=False, living_trainer="first-trainer-a1-0")
    cluster.other = gone
    cluster.settle()
    assert cluster.status.attempt == 0, "its trainer pod is still there"
    cluster.other = replace(gone, living_trainer="")
    cluster.settle()
    assert (cluster.status.attempt, cluster.status.resumed_from.source) == (1, SOURCE)


def test_a_started_job_does_not_look_for_the_other_one_any_more():
    cluster = ResumingCluster(ENDED)
    cluster.start()
    cluster.other = None
    cluster.config_names.clear()  # its ConfigMap is made again, from the spec and the status
    before = cluster.status
    plan = cluster.step()
    (config,) = plan.create
    assert cluster.status == before
    assert cluster.status.config_digest == content_digest(config.body)
    assert f'"source": "{SOURCE}"' in config.body["data"]["run.json"]
    assert '"job": "first"' not in config.body["data"]["run.json"]


def test_the_status_and_an_event_say_with_which_checkpoint_the_run_began():
    cluster = ResumingCluster(ENDED)
    cluster.start()
    cluster.progress = report(step=30, total_steps=40, resumed_from_step=30, loaded_step=30)
    plan = cluster.step()
    assert cluster.status.resumed_from is not None
    assert (cluster.status.step, cluster.status.resumed_from.step) == (30, 30)
    (event,) = [event for event in plan.events if event.why.reason == Reason.RESUMED]
    assert event.why.message == (
        f"the run began with the checkpoint of step 30 of GRPOJob first, which is at {SOURCE}"
    )
    cluster.progress = report(step=32, total_steps=40, resumed_from_step=31)  # of a later attempt
    plan = cluster.step()
    assert cluster.status.resumed_from.step == 30
    assert not [event for event in plan.events if event.why.reason == Reason.RESUMED]


def test_a_job_with_weights_of_a_source_begins_at_once():
    cluster = ResumingCluster(None, source="pvc://runs/old/checkpoints", load="Weights")
    cluster.start()
    assert cluster.status.resumed_from == ResumedFrom(source="pvc://runs/old/checkpoints")
    cluster.progress = report(step=0, loaded_step=7)
    (event,) = [event for event in cluster.step().events if event.why.reason == Reason.RESUMED]
    assert event.why.message == (
        "the run began with the weights of the checkpoint of step 7, which is at pvc://runs/old/checkpoints"
    )


OOM = termination(137, reason="OOMKilled")


@pytest.mark.parametrize(
    ("checkpoint", "step", "says"),
    [
        ({"claimName": "runs"}, 4, "with resumeFrom.job: copy it continues from the checkpoint of step 4"),
        ({"claimName": "runs"}, None, "this one has not saved a checkpoint from which it could continue"),
        ({}, 4, "this one has no checkpoint.claimName from which it could continue"),
    ],
)
def test_out_of_memory_the_sentence_says_how_to_go_on(checkpoint: Any, step: int | None, says: str):
    cluster = FakeCluster(spec(checkpoint=checkpoint, failurePolicy={"maxRestarts": 0})).start()
    cluster.progress = report(checkpoint_step=step)
    cluster.step()
    cluster.end(cluster.pod("trainer-a1-0"), OOM)
    cluster.now += timedelta(seconds=5)
    cluster.step()
    failed = cluster.condition(ConditionType.FAILED)
    assert (failed.status, failed.reason) == ("True", "OOMKilled")
    assert "raise trainer.resources.limits.memory" in failed.message
    assert says in failed.message


def test_another_cause_says_nothing_of_that():
    cluster = FakeCluster(spec(failurePolicy={"maxRestarts": 0})).start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.now += timedelta(seconds=5)
    cluster.step()
    assert "new job" not in cluster.condition(ConditionType.FAILED).message


def test_an_engine_out_of_memory_says_so_too():
    cluster = FakeCluster(spec(checkpoint={"claimName": "runs"})).start()
    cluster.progress = report(checkpoint_step=4)
    cluster.change(
        cluster.pod("rollout-0-i0"),
        is_ready=False,
        last_termination=replace(OOM, container="engine"),
        restarts=1,
    )
    cluster.settle()
    assert cluster.status.last_failure is not None
    message = cluster.status.last_failure.message
    assert "raise rollout.resources.limits.memory" in message
    assert message.endswith("with resumeFrom.job: copy it continues from the checkpoint of step 4")


def test_a_suspended_job_writes_down_what_it_resumes_from_before_the_other_job_is_deleted():
    cluster = ResumingCluster(RUNNING)
    assert cluster.spec is not None
    cluster.spec = cluster.spec.model_copy(update={"suspend": True})
    cluster.settle()
    assert (cluster.status.phase, cluster.why()[0]) == (Phase.SUSPENDED, Reason.SUSPENDED)
    assert cluster.status.resumed_from is not None and cluster.status.resumed_from.source == SOURCE
    cluster.other = None
    cluster.spec = cluster.spec.model_copy(update={"suspend": False})
    cluster.start()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 1)
