"""The release is installed, upgraded, removed and installed again while a job runs, and the job is not
affected: from `kubectl apply` to its model directory, and to its deletion.

The tests share the job and run in the order they are written in.
"""

import base64

import pytest

from grpo_cluster.settings import ClusterError
from grpo_demo.follow import condition
from grpo_demo.install import CHART, RELEASE
from grpo_scenarios.namespace import Namespace, Object, copy_job, volume_claim
from grpo_scenarios.pace import hurry, slow_down

pytestmark = pytest.mark.cluster

JOB = "copy"
CLAIM = "checkpoints"
OPERATOR = "app.kubernetes.io/name=grpo-operator"
FIRST_STEPS, STEPS, MAX_STALENESS = 3, 100, 2
PACE_SECONDS = 1.0
"""The job runs long enough and uses little of the machine."""


@pytest.fixture(scope="module")
def job(namespace: Namespace) -> str:
    """A job of one rank and one engine that runs as long as all tests of this file, and samples ahead."""
    small = copy_job(
        JOB,
        claim=CLAIM,
        algorithm={"steps": STEPS, "promptsPerStep": 2},
        trainer={"processesPerNode": 1},
        rollout={"replicas": 1},
        **{"async": {"maxStaleness": MAX_STALENESS}},
    )
    namespace.apply(slow_down(small, seconds=PACE_SECONDS), volume_claim(CLAIM), small)
    namespace.wait_for_step(JOB, FIRST_STEPS, timeout_seconds=300)
    return JOB


def pods_of_the_job(namespace: Namespace) -> dict[str, str]:
    found = namespace.pods(f"grpo.dev/job={JOB}")
    assert all("deletionTimestamp" not in pod["metadata"] for pod in found)
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def operators(namespace: Namespace) -> set[str]:
    return {
        pod["metadata"]["name"] for pod in namespace.pods(OPERATOR) if pod["status"]["phase"] == "Running"
    }


def rights(namespace: Namespace) -> list[Object]:
    found: list[Object] = namespace.target.get(
        "roles,rolebindings", "--namespace", namespace.name, "--selector", OPERATOR
    )["items"]
    return found


def test_no_token_is_in_an_object_or_a_log(job: str, namespace: Namespace) -> None:
    (secret,) = namespace.target.get(
        "secrets", "--namespace", namespace.name, "--selector", f"grpo.dev/job={job}"
    )["items"]
    tokens = [base64.b64decode(value).decode() for value in secret["data"].values()]
    secrets = [*tokens, *secret["data"].values()]
    assert len(set(tokens)) == 2 and all(len(token) >= 40 for token in tokens)

    kinds = "grpojobs,pods,services,configmaps,networkpolicies,events,leases,deployments"
    shown = {"objects": namespace.kubectl("get", kinds, "--output", "yaml")}
    names = {
        pod["metadata"]["name"] for pod in [*namespace.pods(f"grpo.dev/job={job}"), *namespace.pods(OPERATOR)]
    }
    assert len(names) == 3
    shown |= {name: namespace.kubectl("logs", name) for name in names}
    for name in pods_of_the_job(namespace):
        script = "import pathlib; print([p.read_bytes() for p in pathlib.Path('/proc').glob('[0-9]*/%s')])"
        for kind in ("cmdline", "environ"):
            shown[f"{name} {kind}"] = namespace.execute(name, "python3.11", "-c", script % kind)
    assert all(shown.values())
    assert [where for where, text in shown.items() if any(value in text for value in secrets)] == []


def test_an_upgrade_replaces_the_operator_and_leaves_a_running_job_alone(
    job: str, namespace: Namespace
) -> None:
    pods, before = pods_of_the_job(namespace), operators(namespace)
    upgrade(namespace, "--set", "log.level=debug", "--set", "resyncSeconds=30")
    namespace.wait_until(
        lambda: len(now := operators(namespace)) == 1 and now.isdisjoint(before),
        "another operator pod instead of the first",
        timeout_seconds=30,
    )
    step = namespace.status(job)["step"]
    namespace.wait_for_step(job, step + 2, timeout_seconds=60)
    assert pods_of_the_job(namespace) == pods


