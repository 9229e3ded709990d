"""Two operators, of which one reads an older schema of GRPOJob than the other, as from an API server that
lags behind: neither undoes what the other writes."""

from typing import Any

import pytest

from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.cluster.kinds import JOBS, PODS
from grpo_operator.controller import Controller
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.served_schema import compare

from .controlled_job import KEY, condition_of, controller_of, run_pods, status_of
from .fake_api_server import FakeApiServer, job_schema
from .fake_cluster import NOW
from .test_served_schema import without

DIGEST = "sha256:" + "a" * 64
NOTE = "the GRPOJob CRD is older"


class TwoOperators:
    """Each with a cache and a memory of its own, on one API server that has the newest CRD."""

    def __init__(self, client: FakeApiServer, *lacking: str) -> None:
        self._client = client
        self.caches = (Cache(), Cache())
        self.caches[1].served_schema = compare(without(*lacking), release="9")
        self.newer, self.older = (controller_of(client, cache) for cache in self.caches)

    async def look(self, *who: Controller) -> None:
        """Each in its turn sees what there is, and does what is due."""
        for controller in who:
            for cache in self.caches:
                self._client.show(cache)
            await controller.reconcile(KEY)

    async def run(self) -> None:
        """All pods run, and the one with the newest schema says so."""
        await self.look(self.newer, self.newer)
        run_pods(self._client)
        for pod in self._client.objects(PODS):
            container = {"name": pod["spec"]["containers"][0]["name"], "imageID": DIGEST, "ready": True}
            status = pod["status"] | {"containerStatuses": [container | {"restartCount": 0, "state": {}}]}
            self._client.put(PODS, pod | {"status": status})
        await self.look(self.newer)
        assert status_of(self._client)["phase"] == "Running"


@pytest.mark.parametrize("lacking", ["status.imageId", "status.checkpointStep", "spec.stallTimeoutSeconds"])
async def test_they_do_not_write_in_turn(client: FakeApiServer, lacking: str):
    both = TwoOperators(client, lacking)
    await both.run()
    await both.look(both.older, both.newer)
    num_writes, before = client.num_writes, status_of(client)
    for _ in range(5):
        await both.look(both.older, both.newer)
    assert (client.num_writes, status_of(client)) == (num_writes, before)


async def test_a_write_of_the_one_with_the_older_schema_removes_nothing(client: FakeApiServer):
    both = TwoOperators(client, "status.imageId", "status.failuresSinceProgress", "status.rollout.current")
    await both.run()
    (job,) = client.objects(JOBS)
    client.remove(PODS, next(p["metadata"]["name"] for p in client.objects(PODS) if "-trainer-" in str(p)))
    await both.look(both.older, both.older)
    status = status_of(client)
    assert status["attempt"] == job["status"]["attempt"] + 1
    assert (status["imageId"], status["failuresSinceProgress"]) == (DIGEST, 0)
    assert "current" in status["rollout"]


async def test_what_an_older_crd_drops_from_a_stored_status_is_not_written_again(client: FakeApiServer):
    both = TwoOperators(client, "status.imageId")
    await both.run()
    await both.look(both.older)
    client.schema_of_jobs = without("status.imageId")
    client.remove(PODS, next(p["metadata"]["name"] for p in client.objects(PODS) if "-trainer-" in str(p)))
    await both.look(both.older)
    assert status_of(client)["attempt"] == 2 and "imageId" not in status_of(client)


async def test_the_note_about_the_crd_goes_once_the_operator_that_made_it_sees_the_newer_one(
    client: FakeApiServer,
):
    both = TwoOperators(client, "spec.stallTimeoutSeconds")
    await both.run()
    await both.look(both.older, both.newer)
    assert NOTE in condition_of(client, "Ready")["message"]
    both.caches[1].served_schema = compare(job_schema(), release="9")
    await both.look(both.newer, both.older)
    assert NOTE not in condition_of(client, "Ready")["message"]


def test_conditions_and_choices_that_are_stored_stay_although_the_schema_lacks_them():
    served = job_schema()
    status = served["properties"]["status"]["properties"]
    status["conditions"]["items"]["properties"]["type"]["enum"].remove("Restarting")
    schema = compare(served, release="9")
    each: dict[str, Any] = {"status": "True", "reason": "A", "observedGeneration": 1, "message": ""}
    each["lastTransitionTime"] = f"{NOW:%Y-%m-%dT%H:%M:%SZ}"
    stored = {"conditions": [each | {"type": kind} for kind in ("Ready", "Restarting")]}
    fitted = schema.fit_object(GRPOJobStatus.from_object(stored), shown=stored)
    assert [found["type"] for found in fitted["conditions"]] == ["Ready", "Restarting"]
    unseen = schema.fit_object(GRPOJobStatus.from_object(stored), shown={})
    assert [found["type"] for found in unseen["conditions"]] == ["Ready"]
