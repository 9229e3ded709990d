"""What an operator has to do with a job at all: one that another controller manages, and one that is deleted
when its time is over."""

from datetime import timedelta
from typing import Any

import pytest

from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import JOBS, PODS, Kind, KubeObject
from grpo_operator.controller import Controller
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.process_state import ProcessState

from .controlled_job import KEY, Clock, a_job, controller_of, look, pod_names, run_pods, status_of
from .fake_api_server import FakeApiServer
from .fake_cluster import NOW, spec

AT = f"{NOW:%Y-%m-%dT%H:%M:%SZ}"


def put(client: FakeApiServer, cache: Cache, *, status: Any = None, **fields: Any) -> None:
    """A job with these fields of the spec, as an operator sees it that starts now."""
    client.put(
        JOBS, a_job(spec=spec().to_object() | fields, **({} if status is None else {"status": status}))
    )
    client.show(cache)


async def test_a_job_that_another_controller_manages_is_not_touched(client, cache, state):
    put(client, cache, managedBy="kueue.x-k8s.io/multikueue")
    num_writes, controller = client.num_writes, controller_of(client, cache, state)
    assert await controller.reconcile(KEY) is None
    assert (client.num_writes, client.objects(PODS)) == (num_writes, ())


async def test_neither_is_one_whose_status_only_that_controller_can_read(client, cache, state):
    put(client, cache, managedBy="kueue.x-k8s.io/multikueue", status={"phase": "Dispatched"})
    num_writes, controller = client.num_writes, controller_of(client, cache, state)
    assert await controller.reconcile(KEY) is None
    assert client.num_writes == num_writes


async def test_a_job_that_names_this_operator_is_one_of_ours(client, cache, state):
    put(client, cache, managedBy="grpo.dev/grpo-operator")
    await look(controller_of(client, cache, state))
    assert pod_names(client, "trainer") != []


class WithoutTheRight(FakeApiServer):
    """Serves an operator that may not delete objects of a kind."""

    def __init__(self, kind: Kind, refusal: errors.KubernetesError) -> None:
        super().__init__()
        self.kind, self.refusal = kind, refusal

    async def delete(self, kind: Kind, namespace: str, name: str, **more: Any) -> KubeObject | None:
        if kind == self.kind:
            raise self.refusal
        return await super().delete(kind, namespace, name, **more)


@pytest.mark.parametrize("kind", [errors.Forbidden, errors.Invalid], ids=["a Role", "an admission policy"])
async def test_an_operator_that_may_not_delete_a_job_says_so_on_it_and_tries_again(
    kind: type[errors.KubernetesError],
):
    client, cache = WithoutTheRight(JOBS, kind("cannot delete")), Cache()
    ended = {"type": "Finished", "status": "True", "reason": "Completed", "lastTransitionTime": AT}
    status = {"phase": "Succeeded", "completionTime": AT, "conditions": [ended | {"observedGeneration": 1}]}
    put(client, cache, status=status, ttlSecondsAfterFinished=0)
    controller = controller_of(client, cache)
    await look(controller)
    assert status_of(client)["notes"] == (
        "this operator may not delete the job, as ttlSecondsAfterFinished has it; its administrator gives it "
        "the right with deleteExpiredJobs=true of the chart: cannot delete"
    )
    assert await controller.reconcile(KEY) == 600
    client.kind = PODS
    await controller.reconcile(KEY)
    assert client.objects(JOBS) == ()


async def test_a_pod_that_may_not_be_deleted_is_not_told_as_the_job():
    client, cache = WithoutTheRight(PODS, errors.Forbidden("a webhook keeps pods")), Cache()
    put(client, cache, ttlSecondsAfterFinished=0)
    controller = controller_of(client, cache)
    await look(controller)
    run_pods(client)
    complete(client, cache)
    with pytest.raises(errors.Forbidden, match="a webhook keeps pods"):
        await controller.reconcile(KEY)
    assert (status_of(client)["phase"], status_of(client).get("notes", "")) == ("Succeeded", "")


def complete(client: FakeApiServer, cache: Cache) -> None:
    """The trainer has done every step."""
    done = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    (trainer,) = (pod for pod in client.objects(PODS) if "-trainer-" in pod["metadata"]["name"])
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "trainer", "state": done}]}
    client.put(PODS, trainer | {"status": status})
    client.show(cache)


async def ended_job(client: FakeApiServer, cache: Cache, state: ProcessState, clock: Clock) -> Controller:
    """The operator of a job that has just succeeded and has a minute left."""
    put(client, cache, ttlSecondsAfterFinished=60)
    controller = controller_of(client, cache, state, clock=clock)
    await look(controller)
    run_pods(client)
    complete(client, cache)
    await look(controller)
    assert status_of(client)["phase"] == "Succeeded"
    return controller


async def test_a_job_whose_time_is_over_is_deleted_with_its_pods_also_by_an_operator_that_was_away(
    client, cache, state
):
    clock = Clock()
    controller = await ended_job(client, cache, state, clock)
    clock.now = NOW + timedelta(seconds=59)
    assert await controller.reconcile(KEY) == 1

    another, clock.now = Cache(), NOW + timedelta(days=1)
    client.show(another)
    await controller_of(client, another, clock=clock).reconcile(KEY)
    assert (client.objects(JOBS), client.objects(PODS)) == ((), ())
    assert another.job(KEY) is None


async def test_a_time_that_was_raised_before_the_deletion_counts_although_the_watch_has_not_shown_it(
    client, cache, state
):
    clock = Clock()
    controller = await ended_job(client, cache, state, clock)
    (found,) = client.objects(JOBS)
    client.put(JOBS, found | {"spec": found["spec"] | {"ttlSecondsAfterFinished": 3600}})
    clock.now = NOW + timedelta(seconds=60)
    assert await controller.reconcile(KEY) == 0
    assert await controller.reconcile(KEY) == 3600 - 60
    clock.now = NOW + timedelta(hours=1)
    await controller.reconcile(KEY)
    assert client.objects(JOBS) == ()


async def test_a_job_that_is_gone_by_then_is_no_error(client, cache, state):
    clock = Clock()
    controller = await ended_job(client, cache, state, clock)
    (found,) = client.objects(JOBS)
    client.remove(JOBS, "copy")
    client.put(JOBS, found | {"metadata": found["metadata"] | {"uid": "another"}})
    clock.now = NOW + timedelta(seconds=60)
    await controller.reconcile(KEY)
    (another,) = client.objects(JOBS)
    assert another["metadata"]["uid"] == "another"


async def test_the_end_is_in_status_before_a_job_without_time_left_is_deleted(client, cache, state):
    put(client, cache, ttlSecondsAfterFinished=0)
    controller = controller_of(client, cache, state)
    await look(controller)
    run_pods(client)
    complete(client, cache)
    await controller.reconcile(KEY)
    assert client.objects(JOBS) == ()
