"""What becomes of completions that real engines are sampling when they get new weights. Transformers judges
every token."""

import asyncio
import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from engine_numbers import metric, until_sampled
from fleet_builder import GIVE_UP_SECONDS, until
from policy_builder import changed_policy, logprobs, logprobs_with_kept_cache, probe_of, weights_of
from transformers import PreTrainedModel
from weight_sources import FixedWeights

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import PauseMode, SamplingSpec
from grpo_runtime.data.seeds import segment_seed
from grpo_runtime.engines.fleet.engine_client import Address, EngineClient, open_session
from grpo_runtime.engines.fleet.fleet import Fleet
from grpo_runtime.engines.fleet.settings import Pause
from grpo_runtime.model.load import load_tokenizer
from grpo_runtime.model.weights import named_weights
from grpo_runtime.rollouts.interface import GenerateRequest, Probe, Recomputed, Rollout, SyncReport
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.interface import Backend
from grpo_runtime.weight_sync.registry import GLOO
from grpo_runtime.weight_sync.source import WeightSource
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

pytestmark = pytest.mark.engine

MAX_MODEL_LEN = 2048
PREEMPTIONS = "vllm:num_preemptions_total"
ENDLESS = json.dumps({"ignore_eos": True})
"""Parameters of a completion that has all its tokens."""
TOLERANCE_NATS = 1e-4
OTHER_NATS = 1e-2
"""By so much at least the logprobs of other weights differ."""
PAUSES_FIRST = replace(GLOO, receives_while_serving=False)
BACKENDS = [
    pytest.param(GLOO, id="received before the pause"),
    pytest.param(PAUSES_FIRST, id="received in the pause", marks=pytest.mark.matrix),
]


