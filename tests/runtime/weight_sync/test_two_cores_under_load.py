"""A real engine of two cores with half of the experts each, which gets new weights again and again while both
sample, while one has no work, and while neither has any. vLLM pauses its cores in two phases: each goes on
with empty batches until all have been told to pause, since the experts of one wait for those of the other.
"""

import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from engine_of_several import fleet_of
from one_engine_sync import OneEngineSync
from policy_builder import changed_policy, logprobs, probe_of, weights_of
from test_engine_of_two_cores import CORES, client_of, metric_of_cores, num_tokens_of_cores
from test_engine_of_two_workers import processes_of
from tiny_moe import MAX_LENGTH_TOKENS, write_tiny_moe
from transformers import PreTrainedModel

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import PauseMode, SamplingSpec
from grpo_runtime.engines.fleet.engine_calls import Bundle, sampling_call
from grpo_runtime.engines.fleet.engine_client import MAX_BYTES, open_session
from grpo_runtime.engines.fleet.engine_sync import SyncJob
from grpo_runtime.engines.fleet.fleet import Fleet
from grpo_runtime.engines.fleet.settings import Pause
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout, RolloutLostError, SyncReport
from grpo_runtime.weight_sync.registry import GLOO
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

pytestmark = [pytest.mark.engine, pytest.mark.matrix]

BOTH, ONE, NEITHER = 3, 1, 0
"""How many callers there are for so many cores to have work."""
LOADS = (BOTH,) * 5 + (ONE,) * 4 + (NEITHER,)
"""Those of ten updates."""
SHORTEST, SHORTEST_ALONE, LONGEST = 4, 40, 100
"""Tokens of completions."""
TOKENS_BETWEEN = 4
NUM_POLICIES = 4
NUM_JUDGED = 40
TOLD_SECONDS = 15.0
IGNORE_EOS = json.dumps({"ignore_eos": True})
"""A completion then has all tokens that were asked for."""
NUM_MEETINGS = 12
HELD_UP_SECONDS = 0.15
NUM_RUNNING = "vllm:num_requests_running"


@pytest.fixture(scope="module")
def two_cores(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The last test here kills one of them."""
    folder = tmp_path_factory.mktemp("moe")
    model = folder / "cache" / "model"
    write_tiny_moe(model)
    with start(
        folder,
        name="engine-of-two-cores",
        is_forked=False,
        model_source=f"file://{model}",
        max_model_len=MAX_LENGTH_TOKENS,
        data_parallel_size=2,
        expert_parallel=True,
        max_staleness=1,
    ) as started:
        yield started


@pytest.fixture(scope="module")
def policies(two_cores: Any) -> Sequence[PreTrainedModel]:
    """That of a step is the one of this step modulo their number."""
    return [changed_policy(two_cores.model_dir, seed=80 + number) for number in range(NUM_POLICIES)]


LONG = [
    GenerateRequest((10, 20, 30 + number), seed=2**10 * number, own_parameters=IGNORE_EOS)
    for number in range(16)
]
"""For both cores."""


@dataclass
class Load:
    """Callers that ask for completions of uneven length, one call after the other. What is asked of them at
    random is the same in each run."""

    fleet: Fleet
    answers: list[tuple[GenerateRequest, Rollout]] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    """Seeds of samples that were said to be finished; another thread appends them."""
    asked: list[int] = field(default_factory=list)
    _draw: random.Random = field(default_factory=lambda: random.Random(1))
    _seeds: Iterator[int] = field(default_factory=lambda: itertools.count(2**40, 2**10))
    _num_allowed: int = BOTH
    _num_open: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def allow(self, num_callers: int) -> None:
        """From now on so many may call; with none, return when all calls have been answered."""
        async with self._changed:
            self._num_allowed = num_callers
            self._changed.notify_all()
            await self._changed.wait_for(lambda: num_callers > 0 or self._num_open == 0)

    async def call(self, number: int) -> None:
        """What caller `number` does, until it is cancelled."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: number < self._num_allowed)
                self._num_open += 1
            requests = self._requests(alone=self._num_allowed == ONE)
            seeds = [request.seed for request in requests]
            self.asked += seeds

            def finished(index: int, rollout: Rollout, seeds: list[int] = seeds) -> None:
                if not rollout.is_aborted:
                    self.answered.append(seeds[index])

            rollouts = await self.fleet.generate(requests, on_finished=finished)
            self.answers += zip(requests, rollouts, strict=True)
            async with self._changed:
                self._num_open -= 1
                self._changed.notify_all()

    def _requests(self, *, alone: bool) -> list[GenerateRequest]:
        """A group, or a single long completion, for which one core suffices."""
        prompt = tuple(self._draw.randint(4, 60) for _ in range(self._draw.randint(2, 12)))
        size = 1 if alone else self._draw.randint(1, 4)
        shortest = SHORTEST_ALONE if alone else SHORTEST
        first = next(self._seeds)
        return [
            GenerateRequest(
                prompt_ids=prompt,
                seed=first + sample,
                max_tokens=min(LONGEST, round(shortest * self._draw.paretovariate(1.0))),
                own_parameters=IGNORE_EOS,
            )
            for sample in range(size)
        ]


@asynccontextmanager
async def loaded(fleet: Fleet) -> AsyncIterator[Load]:
    """Callers of a fleet, which are done when the block ends. What one raises ends the block."""
    load = Load(fleet)
    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(load.call(number)) for number in range(BOTH)]
        yield load
        await load.allow(NEITHER)
        for caller in callers:
            caller.cancel()


