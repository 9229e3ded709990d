"""The snapshot of a job that a plan is made from."""

from grpo_operator.cluster.kinds import PODS
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.memory import Memory
from grpo_operator.observe.observed import Remembered
from grpo_operator.observe.snapshot import job_and_pods

from .controlled_job import KEY, pod_names, run_pods, status_of
from .fake_cluster import NOW


def remembered(cache: Cache, memory: Memory) -> Remembered:
    """What is remembered once the job in the cache has been looked at."""
    found = job_and_pods(cache, KEY)
    assert found is not None
    return memory.remember_pods(KEY, found, now=NOW)


async def test_a_pod_of_an_earlier_attempt_that_stays_for_its_logs_is_no_failure_of_the_current_one(
    controller, client, cache, memory
):
    await controller.reconcile(KEY)
    run_pods(client)
    (failed,) = [pod for pod in client.objects(PODS) if "-trainer-a1-" in pod["metadata"]["name"]]
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": 1, "message": "boom"}}}
    client.put(PODS, failed | {"status": {"phase": "Failed", "containerStatuses": [ended]}})
    client.show(cache)
    before = remembered(cache, memory)
    assert before.failing_since == NOW
    await controller.reconcile(KEY)
    assert (status_of(client)["attempt"], len(pod_names(client, "trainer"))) == (2, 2)
    after = remembered(cache, memory)
    assert after.failing_since is None
