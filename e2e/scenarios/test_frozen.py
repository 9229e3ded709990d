"""An engine is stopped while it samples; the job goes on without it, and takes it back."""

import time

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.freeze import FREEZE_WHILE_IT_SAMPLES, THAW
from grpo_scenarios.namespace import Namespace, copy_job, volume_claim

pytestmark = pytest.mark.cluster

JOB = "copy"
CLAIM = "checkpoints"
STEPS = 40
# samples long enough to be met in work
LONG_SAMPLES = {
    "algorithm": {"steps": STEPS},
    "sampling": {"maxTokens": 160},
    "engine": {"maxModelLen": 192},
}


def test_training_goes_on_while_an_engine_is_frozen_and_takes_it_back_when_it_thaws(
    namespace: Namespace,
) -> None:
    namespace.apply(volume_claim(CLAIM), copy_job(JOB, claim=CLAIM, **LONG_SAMPLES))
    namespace.wait_for_step(JOB, 3)
    namespace.wait_until(
        lambda: namespace.status(JOB)["rollout"]["current"] == 2, "two engines", timeout_seconds=180
    )
    pod = sorted(pod["metadata"]["name"] for pod in namespace.pods_of(JOB, "rollout"))[0]
    core = namespace.execute(pod, "python3.11", "-c", FREEZE_WHILE_IT_SAMPLES).strip()
    frozen_at = time.monotonic()
    namespace.wait_until(
        lambda: namespace.status(JOB)["rollout"]["current"] == 1,
        "the frozen engine to be out of the fleet",
        timeout_seconds=30,
    )
    found_after = time.monotonic() - frozen_at
    namespace.wait_for_step(JOB, namespace.status(JOB)["step"] + 3, timeout_seconds=60)
    trainer = namespace.pods_of(JOB, "trainer")[0]["metadata"]["name"]
    assert "is frozen, its requests go to other engines: its engine core does not answer" in (
        namespace.kubectl("logs", trainer)
    )
    # the trainer finds it within 15 s, and the operator asks the trainer every 2 s
    assert found_after < 20

    namespace.execute(pod, "python3.11", "-c", THAW, core)
    status = namespace.wait_until(
        lambda: (found := namespace.status(JOB))["rollout"]["current"] == 2 and found,
        "the engine to be taken back",
        timeout_seconds=60,
    )
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)
    namespace.wait_for_finish(JOB, timeout_seconds=420)
    assert condition(namespace.job(JOB), "Complete") == "True", namespace.describe()
    metrics = namespace.metrics(CLAIM)
    assert [record.step for record in metrics] == list(range(1, STEPS + 1))
    assert metrics[-1].values["stale_samples"] == 0