class HeldWeights(FixedWeights):
    """Weights whose last tensor is not there before `may_end`: engines receive the others meanwhile."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__(named_weights(policy))
        self.may_end = threading.Event()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        *others, last = super().tensors()
        yield from others
        assert self.may_end.wait(GIVE_UP_SECONDS)
        yield last


@dataclass(frozen=True)
class Run:
    """A fleet with the weights `old`, and a trainer that has `new` ones, too."""

    fleet: Fleet
    policies: Mapping[PolicyVersion, PreTrainedModel]
    probes: Mapping[PolicyVersion, Probe]
    clients: Sequence[EngineClient]
    """Of its engines, in their order."""
    receives_while_serving: bool
    copies: Sequence[HostCopy]
    """Of the weights that there have been for engines."""

    @property
    def old(self) -> PolicyVersion:
        return min(self.policies)

    @property
    def new(self) -> PolicyVersion:
        return max(self.policies)

    async def sync(self, version: PolicyVersion, weights: WeightSource | None = None) -> SyncReport:
        weights = weights or weights_of(self.policies[version])
        return await self.fleet.sync(weights, version=version, probe=self.probes[version])

    async def begin_over_a_sync(
        self, work: Sequence[GenerateRequest]
    ) -> tuple[asyncio.Future[list[Rollout]], asyncio.Future[SyncReport]]:
        """Sample `work`, and give the first engine new weights after its first tokens. Where it can receive
        meanwhile, only the last tensor is still to come, so that it has not sampled all by then."""
        weights, sync, before = HeldWeights(self.policies[self.new]), None, len(self.copies)
        if self.receives_while_serving:
            sync = asyncio.ensure_future(self.sync(self.new, weights))
            await until(lambda: len(self.copies) > before and self.copies[-1].num_bytes_sent > 0)
        sampling = asyncio.ensure_future(self.fleet.generate(work))
        await until_sampled(self.clients[0], 8, while_running=sampling)
        weights.may_end.set()
        return sampling, sync or asyncio.ensure_future(self.sync(self.new, weights))

    async def over_a_sync(self, work: Sequence[GenerateRequest]) -> list[Rollout]:
        """What is sampled for `work` so."""
        sampling, sync = await self.begin_over_a_sync(work)
        await sync
        return await sampling

    def judged(self, rollout: Rollout, **distribution: float) -> list[float]:
        """The logprob of each token of a completion by the weights that its version says."""
        ids, begin = rollout.prompt_ids + rollout.completion_ids, len(rollout.prompt_ids) - 1
        by = {
            span.version: logprobs(self.policies[span.version], ids, **distribution)[begin:]
            for span in rollout.versions
        }
        return [by[span.version][place] for span in rollout.versions for place in range(span.start, span.end)]

    def with_kept_cache(self, rollout: Rollout, *, num_kept: int) -> list[float]:
        """The logprob of each of its tokens where the new weights go on from the cache of so many tokens of
        prompt and completion that the old ones have computed."""
        old, new = self.policies[self.old], self.policies[self.new]
        ids = rollout.prompt_ids + rollout.completion_ids
        return logprobs_with_kept_cache(old, new, ids, num_kept=num_kept)[len(rollout.prompt_ids) - 1 :]


OpenRun = Callable[..., Any]


@pytest.fixture
async def open_run(open_fleet: Callable[..., Any], attempt: int) -> AsyncIterator[OpenRun]:
    async with open_session() as session:

        async def open_one(*engines: Any, pause: Pause, backend: Backend[Any] = GLOO, **changes: Any) -> Run:
            copies: list[HostCopy] = []

            def prepare(source: WeightSource) -> HostCopy:
                copies.append(HostCopy(source, buffer_bytes=1 << 14))
                return copies[-1]

            backend = replace(backend, prepare=prepare)
            settings = {"is_asynchronous": True, "max_in_flight": 16, "pause": pause, **changes}
            fleet = await open_fleet(*engines, attempt=attempt, backend=backend, **settings)
            policies = {
                PolicyVersion(attempt, step): changed_policy(engines[0].model_dir, seed=80 + step)
                for step in range(2)
            }
            clients = []
            for engine in engines:
                tokens = Tokens(data=engine.data_token, admin=engine.admin_token)
                address = Address("127.0.0.1", engine.port)
                clients.append(EngineClient(session, address, tokens=tokens, attempt=attempt))
            probes = {version: probe_of(policy) for version, policy in policies.items()}
            run = Run(fleet, policies, probes, clients, backend.receives_while_serving, copies)
            await run.sync(run.old)
            return run

        yield open_one


def endless(prompt_length: int, *, number: int, **changes: Any) -> GenerateRequest:
    """A completion with all its tokens, for a prompt of its own."""
    prompt_ids = tuple(4 + (7 * number + place * (1 + number % 5)) % 90 for place in range(prompt_length))
    parameters = {"own_parameters": ENDLESS, **changes}
    return GenerateRequest(prompt_ids, seed=2**61 + 31 * number, **parameters)


def seam_of(rollout: Rollout) -> int:
    """How many tokens a completion of two versions has of the first."""
    assert len(rollout.versions) == 2
    return rollout.versions[1].start


def require_exact(run: Run, rollouts: Sequence[Rollout], **distribution: float) -> None:
    """Every token has the logprob of the weights that its version says."""
    for rollout in rollouts:
        ends = [span.end for span in rollout.versions]
        assert [span.start for span in rollout.versions] == [0, *ends[:-1]]
        assert ends[-1] == len(rollout.completion_ids) == len(rollout.rollout_logprobs)
        assert not rollout.is_aborted
        assert difference(run.judged(rollout, **distribution), rollout.rollout_logprobs) < TOLERANCE_NATS


def difference(found: Sequence[float], wanted: Sequence[float]) -> float:
    """The largest one between two logprobs of a token."""
    return max(abs(one - other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
async def test_an_aborted_completion_goes_on_from_its_tokens(
    backend: Any, asynchronous_engine: Any, open_run: OpenRun
) -> None:
    run = await open_run(
        asynchronous_engine,
        pause=Pause(PauseMode.ABORT),
        backend=backend,
        sampling=SamplingSpec(max_tokens=1200),
    )
    # one that fills the context, and three of a group in one call; the others wait in the engine
    group = endless(3, number=1)
    work = [
        endless(MAX_MODEL_LEN - 1500, number=0, max_tokens=1500),
        *(replace(group, seed=group.seed + sample) for sample in range(3)),
        *(endless(3 + 40 * number, number=number, max_tokens=50) for number in (2, 3)),
    ]
    rollouts = await run.over_a_sync(work)

    assert [len(rollout.completion_ids) for rollout in rollouts] == [1500, 1200, 1200, 1200, 50, 50]
    require_exact(run, rollouts)
    by_old, by_new = (
        logprobs(policy, rollouts[0].prompt_ids + rollouts[0].completion_ids)
        for policy in run.policies.values()
    )
    assert difference(by_old, by_new) > OTHER_NATS
    went_on = rollouts[:4]
    assert all([span.version for span in rollout.versions] == [run.old, run.new] for rollout in went_on)
    num_recomputed = sum(len(rollout.prompt_ids) + seam_of(rollout) for rollout in went_on)
    assert run.fleet.take_recomputed() == Recomputed(num_tokens=num_recomputed)
    assert run.fleet.num_resent == 0

    # behind a seam is what the new weights sample for all that is before it, with the seed of that place;
    # what the engine had not begun is sampled with its own seed
    assert {span.version for rollout in rollouts[4:] for span in rollout.versions} == {run.new}
    seams = [seam_of(rollout) for rollout in went_on]
    rests = [
        replace(
            asked,
            prompt_ids=asked.prompt_ids + rollout.completion_ids[:seam],
            seed=segment_seed(asked.seed, start=seam),
            max_tokens=50,
        )
        for asked, rollout, seam in zip(work, went_on, seams, strict=False)
    ]
    assert not {asked.seed for asked in work} & {rest.seed for rest in rests}
    again = await run.fleet.generate([*rests[1:], work[4]])
    for rollout, start, rest in zip(rollouts[1:5], (*seams[1:], 0), again, strict=True):
        assert rollout.completion_ids[start : start + 50] == rest.completion_ids


async def test_what_shapes_a_completion_holds_across_the_place_where_it_goes_on(
    asynchronous_engine: Any, open_run: OpenRun
) -> None:
    """A penalty counts the tokens before it, and a text that ends a completion may begin before it. What is
    sampled by a grammar begins anew."""
    num_tokens, num_until_stop = 1500, 1400
    run = await open_run(
        asynchronous_engine,
        pause=Pause(PauseMode.ABORT),
        sampling=SamplingSpec(max_tokens=num_tokens, repetition_penalty=1.3),
    )
    tokenizer = load_tokenizer(asynchronous_engine.model_dir)
    [letter] = tokenizer("z", add_special_tokens=False)["input_ids"]
    always_that = json.dumps({"logit_bias": {str(letter): 100}})
    by_grammar = json.dumps({"structured_outputs": {"regex": "[ab]{599}c"}})
    work = [
        endless(30, number=1),
        endless(40, number=2),
        endless(3, number=3, own_parameters=always_that, stop=("z" * num_until_stop,)),
        endless(3, number=4, own_parameters=by_grammar, max_tokens=600),
    ]
    *penalized, stopped, shaped = await run.over_a_sync(work)

    require_exact(run, penalized, repetition_penalty=1.3)
    for rollout in penalized:
        seam = seam_of(rollout)
        assert 0 < seam < len(rollout.completion_ids) == num_tokens
        ids, begin = rollout.prompt_ids + rollout.completion_ids, len(rollout.prompt_ids) - 1
        assert set(rollout.completion_ids[:seam]) - set(rollout.prompt_ids)
        unpenalized = logprobs(run.policies[run.new], ids)[begin + seam :]
        assert difference(unpenalized, rollout.rollout_logprobs[seam:]) > OTHER_NATS
    assert 0 < seam_of(stopped) < num_until_stop
    assert (stopped.completion_ids, stopped.is_terminated) == ((letter,) * num_until_stop, True)
    assert len(shaped.versions) == 1
    assert re.fullmatch("[ab]{599}c", tokenizer.decode(shaped.completion_ids))


@pytest.fixture(scope="module")
def second_engine(start_asynchronous: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Another one, which the last test with it ends."""
    with start_asynchronous(tmp_path_factory.mktemp("second"), name="engine-second") as started:
        yield started


