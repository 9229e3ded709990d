"""The release comes, changes, goes and comes back while a job runs, and the job does not notice.

The tests share the job and run in the order they are written in.
"""

import base64

import pytest

from grpo_cluster.settings import ClusterError
from grpo_demo.follow import condition
from grpo_demo.install import CHART, RELEASE
from grpo_scenarios.trouble import config_map
from grpo_scenarios.world import Object, World, copy_job, volume_claim

pytestmark = pytest.mark.cluster

JOB = "copy"
CLAIM = "checkpoints"
OPERATOR = "app.kubernetes.io/name=grpo-operator"
FIRST_STEPS, STEPS = 3, 100
PACE = "pace"
SLOW = """
import time

def reward(completions, **_):
    time.sleep(0.5)
    return [0.0] * len(completions)
"""
"""A reward that takes its time: the job lives long and leaves the machine to the others."""


@pytest.fixture(scope="module")
def job(world: World) -> str:
    """A job of one rank and one engine, long enough to live through all of this."""
    small = copy_job(
        JOB,
        claim=CLAIM,
        algorithm={"steps": STEPS, "promptsPerStep": 2},
        trainer={"processesPerNode": 1},
        rollout={"replicas": 1},
    )
    code = {"name": PACE, "key": "pace.py", "function": "reward"}
    small["spec"]["rewards"].append({"name": PACE, "configMap": code, "weight": 0})
    world.apply(config_map(PACE, {"pace.py": SLOW}), volume_claim(CLAIM), small)
    world.wait_for_step(JOB, FIRST_STEPS, timeout_seconds=300)
    return JOB


def pods_of_the_job(world: World) -> dict[str, str]:
    found = world.pods(f"grpo.dev/job={JOB}")
    assert all("deletionTimestamp" not in pod["metadata"] for pod in found)
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def operators(world: World) -> set[str]:
    return {pod["metadata"]["name"] for pod in world.pods(OPERATOR) if pod["status"]["phase"] == "Running"}


def rights(world: World) -> list[Object]:
    found: list[Object] = world.target.get(
        "roles,rolebindings", "--namespace", world.namespace, "--selector", OPERATOR
    )["items"]
    return found


def test_no_token_is_in_an_object_or_a_log(job: str, world: World) -> None:
    (secret,) = world.target.get(
        "secrets", "--namespace", world.namespace, "--selector", f"grpo.dev/job={job}"
    )["items"]
    tokens = [base64.b64decode(value).decode() for value in secret["data"].values()]
    needles = [*tokens, *secret["data"].values()]
    assert len(set(tokens)) == 2 and all(len(token) >= 40 for token in tokens)

    kinds = "grpojobs,pods,services,configmaps,networkpolicies,events,leases,deployments"
    shown = {"objects": world.kubectl("get", kinds, "--output", "yaml")}
    names = {pod["metadata"]["name"] for pod in [*world.pods(f"grpo.dev/job={job}"), *world.pods(OPERATOR)]}
    assert len(names) == 3
    shown |= {name: world.kubectl("logs", name) for name in names}
    for name in pods_of_the_job(world):
        script = "import pathlib; print([p.read_bytes() for p in pathlib.Path('/proc').glob('[0-9]*/%s')])"
        for kind in ("cmdline", "environ"):
            shown[f"{name} {kind}"] = world.execute(name, "python3.11", "-c", script % kind)
    assert all(shown.values())
    assert [where for where, text in shown.items() if any(needle in text for needle in needles)] == []


def test_an_upgrade_replaces_the_operator_and_leaves_a_running_job_alone(job: str, world: World) -> None:
    pods, before = pods_of_the_job(world), operators(world)
    upgrade(world, "--set", "log.level=debug", "--set", "resyncSeconds=30")
    world.wait_until(
        lambda: len(now := operators(world)) == 1 and now.isdisjoint(before),
        "another operator pod in the place of the first",
        timeout_seconds=30,
    )
    step = world.status(job)["step"]
    world.wait_for_step(job, step + 2, timeout_seconds=60)
    assert pods_of_the_job(world) == pods


def test_a_wrong_value_is_refused_before_anything_changes(job: str, world: World) -> None:
    before = operators(world)
    with pytest.raises(ClusterError, match="additional properties 'replicas' not allowed"):
        upgrade(world, "--set", "replicas=2")
    assert operators(world) == before


def test_an_uninstall_takes_the_operator_and_its_rights_and_leaves_jobs_definition_and_pods(
    job: str, world: World
) -> None:
    pods = pods_of_the_job(world)
    world.target.run_helm("uninstall", RELEASE, "--namespace", world.namespace, "--wait")
    world.wait_until(lambda: not world.pods(OPERATOR), "the operator's pod to be gone", timeout_seconds=30)
    assert rights(world) == []
    assert world.target.get("crd", "grpojobs.grpo.dev")["metadata"]["name"] == "grpojobs.grpo.dev"
    # The trainer asks nobody: it goes on without an operator.
    steps = len(world.metrics(CLAIM))
    world.wait_until(lambda: len(world.metrics(CLAIM)) >= steps + 3, "three more steps", timeout_seconds=60)
    assert pods_of_the_job(world) == pods


def test_a_new_release_takes_the_job_up_where_it_is_and_it_completes(job: str, world: World) -> None:
    pods = pods_of_the_job(world)
    world.install_operator()
    status = world.wait_for_finish(job)
    assert condition(world.job(job), "Complete") == "True", world.describe()
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)
    (trainer,) = world.pods(f"grpo.dev/job={job},grpo.dev/role=trainer")
    assert pods[trainer["metadata"]["name"]] == trainer["metadata"]["uid"]
    assert [record.attempt for record in world.metrics(CLAIM)] == [1] * STEPS


def upgrade(world: World, *values: str) -> None:
    """`helm upgrade` of the release with other values."""
    world.target.run_helm(
        "upgrade", RELEASE, str(CHART), "--namespace", world.namespace, "--reuse-values", *values,
        "--take-ownership", "--wait", "--timeout", "90s",
    )  # fmt: skip
