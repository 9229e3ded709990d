"""Engines and trainers are lost in every phase of a weight sync while a job runs; it continues without them.

The tests share the job and run in the order they are written in. They are in `make test-matrix`; `make test`
kills engines and trainers in test_kills.py.
"""

import signal
import time
from collections.abc import Iterator

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.losses import PHASES, LossyJob, dropping, print_row, striking
from grpo_scenarios.namespace import Namespace, Object, copy_job, volume_claim
from grpo_scenarios.pace import hurry, slow_down
from grpo_scenarios.pod_processes import Container

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB, CLAIM = "copy", "checkpoints"
STEPS_PER_CASE = 12
PACE_SECONDS = 2.4
"""The job outlives all losses, and leaves the machine to engines that start."""


each_phase = pytest.mark.parametrize("phase", PHASES)


@pytest.fixture(scope="module")
def job(namespace: Namespace, request: pytest.FixtureRequest) -> Iterator[LossyJob]:
    num_cases = sum(item.path == request.path for item in request.session.items)
    changes = {
        "algorithm": {"steps": STEPS_PER_CASE * num_cases, "promptsPerStep": 4},
        "trainer": {"processesPerNode": 1},
        "sampling": {"maxTokens": 32},
        "checkpoint": {"everySteps": 2},
        "failurePolicy": {"maxRestarts": 3},
    }
    lossy = copy_job(JOB, claim=CLAIM, **changes)
    namespace.apply(slow_down(lossy, seconds=PACE_SECONDS, is_held=True), volume_claim(CLAIM), lossy)
    namespace.wait_for_step(JOB, 3)
    yield LossyJob(namespace, JOB, CLAIM)


@each_phase
def test_an_engine_that_is_killed_is_missed_and_comes_back_while_the_other_trains_on(
    phase: str, job: LossyJob
) -> None:
    before = settled(job)
    container = Container.of(job.engines()[0])
    if phase == "init":
        container = joining(job, container)
    with striking(phase, of=container, at=[container], number=signal.SIGKILL) as strike:
        at = strike.wait()
    found_seconds = job.require_missed(container.pod, phase, since=at)
    train_on(job, since=at)
    job.bring_back(container)
    back_at = time.time()
    job.wait_for_both()
    print_row("engine killed", phase, since=at, found_seconds=found_seconds)
    assert job.failed_syncs(since=back_at) == [], "its first sync is to succeed"
    assert counted(job.status) == counted(before)


@each_phase
def test_an_engine_that_freezes_is_missed_and_comes_back_while_the_other_trains_on(
    phase: str, job: LossyJob
) -> None:
    before = settled(job)
    container = Container.of(job.engines()[0])
    if phase == "init":
        container = joining(job, container)
    # in generation the server in front of the core goes on to answer
    hung = container.others() if phase == "generation" else container
    with striking(phase, of=container, at=[hung], number=signal.SIGSTOP) as strike:
        at = strike.wait()
    try:
        found_seconds = job.require_missed(container.pod, phase, since=at)
        job.wait_for_current(1)
        if phase == "generation":
            job.require_hung(container.pod, "its engine core does not answer", since=at)
        train_on(job, since=at)
    finally:
        hung.send(signal.SIGCONT)
    job.wait_for_both()
    print_row("engine hung", phase, since=at, found_seconds=found_seconds)
    assert container.identifier in containers_of(job), "it was restarted instead"
    assert counted(job.status) == counted(before)


@each_phase
def test_a_trainer_that_is_killed_is_the_next_attempt_with_the_same_engines(
    phase: str, job: LossyJob
) -> None:
    attempt, restarts, disruptions = counted(settled(job))
    engines, trainer = containers_of(job), Container.of(job.trainer())
    num_kills = 1
    if phase == "init":
        # an attempt meets its engines once, as it begins
        trainer.send(signal.SIGKILL)
        trainer, num_kills = job.wait_for_trainer(other_than=trainer.pod), 2
    engine = Container.of(job.engines()[0])
    with striking(phase, of=engine, at=[trainer], number=signal.SIGKILL) as strike:
        at = strike.wait()
    job.wait_for_trainer(other_than=trainer.pod)
    job.wait_for_steps(2, since=at)
    job.wait_for_both()
    print_row("trainer killed", phase, since=at)
    assert containers_of(job) == engines
    status = job.status
    assert counted(status) == (attempt + num_kills, restarts + num_kills, disruptions)
    assert (status["lastFailure"]["role"], status["lastFailure"]["exitCode"]) == ("trainer", 137)