@pytest.mark.matrix
@pytest.mark.parametrize("moment", ["hangs", "is to stop"])
async def test_another_engine_goes_on_with_what_one_hands_over(
    moment: str, asynchronous_engine: Any, second_engine: Any, open_run: OpenRun
) -> None:
    """And hands it over in its turn, when it gets new weights."""
    run = await open_run(
        second_engine,
        asynchronous_engine,
        pause=Pause(PauseMode.ABORT),
        sampling=SamplingSpec(max_tokens=800),
        hung_after_seconds=3.0,
        probe_timeout_seconds=1.0,
    )
    # two for each engine, which can sample all of them
    work = [endless(3 + 40 * number, number=number) for number in range(4)]
    alone = await run.fleet.generate(work)
    given = Counter(rollout.engine for rollout in alone)
    assert given == {second_engine.name: 2, asynchronous_engine.name: 2}
    run.fleet.take_recomputed()

    sampling = asyncio.ensure_future(run.fleet.generate(work))
    await until_sampled(run.clients[0], 80, while_running=sampling)
    async with unable(second_engine, moment):
        await until(lambda: is_given_only(run.fleet, asynchronous_engine.name))
        await until_sampled(run.clients[1], 80, while_running=sampling)
        report = await run.sync(run.new)
        rollouts = await sampling
    assert report.synced == (asynchronous_engine.name,)
    require_exact(run, rollouts)
    num_moved_tokens = 0
    for rollout, before in zip(rollouts, alone, strict=True):
        ids = rollout.completion_ids
        if before.engine == asynchronous_engine.name:
            # it may have ended with the old weights
            assert rollout.engine == asynchronous_engine.name
            continue
        engines = [segment.engine for segment in rollout.segments]
        assert engines == [second_engine.name, asynchronous_engine.name, asynchronous_engine.name]
        assert [span.version for span in rollout.versions] == [run.old, run.new]
        moved, seam = (segment.start for segment in rollout.segments[1:])
        assert 0 < moved < seam == seam_of(rollout)
        num_moved_tokens += 2 * len(rollout.prompt_ids) + moved + seam
        # it goes on with the old weights first, and with the seed of the place where it was handed over
        assert ids[:moved] == before.completion_ids[:moved]
        assert ids[moved:seam] != before.completion_ids[moved:seam]
    num_recomputed = run.fleet.take_recomputed().num_tokens
    assert num_recomputed >= num_moved_tokens > 0


