"""What the operator holds of hundreds of jobs: text, and only what is read."""

import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from grpo_operator.children.config import pod_templates, stored_spec
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS, PODS, WATCHED, Kind
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.from_cache import job_view
from grpo_operator.observe.stored import pruned, store

from .controlled_job import KEY, a_job, controller_of, run_pods
from .fake_api_server import FakeApiServer
from .fake_cluster import UID

NUM_JOBS = 100


@pytest.fixture
async def of_a_job() -> dict[Kind, str]:
    """Every watched object of a job that runs, as JSON, by kind."""
    client, cache = FakeApiServer(), Cache()
    client.put(JOBS, a_job())
    controller = controller_of(client, cache)
    for _ in range(4):
        client.show(cache)
        await controller.reconcile(KEY)
        run_pods(client)
    assert len(client.objects(PODS)) == 3
    return {kind: json.dumps(client.objects(kind)) for kind in WATCHED}


def another(text: str, index: int) -> Any:
    """The objects of another job of the same size."""
    return json.loads(text.replace(UID, f"{UID}-{index}").replace('"copy', f'"copy-{index}'))


def held_bytes(fill: Callable[[], object]) -> int:
    """How much more memory is in use after `fill`."""
    gc.collect()
    tracemalloc.start()
    try:
        fill()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_job_in_the_cache_takes_little_more_than_its_text(of_a_job: dict[Kind, str]):
    cache = Cache()

    def fill() -> None:
        for index in range(NUM_JOBS):
            for kind, text in of_a_job.items():
                for item in another(text, index):
                    cache.put(kind, item)

    taken = held_bytes(fill) / NUM_JOBS
    size = sum(len(json.dumps(pruned(kind, i))) for kind, t in of_a_job.items() for i in json.loads(t))
    assert len(cache.job_keys()) == NUM_JOBS
    assert size < taken < size + 8 * 1024


def test_few_of_the_parsed_specs_and_templates_are_held(of_a_job: dict[Kind, str]):
    def read() -> None:
        for index in range(NUM_JOBS):
            assert job_view(another(of_a_job[JOBS], index)[0]).spec
            (config,) = another(of_a_job[CONFIG_MAPS], index)
            stored_spec(config)
            pod_templates(config)

    assert held_bytes(read) < 2 * 1024**2


def test_what_is_held_reads_as_what_was_kept_and_can_be_ordered_without_reading_it(
    of_a_job: dict[Kind, str],
):
    for kind, text in of_a_job.items():
        for item in json.loads(text):
            held, meta = store(kind, item), item["metadata"]
            assert held.read() == pruned(kind, item)
            assert (held.key, held.uid) == (("default", meta["name"]), meta["uid"])
            assert held.version == int(meta["resourceVersion"])
            assert held.job == (None if kind == JOBS else ("copy", UID))
            assert held.phase == item.get("status", {}).get("phase", "")


def test_what_one_reader_does_to_an_object_no_other_sees(of_a_job: dict[Kind, str]):
    cache = Cache()
    (job,) = json.loads(of_a_job[JOBS])
    cache.put(JOBS, job)
    found = cache.job(KEY)
    assert found is not None
    found["spec"].clear()
    assert cache.job(KEY) == pruned(JOBS, job)
