"""Engines as actors of Ray in two trainer pods: one that is killed is made again and the attempt continues,
and nobody else may talk to Ray.

The tests share the job and run in the order they are written in.
"""

import re

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.kill import KILL_AN_ACTOR
from grpo_scenarios.namespace import Namespace, copy_job, volume_claim
from grpo_scenarios.pace import hurry, slow_down

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB = "copy"
CLAIM = "checkpoints"
STEPS, PACE_SECONDS = 60, 0.3
LOST = "the engine of this rank is lost and started again: its Ray actor ended"
_TOKEN = "/cache/run/ray/token"
_JOIN = """
import os, sys
# Ray says on standard error why it was refused
os.dup2(1, 2)
head, token = sys.argv[1:]
if token:
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=token)
import ray
try:
    ray.init(head, log_to_driver=False)
except Exception:
    print("refused")
else:
    print("joined")
"""


@pytest.fixture(scope="module")
def job(namespace: Namespace) -> str:
    """The copy task on two pods of one rank, each with its engine as an actor."""
    trainer = {"numNodes": 2, "processesPerNode": 1}
    wanted = copy_job(JOB, claim=CLAIM, algorithm={"steps": STEPS}, trainer=trainer)
    del wanted["spec"]["rollout"]
    wanted["spec"]["colocated"] = {"executor": "Ray"}
    # the job outlives those who try to join
    namespace.apply(slow_down(wanted, seconds=PACE_SECONDS, is_held=True), volume_claim(CLAIM), wanted)
    return JOB


def test_only_who_has_the_token_is_let_in(job: str, namespace: Namespace) -> None:
    namespace.wait_for_step(job, 2, timeout_seconds=300)
    first = min(pod["metadata"]["name"] for pod in namespace.pods_of(job, "trainer"))
    [head] = re.findall(r"Ray listens at (\S+)", namespace.kubectl("logs", first))
    assert "joined" in namespace.execute(first, "python3.11", "-c", _JOIN, head, _TOKEN)
    answer = namespace.execute(first, "python3.11", "-c", _JOIN, head, "")
    assert "refused" in answer and "InvalidAuthToken" in answer


def test_an_actor_that_is_killed_is_made_again_and_the_attempt_goes_on(
    job: str, namespace: Namespace
) -> None:
    last = max(pod["metadata"]["name"] for pod in namespace.pods_of(job, "trainer"))
    namespace.execute(last, "python3.11", "-c", KILL_AN_ACTOR)
    namespace.wait_until(
        lambda: LOST in namespace.kubectl("logs", last),
        "the rank to say that its engine is lost",
        timeout_seconds=60,
    )
    namespace.wait_for_step(job, namespace.status(job)["step"] + 3, timeout_seconds=180)
    status = namespace.status(job)
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)


def test_the_job_completes_with_every_step_on_current_weights(job: str, namespace: Namespace) -> None:
    hurry(namespace, claim=CLAIM)
    namespace.wait_for_finish(job)
    assert condition(namespace.job(job), "Complete") == "True", namespace.describe()
    metrics = namespace.metrics(CLAIM)
    assert [record.step for record in metrics] == list(range(1, STEPS + 1))