@asynccontextmanager
async def unable(engine: Any, why: str) -> AsyncIterator[None]:
    """An engine that does not sample any more: its core hangs, or it is asked to stop."""
    if why == "hangs":
        [core] = engine.core_pids()
        os.kill(core, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(core, signal.SIGCONT)
    else:
        stopping = asyncio.ensure_future(asyncio.to_thread(engine.stop))
        yield
        assert await stopping == ExitCode.TERMINATED


def is_given_only(fleet: Fleet, engine: str) -> bool:
    """Whether this engine has all that is not finished."""
    generation = fleet.generation()
    return generation is not None and set(generation.given) == {engine} and generation.num_waiting == 0


@pytest.mark.parametrize("backend", BACKENDS)
async def test_with_wait_an_engine_samples_all_that_it_has_before_it_gets_weights(
    backend: Any, asynchronous_engine: Any, open_run: OpenRun, attempt: int
) -> None:
    """Also what waits in it for a place, and what it has preempted, which its fleet counts."""
    run = await open_run(
        asynchronous_engine,
        pause=Pause(PauseMode.WAIT),
        backend=backend,
        sampling=SamplingSpec(max_tokens=1000),
    )
    before = await metric(asynchronous_engine, PREEMPTIONS, attempt=attempt)
    # four of them have 32 blocks at first, and 64 with their last tokens: more than there are
    work = [endless(948, number=number) for number in range(4)]
    work += [endless(948, number=number, max_tokens=50) for number in (4, 5)]
    sampling, syncing = await run.begin_over_a_sync(work)
    await until(lambda: run.fleet.counts().current == 0)
    assert not sampling.done()
    [later] = await run.fleet.generate([endless(3, number=7)])
    rollouts, report = await sampling, await syncing

    assert [len(rollout.completion_ids) for rollout in rollouts] == [1000] * 4 + [50] * 2
    assert [[span.version for span in rollout.versions] for rollout in rollouts] == [[run.old]] * 6
    assert [span.version for span in later.versions] == [run.new]
    require_exact(run, [*rollouts, later])
    assert report.phase_seconds["drain"] > 0
    num_preemptions = await metric(asynchronous_engine, PREEMPTIONS, attempt=attempt) - before
    assert num_preemptions > 0
    taken: list[Recomputed] = []

    def is_counted() -> bool:
        taken.append(run.fleet.take_recomputed())
        return sum(one.num_preemptions for one in taken) == num_preemptions

    await until(is_counted)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_new_weights_go_on_from_a_kept_cache(
    backend: Any, asynchronous_engine: Any, open_run: OpenRun
) -> None:
    run = await open_run(
        asynchronous_engine,
        pause=Pause(PauseMode.KEEP, keeps_cache=True),
        backend=backend,
        sampling=SamplingSpec(max_tokens=1100),
    )
    # of a group of five, the last one waits in the engine
    group = endless(280, number=1)
    work = [replace(group, seed=group.seed + sample) for sample in range(4)]
    work.append(replace(group, seed=group.seed + 4, max_tokens=50))
    *rollouts, waited = await run.over_a_sync(work)
    for rollout in rollouts:
        assert [span.version for span in rollout.versions] == [run.old, run.new]
        seam = seam_of(rollout)
        # the last token before the seam is the first that the new weights read
        num_kept = len(rollout.prompt_ids) + seam - 1
        kept = run.with_kept_cache(rollout, num_kept=num_kept)
        assert difference(kept, rollout.rollout_logprobs) < TOLERANCE_NATS
        for other in (run.judged(rollout), run.with_kept_cache(rollout, num_kept=num_kept + 1)):
            assert difference(other[seam:], rollout.rollout_logprobs[seam:]) > OTHER_NATS
    # two blocks of its prompt are in the prefix cache
    assert [span.version for span in waited.versions] == [run.new]
    assert difference(run.with_kept_cache(waited, num_kept=256), waited.rollout_logprobs) < TOLERANCE_NATS
    assert run.fleet.take_recomputed() == Recomputed()


@pytest.mark.matrix
async def test_of_a_kept_cache_the_new_weights_compute_what_a_preemption_took(
    asynchronous_engine: Any, open_run: OpenRun
) -> None:
    """That is what has been overwritten, in blocks from its end."""
    run = await open_run(
        asynchronous_engine,
        pause=Pause(PauseMode.KEEP, keeps_cache=True),
        sampling=SamplingSpec(max_tokens=1200),
    )
    # 6 blocks each, and 15 with their last tokens
    rollouts = await run.over_a_sync([endless(700, number=number) for number in range(4)])
    preempted = []
    for rollout in rollouts:
        kept = run.with_kept_cache(rollout, num_kept=len(rollout.prompt_ids) + seam_of(rollout) - 1)
        is_kept = [abs(a - b) < TOLERANCE_NATS for a, b in zip(kept, rollout.rollout_logprobs, strict=True)]
        if not all(is_kept):
            preempted.append((rollout, is_kept.index(False)))
    [(rollout, again)] = preempted
    assert again > seam_of(rollout)
    by_blocks = [
        difference(
            run.with_kept_cache(rollout, num_kept=num_blocks * 128)[again:], rollout.rollout_logprobs[again:]
        )
        for num_blocks in range(1, 11)
    ]
    assert min(by_blocks) < TOLERANCE_NATS
