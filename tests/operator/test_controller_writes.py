"""What one reconcile leaves for the next: deletions under way, reports that were written, times."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import JOBS, PODS
from grpo_operator.controller import Controller
from grpo_operator.observe.observed import Refusal

from .controlled_job import KEY, a_job, pod_names, status_of
from .fake_cluster import IMAGE, NOW, report, spec


async def test_a_pod_that_was_asked_to_end_counts_as_ending_before_the_watch_says_so(running, client, cache):
    job = a_job(spec=spec(rollout={"replicas": 1}).to_object())
    job["metadata"]["generation"] = 2
    client.put(JOBS, job)
    client.show(cache)
    await running.reconcile(KEY)
    ending = [p["metadata"]["name"] for p in client.objects(PODS) if "deletionTimestamp" in p["metadata"]]
    assert [name[-len("rollout-1-i0") :] for name in ending] == ["rollout-1-i0"]
    await running.reconcile(KEY)
    assert status_of(client)["rollout"]["replicas"] == 1
    num_writes = client.num_writes
    await running.reconcile(KEY)
    assert (client.num_writes, len(pod_names(client))) == (num_writes, 2)


def write_as_another_operator(client: Any, **changes: Any) -> None:
    client.put(JOBS, a_job(status=status_of(client) | changes))


async def test_a_report_that_was_written_is_not_written_again_over_that_of_another_operator(
    running, client, cache, state
):
    state.remember_progress(KEY, report(tokens_per_second=1.0), now=NOW)
    await running.reconcile(KEY)
    assert status_of(client)["tokensPerSecond"] == "1"
    write_as_another_operator(client, tokensPerSecond="9")
    client.show(cache)
    await running.reconcile(KEY)
    assert status_of(client)["tokensPerSecond"] == "9"


async def test_a_report_from_before_a_conflict_is_not_written_over_what_another_operator_wrote(
    running, client, state
):
    state.remember_progress(KEY, report(tokens_per_second=1.0), now=NOW)
    write_as_another_operator(
        client, step=4, progress="4/10", policyVersion="1.4", tokensPerSecond="9", reward="0.5"
    )
    for _ in range(2):  # the first look meets the conflict
        await running.reconcile(KEY)
    assert status_of(client)["tokensPerSecond"] == "9"


async def test_every_time_in_a_status_is_a_whole_second(client, cache, state):
    """As Kubernetes writes them, and as `kubectl wait` and others read them."""
    exact = NOW + timedelta(microseconds=123_456)
    controller = Controller(client, cache, state, runtime_image=IMAGE, clock=lambda: exact)
    await controller.reconcile(KEY)
    status = GRPOJobStatus.from_object(status_of(client))
    times: list[datetime | None] = [status.start_time, *(c.last_transition_time for c in status.conditions)]
    assert set(times) == {NOW}


async def test_what_is_remembered_of_a_job_goes_when_the_job_is_gone(running, client, cache, state):
    state.remember_refusal(
        KEY, Refusal("a-pod", ReasonMessage("QuotaExceeded", "does not fit")), now=NOW, chance=0.5
    )
    client.remove(JOBS, "copy")
    client.show(cache)
    assert await running.reconcile(KEY) is None
    assert state.remember_refusal(KEY, None, now=NOW, chance=0.5) is False  # none is known any more


def failed_beside_an_engine_that_is_not_ready(client: Any, cache: Any) -> str:
    """The trainer has ended for good; returns the name of the engine."""
    (trainer,) = pod_names(client, "trainer")
    engine = pod_names(client, "rollout")[1]
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": 40, "reason": "Error"}}}
    client.put(
        PODS, {"metadata": {"name": trainer}, "status": {"phase": "Failed", "containerStatuses": [ended]}}
    )
    client.put(PODS, {"metadata": {"name": engine}, "status": {"phase": "Running", "conditions": []}})
    client.show(cache)
    return engine


async def test_a_pod_that_is_stopped_stays_and_is_asked_once(running, client, cache):
    engine = failed_beside_an_engine_that_is_not_ready(client, cache)
    await running.reconcile(KEY)
    assert (status_of(client)["phase"], pod_names(client, "rollout")) == ("Failed", [engine])
    (stopped,) = [pod for pod in client.objects(PODS) if pod["metadata"]["name"] == engine]
    assert stopped["spec"]["activeDeadlineSeconds"] == 1 and stopped["spec"]["containers"]
    await running.reconcile(KEY)  # the other engine is no longer counted
    num_writes = client.num_writes
    await running.reconcile(KEY)
    assert client.num_writes == num_writes


@pytest.mark.parametrize(
    "refusal", [errors.Forbidden("cannot patch resource pods"), errors.Invalid("activeDeadlineSeconds")]
)
async def test_a_pod_that_cannot_be_stopped_is_deleted(running, client, cache, refusal):
    failed_beside_an_engine_that_is_not_ready(client, cache)
    client.unchangeable[PODS] = refusal
    await running.reconcile(KEY)
    assert pod_names(client, "rollout") == []
