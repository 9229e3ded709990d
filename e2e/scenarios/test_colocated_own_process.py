"""Engines in processes beside their ranks: one that is killed and one that is stopped are started again, and
the attempt continues.

The tests share the job and run in the order they are written in.
"""

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.kill import KILL_AN_ENGINE
from grpo_scenarios.namespace import Namespace, copy_job, volume_claim

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB = "copy"
CLAIM = "checkpoints"
STEPS_PER_TEST = 20
LOST = "the engine of this rank is lost and started again"


@pytest.fixture(scope="module")
def num_steps(request: pytest.FixtureRequest) -> int:
    """Enough for the tests of this file that were selected: each that loses an engine needs some."""
    return STEPS_PER_TEST * sum(item.path == request.path for item in request.session.items)


@pytest.fixture(scope="module")
def job(namespace: Namespace, num_steps: int) -> str:
    """The copy task on two ranks, each with an engine in a process of its own."""
    wanted = copy_job(JOB, claim=CLAIM, algorithm={"steps": num_steps}, engine={"process": "Own"})
    del wanted["spec"]["rollout"]
    namespace.apply(volume_claim(CLAIM), wanted)
    return JOB


@pytest.mark.parametrize(
    ("signal", "cause"),
    [("SIGKILL", "its process was killed by SIGKILL"), ("SIGSTOP", "its process has been hung for 10 s")],
)
def test_a_lost_engine_is_started_again_and_the_attempt_goes_on(
    job: str, namespace: Namespace, signal: str, cause: str
) -> None:
    step = namespace.status(job).get("step") or 0
    namespace.wait_for_step(job, step + 3)
    (trainer,) = namespace.pods_of(job, "trainer")
    name = trainer["metadata"]["name"]
    namespace.execute(name, "python3.11", "-c", KILL_AN_ENGINE.format(signal=signal))
    namespace.wait_until(
        lambda: f"{LOST}: {cause}" in namespace.kubectl("logs", name),
        "the rank to say that its engine is lost",
        timeout_seconds=30,
    )
    namespace.wait_for_step(job, namespace.status(job)["step"] + 3, timeout_seconds=180)
    status = namespace.status(job)
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)


def test_the_job_completes_with_every_step_on_current_weights(
    job: str, namespace: Namespace, num_steps: int
) -> None:
    namespace.wait_for_finish(job)
    assert condition(namespace.job(job), "Complete") == "True", namespace.describe()
    metrics = namespace.metrics(CLAIM)
    assert [record.step for record in metrics] == list(range(1, num_steps + 1))
