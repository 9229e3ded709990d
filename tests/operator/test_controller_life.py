"""What an operator has to do with a job at all: one that another controller manages, and one that is deleted
when its time is over."""

from datetime import timedelta
from typing import Any

from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import JOBS, PODS, Kind, KubeObject
from grpo_operator.observe.cache import Cache

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
    """Serves an operator whose Role is that of an older chart."""

    async def delete(self, kind: Kind, namespace: str, name: str, **more: Any) -> KubeObject | None:
        if kind == JOBS:
            raise errors.Forbidden(f'{kind.plural} "{name}" is forbidden: cannot delete')
        return await super().delete(kind, namespace, name, **more)


async def test_an_operator_that_may_not_delete_a_job_says_so_on_it():
    client, cache = WithoutTheRight(), Cache()
    ended = {"type": "Finished", "status": "True", "reason": "Completed", "lastTransitionTime": AT}
    status = {"phase": "Succeeded", "completionTime": AT, "conditions": [ended | {"observedGeneration": 1}]}
    put(client, cache, status=status, ttlSecondsAfterFinished=0)
    await look(controller_of(client, cache))
    notes = status_of(client)["notes"]
    assert notes.startswith("this operator may not delete the job") and notes.endswith("cannot delete")


async def test_a_job_whose_time_is_over_is_deleted_with_its_pods_also_by_an_operator_that_was_away(
    client, cache, state
):
    put(client, cache, ttlSecondsAfterFinished=60)
    clock = Clock()
    controller = controller_of(client, cache, state, clock=clock)
    await look(controller)
    run_pods(client)
    done = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    (trainer,) = (pod for pod in client.objects(PODS) if "-trainer-" in pod["metadata"]["name"])
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "trainer", "state": done}]}
    client.put(PODS, trainer | {"status": status})
    client.show(cache)
    await look(controller)
    assert status_of(client)["phase"] == "Succeeded"
    clock.now = NOW + timedelta(seconds=59)
    assert await controller.reconcile(KEY) == 1

    another, clock.now = Cache(), NOW + timedelta(days=1)
    client.show(another)
    await controller_of(client, another, clock=clock).reconcile(KEY)
    assert (client.objects(JOBS), client.objects(PODS)) == ((), ())
    assert another.job(KEY) is None
