"""Jobs whose engines sample while they train, on real pods: an engine is killed, one is given back, and a
training process is killed."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo_api.contract.endpoints import METRICS_PATH, TRAINER_PORT
from grpo_demo.follow import condition
from grpo_runtime.report.metrics_file import METRICS_FILE, parse_metrics
from grpo_runtime.report.samples import read_samples
from grpo_scenarios.kill import KILL_A_RANK
from grpo_scenarios.namespace import Namespace, copy_job, volume_claim
from grpo_scenarios.pace import hurry, slow_down

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB, CLAIM = "ahead", "runs"
GIVEN_BACK = "given-back"
STEPS, MAX_STALENESS = 40, 2


def test_a_job_that_samples_ahead_bears_kills_and_trains_nothing_that_is_too_old(
    namespace: Namespace,
) -> None:
    job = copy_job(
        JOB,
        claim=CLAIM,
        algorithm={"steps": STEPS},
        checkpoint={"everySteps": 10},
        **{"async": {"maxStaleness": MAX_STALENESS}},
    )
    namespace.apply(slow_down(job, seconds=0.2, is_held=True), volume_claim(CLAIM), job)
    namespace.wait_for_step(JOB, 5)
    engines = sorted(pod["metadata"]["name"] for pod in namespace.pods_of(JOB, "rollout"))
    namespace.delete_pod(engines[0], is_graceful=False)
    namespace.wait_for_step(JOB, 10)
    wait_for_engines(namespace, 2)
    namespace.kubectl("scale", "grpojob", JOB, "--replicas", "1")
    wait_for_engines(namespace, 1)
    namespace.wait_for_step(JOB, 15)
    shown = namespace.status(JOB)["async"]
    assert 0 < float(shown["meanStaleness"]) <= shown["maxStaleness"] <= MAX_STALENESS
    (trainer,) = namespace.pods_of(JOB, "trainer")
    # what the alert about lost engines compares with is what the job was scaled to
    assert engines_asked_for(namespace, trainer["metadata"]["name"]) == 1
    namespace.execute(trainer["metadata"]["name"], "python3.11", "-c", KILL_A_RANK)
    namespace.wait_until(lambda: namespace.status(JOB).get("attempt") == 2, "attempt 2", timeout_seconds=120)
    hurry(namespace, claim=CLAIM)
    namespace.wait_for_finish(JOB, timeout_seconds=300)

    assert condition(namespace.job(JOB), "Complete") == "True", namespace.describe()
    steps = [record.values for record in namespace.metrics(CLAIM)]
    assert len(steps) == STEPS
    staleness = [values["async/staleness/max"] for values in steps]
    assert max(staleness) <= MAX_STALENESS and sum(staleness) > STEPS / 2
    assert max(values.get("sync/max_probe_error", 0.0) for values in steps) <= 1e-4
    assert (
        sum(values["reward"] for values in steps[-10:]) / 10
        > sum(values["reward"] for values in steps[:10]) / 10
    )

    records = parse_metrics((namespace.output_folder(CLAIM) / METRICS_FILE).read_text())
    checksums = {attempt: {} for attempt in (1, 2)}
    for record in records:
        checksums[record.attempt][record.step] = record.values["journal/weights_checksum"]
    again = checksums[1].keys() & checksums[2].keys()
    assert again, json.dumps(checksums)
    assert all(checksums[1][step] == checksums[2][step] for step in again)


def test_an_engine_that_is_given_back_hands_over_what_it_samples(namespace: Namespace) -> None:
    """Engines that may be a whole run ahead, four completions at a time, are busy after a step of it."""
    steps = 8
    job = copy_job(
        GIVEN_BACK,
        claim=GIVEN_BACK,
        algorithm={"steps": steps, "promptsPerStep": 8, "groupSize": 16},
        sampling={"maxTokens": 200},
        engine={"maxModelLen": 256, "maxNumSeqs": 4},
        report={"samplesEverySteps": 1},
        **{"async": {"maxStaleness": steps, "pauseMode": "Abort"}},
    )
    namespace.apply(volume_claim(GIVEN_BACK), job)
    namespace.wait_for_step(GIVEN_BACK, 1)
    (leaving,) = (
        pod["metadata"]["name"]
        for pod in namespace.pods_of(GIVEN_BACK, "rollout")
        if "-rollout-1-" in pod["metadata"]["name"]
    )
    with ThreadPoolExecutor(1) as beside:
        log = beside.submit(namespace.kubectl, "logs", "--follow", leaving)
        namespace.kubectl("scale", "grpojob", GIVEN_BACK, "--replicas", "1")
    assert "handing over what was sampled for" in log.result(), log.result()
    namespace.wait_for_finish(GIVEN_BACK)
    assert condition(namespace.job(GIVEN_BACK), "Complete") == "True", namespace.describe()
    assert namespace.status(GIVEN_BACK)["attempt"] == 1
    output = namespace.output_folder(GIVEN_BACK)
    samples = [sample for step in range(1, steps + 1) for sample in read_samples(output, step=step)]
    assert len(samples) == steps * 8 * 16
    went_on = {sample.segments for sample in samples}
    assert any(re.search("-rollout-1-.*-rollout-0-", segments) for segments in went_on), went_on


def wait_for_engines(namespace: Namespace, num: int) -> None:
    """Until so many have pods."""
    namespace.wait_until(
        lambda: len(namespace.pods_of(JOB, "rollout")) == num, f"{num} engines", timeout_seconds=60
    )


def engines_asked_for(namespace: Namespace, trainer: str) -> float:
    """What a trainer pod serves Prometheus about the engines that its job asks for."""
    path = f"/api/v1/namespaces/{namespace.name}/pods/{trainer}:{TRAINER_PORT}/proxy{METRICS_PATH}"
    (found,) = (
        line
        for line in namespace.kubectl("get", "--raw", path).splitlines()
        if line.startswith("grpo_engines_desired")
    )
    return float(found.split()[-1])
