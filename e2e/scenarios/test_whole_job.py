"""A job from `kubectl apply` to its model directory, and the same job again. `make test` has its parts in
test_install.py and test_kills.py."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from grpo_demo.follow import condition
from grpo_runtime.report.metrics_file import MetricsRecord
from grpo_scenarios.namespace import Namespace, Object, copy_job, volume_claim

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB = "copy"
CLAIM = "checkpoints"
AGAIN = "again"
STEPS = 30
NOT_COMPUTED = ("seconds", "step_time", "per_second", "sent_bytes")
"""How the names of metrics end that depend on the clock, or on which engines joined at the same time."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished job and the metrics it wrote."""

    job: Object
    metrics: list[MetricsRecord]


@pytest.fixture(scope="module")
def run(namespace: Namespace) -> Iterator[FinishedRun]:
    """The steps of copy on two ranks and two engines."""
    namespace.apply(
        volume_claim(CLAIM), copy_job(JOB, claim=CLAIM, algorithm={"steps": STEPS}, checkpoint={"keep": 20})
    )
    namespace.wait_for_finish(JOB)
    yield FinishedRun(job=namespace.job(JOB), metrics=namespace.metrics(CLAIM))


def test_a_job_ends_complete_with_every_step_in_its_metrics(run: FinishedRun, namespace: Namespace) -> None:
    assert condition(run.job, "Complete") == "True", namespace.describe()
    assert condition(run.job, "Failed") == "False"
    assert [record.step for record in run.metrics] == list(range(1, STEPS + 1))
    assert run.job["status"]["progress"] == f"{STEPS}/{STEPS}"
    assert run.job["status"]["restarts"] == 0


def test_the_reward_that_kubectl_prints_is_the_one_in_the_metrics_file(
    run: FinishedRun, namespace: Namespace
) -> None:
    header, row = namespace.kubectl("get", "grpojobs", JOB).splitlines()
    printed = dict(zip(header.split(), row.split(), strict=True))
    assert float(printed["REWARD"]) == pytest.approx(run.metrics[-1].values["reward"], abs=5e-4)


def test_after_every_sync_the_engines_agree_with_the_trainer(run: FinishedRun) -> None:
    assert max(record.values["sync/max_probe_error"] for record in run.metrics) <= 1e-4
    assert {record.values["sync/engines"] for record in run.metrics} == {2.0}
    # The engines' logprobs of all sampled tokens, not only of the probe.
    assert (
        max(record.values.get("sampling/sampling_logp_difference/max", 0.0) for record in run.metrics) <= 1e-4
    )


def test_the_policy_is_on_the_claim_as_a_model_directory(run: FinishedRun, namespace: Namespace) -> None:
    model = namespace.output_folder(CLAIM) / "model"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in model.iterdir()}


def test_no_token_is_in_a_log_or_an_object(run: FinishedRun, namespace: Namespace) -> None:
    secrets = namespace.target.get(
        "secrets", "--namespace", namespace.name, "--selector", f"grpo.dev/job={JOB}"
    )
    tokens = [value for secret in secrets["items"] for value in secret["data"].values()]
    assert len(tokens) == 2
    shown = namespace.describe() + str(namespace.job(JOB)) + str(namespace.pods(f"grpo.dev/job={JOB}"))
    for token in tokens:
        assert base64.b64decode(token).decode() not in shown


def test_the_same_job_again_gives_the_same_tokens_rewards_and_weights_to_the_last_bit(
    run: FinishedRun, namespace: Namespace
) -> None:
    namespace.apply(volume_claim(AGAIN), copy_job(AGAIN, claim=AGAIN, algorithm={"steps": 20}))
    namespace.wait_for_finish(AGAIN)

    first, second = (
        [repeatable(record) for record in found[:20]] for found in (run.metrics, namespace.metrics(AGAIN))
    )
    assert len(second) == 20 and "completions/crc32" in second[0]
    assert first == second
    for file in ("optimizer.safetensors", "model/model.safetensors"):
        one, other = (
            namespace.output_folder(claim) / "checkpoints/step-000020" / file for claim in (CLAIM, AGAIN)
        )
        assert one.read_bytes() == other.read_bytes()


def repeatable(record: MetricsRecord) -> dict[str, float]:
    """The metrics of a step that must be the same in every run."""
    return {name: value for name, value in record.values.items() if not name.endswith(NOT_COMPUTED)}