@pytest.mark.parametrize(
    ("mode", "num_updates"), [(PauseMode.KEEP, 200), (PauseMode.ABORT, 50), (PauseMode.WAIT, 50)]
)
async def test_no_request_is_lost_in_any_update_whatever_the_cores_are_doing(
    two_cores: Any, policies: Sequence[PreTrainedModel], attempt: int, mode: PauseMode, num_updates: int
) -> None:
    started = time.monotonic()
    fleet = await fleet_of(
        two_cores,
        attempt=attempt,
        workers_per_engine=2,
        cores_per_engine=2,
        is_asynchronous=True,
        pause=Pause(mode),
        sampling=SamplingSpec(max_tokens=LONGEST),
    )
    reports: list[SyncReport] = []
    num_busy: Counter[int] = Counter()

    async def update(step: int) -> None:
        policy = policies[step % NUM_POLICIES]
        reports.append(
            await fleet.sync(weights_of(policy), version=PolicyVersion(attempt, step), probe=probe_of(policy))
        )

    await update(0)
    async with asyncio.timeout(600), loaded(fleet) as load:
        for step in range(1, num_updates + 1):
            num_callers = LOADS[step % len(LOADS)]
            await load.allow(num_callers)
            if num_callers:
                await until_more_tokens(two_cores, attempt=attempt)
            running = await metric_of_cores(two_cores, NUM_RUNNING, attempt=attempt)
            num_busy[sum(count > 0 for count in running.values())] += 1
            await update(step)

    print_what_was_measured(mode, reports, seconds=time.monotonic() - started, load=load, num_busy=num_busy)
    assert [report.version.step for report in reports] == list(range(num_updates + 1))
    assert all(report.synced == (two_cores.name,) and not report.failed for report in reports)
    assert max(report.max_probe_error for report in reports) < 1e-4
    assert min(num_busy[number] for number in (0, 1, 2)) >= num_updates / 20
    assert (fleet.num_lost, fleet.num_stale_answers, fleet.num_resent) == (0, 0, 0)

    assert sorted(load.answered) == sorted(load.asked)
    assert len(load.answers) == len(load.asked) == len(set(load.asked))
    for request, rollout in load.answers:
        assert rollout.prompt_ids == request.prompt_ids
        assert len(rollout.completion_ids) == request.max_tokens
        steps = [span.version.step for span in rollout.versions]
        assert steps == list(range(steps[0], steps[-1] + 1))
    spans = [rollout.versions for _, rollout in load.answers]
    if mode is PauseMode.WAIT:
        assert {len(versions) for versions in spans} == {1}
    else:
        assert max(map(len, spans)) > 3
    longest = sorted((rollout for _, rollout in load.answers), key=lambda rollout: -len(rollout.versions))
    for rollout in longest[:NUM_JUDGED]:
        assert_sampled_by(rollout, policies)

    last = await fleet.generate([GenerateRequest((10, 20, 30), seed=7)] * 2)
    assert {span.version.step for rollout in last for span in rollout.versions} == {num_updates}
    for rollout in last:
        assert_sampled_by(rollout, policies)
    await fleet.close()


async def test_cores_that_sample_meet_a_trainer_again_and_again(
    two_cores: Any, policies: Sequence[PreTrainedModel], attempt: int
) -> None:
    """A core in a step waits for the other one, and so does one that has come to meet the trainer. Each time
    one is held up for a moment, which makes it likely that they would be told so at different steps."""
    bundle = Bundle(prompt_ids=(10, 20, 30), seed=7, num_samples=1, own_parameters=IGNORE_EOS)
    call = sampling_call(bundle, sampling=SamplingSpec(max_tokens=400))
    policy = policies[0]
    weights, probe = HostCopy(weights_of(policy)), probe_of(policy)
    async with open_session() as session:
        client = client_of(two_cores, session, attempt=attempt)

        async def meet_and_sync(step: int) -> None:
            sync = OneEngineSync(
                client,
                backend=GLOO,
                timeout_seconds=20.0,
                workers_per_engine=2,
                cores_per_engine=2,
                transfers_first=True,
            )
            await sync.run(SyncJob(version=PolicyVersion(attempt, step), weights=weights, probe=probe))
            await sync.close()

        await meet_and_sync(0)
        for step in range(1, NUM_MEETINGS + 1):
            answers = [
                asyncio.ensure_future(client.sample(replace(call, core=core), max_bytes=MAX_BYTES))
                for core in CORES
            ]
            sampling = asyncio.gather(*answers)
            await until_both_sample(two_cores, sampling, attempt=attempt)
            held_up = max(two_cores.core_pids())
            os.kill(held_up, signal.SIGSTOP)
            syncing = asyncio.ensure_future(meet_and_sync(step))
            await asyncio.wait({syncing}, timeout=HELD_UP_SECONDS)
            os.kill(held_up, signal.SIGCONT)
            await syncing
            sampling.cancel()
            await asyncio.gather(*answers, return_exceptions=True)


