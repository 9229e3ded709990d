"""A run keeps the pod templates that it started with, whichever release makes its later pods."""

import json
from typing import Any

import pytest

from grpo_api.contract.graces import TRAINER_GRACE_SECONDS
from grpo_operator.children.config import TEMPLATES_KEY, config_map
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.from_cache import job_and_pods, observe
from grpo_operator.observe.observed import Observed
from grpo_operator.observe.process_state import ProcessState

from .controlled_job import KEY, a_job
from .fake_cluster import IMAGE, NOW, UID, FakeCluster, spec, termination

MARKER = {"name": "OLDER_RELEASE", "value": "attempt ${attempt}, ${name}"}


def begun_by_older_release(**changes: Any) -> FakeCluster:
    """A job that runs, and whose stored templates have what this release does not make."""
    cluster = FakeCluster(spec(**{"checkpoint": {"claimName": "runs"}} | changes)).start()
    older = json.loads(json.dumps(cluster.pod_templates))
    for template in older.values():
        template["metadata"]["labels"]["older"] = "release"
        template["spec"]["containers"][0]["env"].append(MARKER)
    cluster.pod_templates = older
    return cluster


def marker(pod: dict[str, Any]) -> str:
    assert pod["metadata"]["labels"]["older"] == "release"
    found = [
        entry["value"] for entry in pod["spec"]["containers"][0]["env"] if entry["name"] == MARKER["name"]
    ]
    (value,) = found
    return str(value)


def test_the_next_attempt_is_made_from_the_template_the_run_started_with():
    cluster = begun_by_older_release(trainer={"numNodes": 2})
    cluster.end(cluster.pod("trainer-a1-1"), termination(1, reason="OOMKilled"))
    cluster.settle()
    cluster.vanish_deleted()
    cluster.settle()
    for index in (0, 1):
        name = cluster.pod(f"trainer-a2-{index}")
        pod = cluster.bodies[name]
        assert marker(pod) == f"attempt 2, {name}"
        assert (pod["metadata"]["name"], pod["spec"]["hostname"]) == (name, name)
        assert pod["metadata"]["labels"]["grpo.dev/attempt"] == "2"
        assert pod["metadata"]["labels"]["grpo.dev/node-index"] == str(index)
        variables = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
        assert variables["GRPO_MASTER_ADDR"].startswith(f"{cluster.pod('trainer-a2-0')}.")
        output = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "output")
        assert ("persistentVolumeClaim" in output) is (index == 0)


def test_a_replaced_engine_is_made_from_the_template_the_run_started_with():
    cluster = begun_by_older_release()
    cluster.vanish(cluster.pod("rollout-1-i0"))
    cluster.settle()
    name = cluster.pod("rollout-1-i1")
    pod = cluster.bodies[name]
    assert marker(pod).endswith(name)
    assert pod["metadata"]["labels"]["grpo.dev/replica"] == "1"


def test_the_grace_period_and_the_image_are_not_part_of_a_template():
    cluster = begun_by_older_release()
    for template in cluster.pod_templates.values():
        assert "terminationGracePeriodSeconds" not in template["spec"]
        assert IMAGE not in json.dumps(template)
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    made = cluster.bodies[cluster.pod("trainer-a2-0")]["spec"]
    assert made["terminationGracePeriodSeconds"] == TRAINER_GRACE_SECONDS
    assert made["containers"][0]["image"] == IMAGE


def test_pods_from_stored_templates_equal_those_that_were_made_before_they_were_stored():
    first, stored = FakeCluster(), FakeCluster()
    first.settle()
    stored.settle()
    stored.end(stored.pod("trainer-a1-0"), termination(1, "boom"))
    stored.settle()
    before = json.dumps(first.bodies[first.pod("trainer-a1-0")])
    after = json.dumps(stored.bodies[stored.pod("trainer-a2-0")])
    assert after == before.replace("-a1-", "-a2-").replace('"1"', '"2"')
    assert "${" not in before


def stored() -> tuple[JobSnapshot, dict[str, Any]]:
    run = JobSnapshot.take(namespace="default", job="copy", uid=UID, spec=spec(), image=IMAGE)
    return run, config_map(run).body


def observed(run: JobSnapshot, *configs: dict[str, Any]) -> Observed:
    cache = Cache()
    for number, manifest in enumerate(configs):
        meta = manifest["metadata"] | {"uid": f"config-{number}", "resourceVersion": "5"}
        cache.put(CONFIG_MAPS, manifest | {"metadata": meta})
    job = a_job(status={"attempt": 1, "revision": run.revision})
    cache.put(JOBS, job | {"metadata": job["metadata"] | {"resourceVersion": "5"}})
    found = job_and_pods(cache, KEY)
    assert found is not None
    return observe(cache, found, ProcessState().remember_pods(KEY, found, now=NOW))


def test_the_templates_are_in_the_config_map_of_the_run():
    run, manifest = stored()
    templates = observed(run, manifest).pod_templates
    assert set(templates) == {"trainer-0", "rollout"}
    assert templates["trainer-0"]["kind"] == "Pod"


def test_a_config_map_without_templates_is_a_problem_and_nothing_is_made_from_a_guess():
    run, manifest = stored()
    del manifest["data"][TEMPLATES_KEY]
    found = observed(run, manifest)
    assert (found.stored_spec, found.pod_templates) == (None, {})
    assert f"key '{TEMPLATES_KEY}' is missing" in found.stored_problem


@pytest.mark.parametrize("broken", ["{", "[]", '{"trainer": 1}'])
def test_templates_that_cannot_be_read_are_a_problem_and_nothing_is_made_from_a_guess(broken: str):
    run, manifest = stored()
    manifest["data"][TEMPLATES_KEY] = broken
    found = observed(run, manifest)
    assert (found.stored_spec, found.pod_templates) == (None, {})
    assert manifest["metadata"]["name"] in found.stored_problem