def test_a_job_whose_engines_are_all_lost_says_so_and_goes_on_when_they_are_back(job: LossyJob) -> None:
    before = settled(job)
    engines = [Container.of(pod) for pod in job.engines()]
    with striking("generation", of=engines[0], at=engines, number=signal.SIGKILL) as strike:
        at = strike.wait()
    job.namespace.wait_until(
        lambda: "engine" in job.complaint("RolloutReady"), "a word on the job", timeout_seconds=15
    )
    for engine in engines:
        job.bring_back(engine)
    train_on(job, since=at)
    job.wait_for_both()
    print_row("all engines killed", "generation", since=at)
    assert counted(job.status) == counted(before)


def test_an_engine_that_is_cut_off_from_the_trainer_is_missed_and_comes_back(job: LossyJob) -> None:
    before = settled(job)
    trainer, engine = Container.of(job.trainer()), Container.of(job.engines()[0])
    with dropping((trainer.address, engine.address)):
        at = time.time()
        found_seconds = job.require_missed(engine.pod, since=at)
        train_on(job, since=at)
    job.wait_for_both()
    print_row("engine and trainer cut off", since=at, found_seconds=found_seconds)
    assert engine.identifier in containers_of(job)
    assert counted(job.status) == counted(before)


def test_a_network_that_loses_every_twentieth_packet_costs_no_attempt(job: LossyJob) -> None:
    before = settled(job)
    trainer, engines = Container.of(job.trainer()), [Container.of(pod) for pod in job.engines()]
    at = time.time()
    with dropping(*((trainer.address, engine.address) for engine in engines), share=0.05):
        train_on(job, since=at, num_steps=8)
    job.wait_for_both()
    print_row("5 % of all packets, for 8 steps", since=at)
    assert containers_of(job) == {engine.identifier for engine in engines}
    assert counted(job.status) == counted(before)


def test_an_engine_with_a_twentieth_of_a_core_holds_nobody_up_for_good(job: LossyJob) -> None:
    before = settled(job)
    engine = Container.of(job.engines()[0])
    at = time.time()
    engine.limit_cpu(0.05)
    try:
        train_on(job, since=at)
    finally:
        engine.limit_cpu(None)
    job.wait_for_both()
    print_row("engine with a twentieth of a core, for 3 steps", since=at)
    assert engine.identifier in containers_of(job)
    assert counted(job.status) == counted(before)


def test_an_engine_that_is_killed_again_and_again_harms_nobody(job: LossyJob) -> None:
    before = settled(job)
    container = Container.of(job.engines()[0])
    for _ in range(3):
        with striking("generation", of=container, at=[container], number=signal.SIGKILL) as strike:
            at = strike.wait()
        found_seconds = job.require_missed(container.pod, "generation", since=at)
        train_on(job, since=at)
        container = job.wait_for_container(container.pod, other_than=container)
        job.wait_for_both()
        print_row("engine killed again", "generation", since=at, found_seconds=found_seconds)
    assert counted(job.status) == counted(before)


def test_after_all_losses_the_job_completes_and_no_sample_came_from_old_weights(job: LossyJob) -> None:
    hurry(job.namespace, claim=CLAIM)
    status = job.namespace.wait_for_finish(JOB, timeout_seconds=300)
    assert condition(job.namespace.job(JOB), "Complete") == "True", job.namespace.describe()
    assert (status["attempt"], status["disruptions"]) == (1 + status["restarts"], 0)
    records = job.namespace.metrics(CLAIM)
    assert [record.step for record in records] == list(range(1, status["totalSteps"] + 1))
    assert max(record.values.get("sync/max_probe_error", 0.0) for record in records) <= 1e-4


def settled(job: LossyJob) -> Object:
    """The status once both engines are there."""
    job.wait_for_both()
    return job.status


def joining(job: LossyJob, container: Container) -> Container:
    """Have an engine join anew, which is when it meets the trainer: the phase init. Returns its successor."""
    container.send(signal.SIGKILL)
    return job.wait_for_container(container.pod, other_than=container)


def counted(status: Object) -> tuple[int, int, int]:
    return status["attempt"], status["restarts"], status["disruptions"]


def containers_of(job: LossyJob) -> set[str]:
    """The containers in which the engines run: a restart would be another one."""
    return {Container.of(pod).identifier for pod in job.engines()}


def train_on(job: LossyJob, *, since: float, num_steps: int = 3) -> None:
    """Steps follow one another, and in each an engine got the weights: the loss of the other did not reach
    it."""
    records = job.wait_for_steps(num_steps, since=since)
    assert all(record.values.get("sync/engines", 1) >= 1 for record in records), records