async def test_a_core_that_is_killed_under_load_is_told_by_the_fleet_and_by_its_pod(
    two_cores: Any, policies: Sequence[PreTrainedModel], attempt: int
) -> None:
    """The last test with this engine."""
    fleet = await fleet_of(
        two_cores,
        attempt=attempt,
        workers_per_engine=2,
        cores_per_engine=2,
        is_asynchronous=True,
        sampling=SamplingSpec(max_tokens=LONGEST),
        heartbeat_seconds=1.0,
        empty_wait_seconds=1.0,
    )
    policy = policies[0]
    await fleet.sync(weights_of(policy), version=PolicyVersion(attempt, 0), probe=probe_of(policy))
    sampling = asyncio.ensure_future(fleet.generate(LONG))
    await until_both_sample(two_cores, sampling, attempt=attempt)
    os.kill(max(two_cores.core_pids()), signal.SIGKILL)
    killed = time.monotonic()
    told: dict[str, float] = {}

    def note(what: str, has_come: bool) -> None:
        if has_come:
            told.setdefault(what, time.monotonic() - killed)

    while len(told) < 4 and time.monotonic() < killed + TOLD_SECONDS:
        note("no engine may be given work", fleet.counts().current == 0)
        note("the engine is lost", fleet.num_lost == 1)
        note("the step has failed", sampling.done())
        note("the pod has ended", two_cores.process.poll() is not None)
        await asyncio.sleep(0.02)
    print("after a core was killed:", {what: round(seconds, 2) for what, seconds in told.items()})
    assert len(told) == 4
    with pytest.raises(RolloutLostError, match="no rollout engine for 1 s, with 16 of 16 samples"):
        await sampling
    assert two_cores.process.poll() == ExitCode.UNEXPECTED
    message = TerminationMessage.model_validate_json(two_cores.termination_log.read_text())
    assert message.message == "the vLLM engine died; see this container's log"
    assert processes_of(two_cores) == {}
    await fleet.close()


async def until_more_tokens(engine: Any, *, attempt: int) -> None:
    """Return when the cores have sampled some tokens more."""
    before = sum((await num_tokens_of_cores(engine, attempt=attempt)).values())
    while sum((await num_tokens_of_cores(engine, attempt=attempt)).values()) < before + TOKENS_BETWEEN:
        pass


async def until_both_sample(engine: Any, sampling: asyncio.Future[Any], *, attempt: int) -> None:
    """Return when each core has work."""
    while min((await metric_of_cores(engine, NUM_RUNNING, attempt=attempt)).values()) == 0:
        assert not sampling.done()


def assert_sampled_by(rollout: Rollout, policies: Sequence[PreTrainedModel]) -> None:
    """Each token has the logprob of the policy of its version, computed by transformers."""
    ids, begin = rollout.prompt_ids + rollout.completion_ids, len(rollout.prompt_ids) - 1
    by_policy = [logprobs(policy, ids)[begin:] for policy in policies]
    for span in rollout.versions:
        wanted = by_policy[span.version.step % NUM_POLICIES][span.start : span.end]
        assert rollout.rollout_logprobs[span.start : span.end] == pytest.approx(wanted, abs=1e-4)


def print_what_was_measured(
    mode: PauseMode, reports: Sequence[SyncReport], *, seconds: float, load: Load, num_busy: Mapping[int, int]
) -> None:
    """For the page of numbers; pytest shows it with -rP."""
    phases = {
        phase: statistics.median(report.phase_seconds[phase] for report in reports[1:])
        for phase in reports[1].phase_seconds
    }
    paused = sorted(report.paused_seconds or 0.0 for report in reports[1:])
    print(
        f"{mode}: {len(reports) - 1} updates in {seconds:.1f} s, with {dict(num_busy)} busy cores; "
        f"{len(load.answers)} completions of {sum(len(r.completion_ids) for _, r in load.answers)} tokens, "
        f"{sum(len(r.versions) > 1 for _, r in load.answers)} of several versions; paused for "
        + ", ".join(f"p{p} {paused[p * (len(paused) - 1) // 100]:.3f} s" for p in (50, 95, 99, 100))
        + "; medians of phases "
        + ", ".join(f"{phase} {median:.3f} s" for phase, median in phases.items())
    )