def test_a_wrong_value_is_refused_before_anything_changes(job: str, namespace: Namespace) -> None:
    before = operators(namespace)
    with pytest.raises(ClusterError, match="additional properties 'replicas' not allowed"):
        upgrade(namespace, "--set", "replicas=2")
    assert operators(namespace) == before


def test_an_uninstall_removes_the_operator_and_its_rights_and_keeps_the_crd_the_jobs_and_their_pods(
    job: str, namespace: Namespace
) -> None:
    pods = pods_of_the_job(namespace)
    namespace.target.run_helm("uninstall", RELEASE, "--namespace", namespace.name, "--wait")
    namespace.wait_until(
        lambda: not namespace.pods(OPERATOR), "the operator's pod to be gone", timeout_seconds=30
    )
    assert rights(namespace) == []
    assert namespace.target.get("crd", "grpojobs.grpo.dev")["metadata"]["name"] == "grpojobs.grpo.dev"
    # The trainer does not need the operator: it continues training.
    steps = len(namespace.metrics(CLAIM))
    namespace.wait_until(
        lambda: len(namespace.metrics(CLAIM)) >= steps + 3, "three more steps", timeout_seconds=60
    )
    assert pods_of_the_job(namespace) == pods


def test_a_new_release_continues_the_job_and_it_completes(job: str, namespace: Namespace) -> None:
    pods = pods_of_the_job(namespace)
    namespace.install_operator()
    hurry(namespace, claim=CLAIM)
    status = namespace.wait_for_finish(job)
    assert condition(namespace.job(job), "Complete") == "True", namespace.describe()
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)
    (trainer,) = namespace.pods(f"grpo.dev/job={job},grpo.dev/role=trainer")
    assert pods[trainer["metadata"]["name"]] == trainer["metadata"]["uid"]
    metrics = namespace.metrics(CLAIM)
    assert [(record.step, record.attempt) for record in metrics] == [(n, 1) for n in range(1, STEPS + 1)]
    assert status["progress"] == f"{STEPS}/{STEPS}"
    assert condition(namespace.job(job), "Failed") == "False"
    header, row = namespace.kubectl("get", "grpojobs", job).splitlines()
    printed = dict(zip(header.split(), row.split(), strict=True))
    assert float(printed["REWARD"]) == pytest.approx(metrics[-1].values["reward"], abs=5e-4)
    model = namespace.output_folder(CLAIM) / "model"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in model.iterdir()}


def test_it_sampled_ahead_and_trained_nothing_that_is_too_old(job: str, namespace: Namespace) -> None:
    shown = namespace.status(job)["async"]
    assert 0 < float(shown["meanStaleness"]) <= shown["maxStaleness"] <= MAX_STALENESS
    steps = [record.values for record in namespace.metrics(CLAIM)]
    staleness = [values["async/staleness/max"] for values in steps]
    assert max(staleness) <= MAX_STALENESS and sum(staleness) > STEPS / 2
    assert max(values.get("sync/max_probe_error", 0.0) for values in steps) <= 1e-4


def test_deleting_a_job_removes_its_children_even_without_an_operator(job: str, namespace: Namespace) -> None:
    assert namespace.children(job)
    namespace.scale_operator(0)
    namespace.kubectl("delete", "grpojob", job)
    namespace.wait_until(lambda: not namespace.children(job), "no child of the job", timeout_seconds=60)


def upgrade(namespace: Namespace, *values: str) -> None:
    """Run `helm upgrade` of the release with other values."""
    namespace.target.run_helm(
        "upgrade", RELEASE, str(CHART), "--namespace", namespace.name, "--reuse-values", *values,
        "--take-ownership", "--wait", "--timeout", "90s",
    )  # fmt: skip
