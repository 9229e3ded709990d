"""The fleet on real engines."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_numbers import load_of
from policy_builder import changed_policy, logprobs, probe_of, weights_of
from polling import until

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import PauseMode, SamplingSpec
from grpo_runtime.engines.fleet.engine_client import (
    Address,
    EngineClient,
    EngineConflictError,
    open_session,
)
from grpo_runtime.engines.fleet.settings import Pause
from grpo_runtime.model.load import load_tokenizer
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout, SyncReport
from grpo_runtime.settings import Tokens

pytestmark = pytest.mark.engine

OpenFleet = Callable[..., Any]


@pytest.fixture(scope="module")
def second_engine(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A second engine, which the last test here kills."""
    with start(tmp_path_factory.mktemp("second"), name="engine-1") as started:
        yield started


def requests(count: int) -> list[GenerateRequest]:
    """Four samples of each prompt, with seeds that follow on each other; prompts have 3 to 40 tokens."""
    return [
        GenerateRequest(
            prompt_ids=tuple(4 + (7 * group + place) % 90 for place in range(3 + 5 * group % 38)),
            seed=2**61 + 31 * group + sample,
        )
        for group, sample in (divmod(index, 4) for index in range(count))
    ]


def facts(rollouts: list[Rollout]) -> list[tuple[object, ...]]:
    """What must be the same whichever engine sampled it."""
    return [(r.prompt_ids, r.completion_ids, r.rollout_logprobs, r.is_terminated) for r in rollouts]


async def test_after_a_sync_the_engine_samples_from_the_trainers_policy(
    engine: Any, attempt: int, open_fleet: OpenFleet
) -> None:
    fleet = await open_fleet(engine, attempt=attempt, sampling=SamplingSpec(temperature=0.7, max_tokens=12))
    policy = changed_policy(engine.model_dir, seed=1)
    version = PolicyVersion(attempt, 0)

    report = await fleet.sync(weights_of(policy), version=version, probe=probe_of(policy))
    rollouts = await fleet.generate(requests(24))

    assert report.synced == ("engine-0",)
    assert report.max_probe_error < 1e-4
    assert set(report.phase_seconds) >= {"pause", "transfer", "finish", "verify", "admit"}
    for rollout in rollouts:
        ids = rollout.prompt_ids + rollout.completion_ids
        wanted = logprobs(policy, ids, temperature=0.7)[len(rollout.prompt_ids) - 1 :]
        assert rollout.rollout_logprobs == pytest.approx(wanted, abs=1e-4)
        assert [(span.version, span.start) for span in rollout.versions] == [(version, 0)]
        assert rollout.versions[0].end == len(rollout.completion_ids)
    assert fleet.num_stale_answers == 0


async def test_the_logprobs_of_a_truncated_distribution_are_those_that_were_sampled_from(
    engine: Any, attempt: int, open_fleet: OpenFleet
) -> None:
    sampling = SamplingSpec(max_tokens=6, top_k=3, temperature=0.7)
    fleet = await open_fleet(engine, attempt=attempt, sampling=sampling)
    policy = changed_policy(engine.model_dir, seed=1)
    await fleet.sync(weights_of(policy), version=PolicyVersion(attempt, 0), probe=probe_of(policy))
    for rollout in await fleet.generate(requests(8)):
        ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
        with torch.no_grad():
            logits = policy(ids).logits[0, len(rollout.prompt_ids) - 1 : -1].float() / 0.7
        likeliest = logits.topk(3)
        chosen = likeliest.indices == torch.tensor(rollout.completion_ids)[:, None]
        assert chosen.any(-1).all()
        wanted = likeliest.values.log_softmax(-1)[chosen].tolist()
        assert rollout.rollout_logprobs == pytest.approx(wanted, abs=1e-4)


async def test_a_completion_matches_the_regex_and_ends_with_the_token_that_completes_a_stop_string(
    engine: Any, attempt: int, open_fleet: OpenFleet
) -> None:
    sampling = SamplingSpec(max_tokens=12, regex="[ab]{2}cd[ab]{20}", stop=("cd",))
    fleet = await open_fleet(engine, attempt=attempt, sampling=sampling)
    policy = changed_policy(engine.model_dir, seed=1)
    await fleet.sync(weights_of(policy), version=PolicyVersion(attempt, 0), probe=probe_of(policy))
    tokenizer = load_tokenizer(engine.model_dir)
    for rollout in await fleet.generate(requests(8)):
        assert re.fullmatch("[ab]{2}cd", tokenizer.decode(rollout.completion_ids))
        assert rollout.is_terminated
        assert len(rollout.rollout_logprobs) == len(rollout.completion_ids) == rollout.versions[-1].end

    # what is not trained is sampled as it says, without regex and stop of the job
    [letter] = tokenizer("z", add_special_tokens=False)["input_ids"]
    own = json.dumps({"logit_bias": {str(letter): 100}, "temperature": 0})
    [judged] = await fleet.generate([replace(requests(1)[0], own_parameters=own, max_tokens=20)])
    assert judged.completion_ids == (letter,) * 20

    shorter = await open_fleet(
        engine, attempt=attempt, sampling=sampling.model_copy(update={"max_tokens": 3})
    )
    await shorter.sync(weights_of(policy), version=PolicyVersion(attempt, 1), probe=probe_of(policy))
    (rollout,) = await shorter.generate(requests(1))
    assert len(rollout.completion_ids) == 3 and not rollout.is_terminated


async def test_an_evaluation_takes_the_likeliest_token(
    engine: Any, attempt: int, open_fleet: OpenFleet
) -> None:
    greedy = SamplingSpec(max_tokens=12, top_p=0.9).model_copy(update={"temperature": 0.0})
    fleet = await open_fleet(engine, attempt=attempt, evaluation=greedy)
    policy = changed_policy(engine.model_dir, seed=1)
    await fleet.sync(weights_of(policy), version=PolicyVersion(attempt, 0), probe=probe_of(policy))
    for rollout in await fleet.generate([replace(asked, is_evaluation=True) for asked in requests(8)[::4]]):
        ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
        with torch.no_grad():
            logits = policy(ids).logits[0, len(rollout.prompt_ids) - 1 : -1]
        assert rollout.completion_ids == tuple(logits.argmax(-1).tolist())


async def test_two_engines_give_the_same_bits_as_one_in_any_order(
    engine: Any, second_engine: Any, attempt: int, open_fleet: OpenFleet
) -> None:
    policy = changed_policy(engine.model_dir, seed=2)
    both = await open_fleet(engine, second_engine, attempt=attempt)
    await both.sync(weights_of(policy), version=PolicyVersion(attempt, 0), probe=probe_of(policy))
    work = requests(64)

    together = await both.generate(work)
    # and each in a call of its own: their seeds fall
    backwards = (await both.generate(work[::-1]))[::-1]
    alone = await open_fleet(second_engine, attempt=attempt)
    await alone.sync(weights_of(policy), version=PolicyVersion(attempt, 0), probe=probe_of(policy))

    assert {rollout.engine for rollout in together} == {"engine-0", "engine-1"}
    assert facts(backwards) == facts(together)
    assert facts(await alone.generate(work)) == facts(together)


async def test_new_weights_change_the_samples_and_their_version(
    engine: Any, attempt: int, open_fleet: OpenFleet
) -> None:
    fleet = await open_fleet(engine, attempt=attempt)
    sampled = []
    for step in range(3):
        policy = changed_policy(engine.model_dir, seed=10 + step)
        version = PolicyVersion(attempt, step)
        await fleet.sync(weights_of(policy), version=version, probe=probe_of(policy))
        rollouts = await fleet.generate(requests(8))
        assert {span.version for rollout in rollouts for span in rollout.versions} == {version}
        sampled.append([rollout.completion_ids for rollout in rollouts])
    assert sampled[0] != sampled[1] != sampled[2]


async def test_an_engine_counts_what_it_samples(engine: Any, attempt: int, open_fleet: OpenFleet) -> None:
    fleet = await open_fleet(engine, attempt=attempt)
    policy = changed_policy(engine.model_dir, seed=5)
    await fleet.sync(weights_of(policy), version=PolicyVersion(attempt, 0), probe=probe_of(policy))
    async with open_session() as session:
        tokens = Tokens(data=engine.data_token, admin=engine.admin_token)
        client = EngineClient(session, Address("127.0.0.1", engine.port), tokens=tokens, attempt=attempt)
        before = await client.load(timeout_seconds=10)
        rollouts = await fleet.generate(requests(8))
        after = await client.load(timeout_seconds=10)
    assert before is not None
    num_tokens = before.num_tokens + sum(len(rollout.completion_ids) for rollout in rollouts)
    assert after == replace(before, num_tokens=num_tokens, num_running=0)


async def test_a_fleet_whose_attempt_is_over_does_not_go_on(
    engine: Any, second_engine: Any, attempts: Iterator[int], open_fleet: OpenFleet
) -> None:
    attempt, later = next(attempts), next(attempts)
    fleet = await open_fleet(engine, second_engine, attempt=attempt)
    policy = changed_policy(engine.model_dir, seed=3)
    await fleet.sync(weights_of(policy), version=PolicyVersion(attempt, 0), probe=probe_of(policy))
    other = await open_fleet(second_engine, attempt=later)
    await other.sync(weights_of(policy), version=PolicyVersion(later, 0), probe=probe_of(policy))

    with pytest.raises(EngineConflictError, match=f"attempt {attempt} is over"):
        await until(lambda: fleet.counts().current == 0, seconds=60)


@pytest.mark.parametrize(
    # e2e freezes a core
    "is_server",
    [pytest.param(False, marks=pytest.mark.matrix, id="core"), pytest.param(True, id="server")],
)
async def test_an_engine_hung_in_mid_step_is_synced_before_it_serves_again(
    is_server: bool, engine: Any, second_engine: Any, attempts: Iterator[int], open_fleet: OpenFleet
) -> None:
    """With the limits of a real run."""
    attempt = next(attempts)
    fleet = await open_fleet(
        engine, second_engine, attempt=attempt, sampling=SamplingSpec(max_tokens=200), heartbeat_seconds=1.0
    )
    policies = [changed_policy(engine.model_dir, seed=20 + step) for step in range(3)]

    async def sync(step: int) -> SyncReport:
        policy = policies[step]
        version = PolicyVersion(attempt, step)
        return await fleet.sync(weights_of(policy), version=version, probe=probe_of(policy))

    await sync(0)
    work = requests(160)
    before = facts(await fleet.generate(work))

    hung = [second_engine.process.pid] if is_server else second_engine.core_pids()
    assert len(hung) == 1
    step = asyncio.ensure_future(fleet.generate(work))
    await until(lambda: num_connections_to(second_engine.port) >= 4, seconds=30)
    assert not step.done()
    with stopped(hung):
        # 12 s, and what a busy machine adds; it would be lost after 60 s
        await until(lambda: fleet.counts().current == 1, seconds=40)
        assert facts(await step) == before
        assert fleet.num_resent > 0
        # training continues without it
        assert (await sync(1)).synced == ("engine-0",)
        assert {rollout.engine for rollout in await fleet.generate(work[:32])} == {"engine-0"}
    await until(lambda: fleet.counts().current == 2, seconds=60)
    together = await fleet.generate(work[:64])
    assert {rollout.engine for rollout in together} == {"engine-0", "engine-1"}
    version = PolicyVersion(attempt, 1)
    assert {span.version for rollout in together for span in rollout.versions} == {version}
    assert (await sync(2)).synced == ("engine-0", "engine-1")
    assert (fleet.num_lost, fleet.num_stale_answers) == (0, 0)


async def test_an_engine_killed_in_mid_step_is_replaced_and_synced_before_it_serves(
    engine: Any, second_engine: Any, start: Any, attempts: Iterator[int], open_fleet: OpenFleet
) -> None:
    attempt = next(attempts)
    fleet = await open_fleet(engine, second_engine, attempt=attempt, sampling=SamplingSpec(max_tokens=200))
    policy = changed_policy(engine.model_dir, seed=4)
    version = PolicyVersion(attempt, 0)
    await fleet.sync(weights_of(policy), version=version, probe=probe_of(policy))
    work = requests(160)

    step = asyncio.ensure_future(fleet.generate(work))
    # looks at an engine go over one connection at a time: more of them are calls of the step
    await until(lambda: num_connections_to(second_engine.port) >= 4, seconds=30)
    assert not step.done()
    second_engine.kill()
    survived = await step

    assert fleet.num_resent > 0
    assert fleet.num_lost == 0
    assert fleet.counts().current == 1
    some = work[:64]
    assert facts(survived[:64]) == facts(await fleet.generate(some))

    with start(second_engine.folder, name="engine-1", port=second_engine.port):
        await until(lambda: fleet.counts().current == 2, seconds=120)
        together = await fleet.generate(some)
    assert {rollout.engine for rollout in together} == {"engine-0", "engine-1"}
    assert {span.version for rollout in together for span in rollout.versions} == {version}
    assert facts(together) == facts(survived[:64])
    assert fleet.num_lost == 1
    assert fleet.num_stale_answers == 0


async def test_an_engine_that_is_asked_to_stop_hands_over_all_that_it_samples_and_another_one_goes_on(
    engine: Any, start: Any, attempts: Iterator[int], open_fleet: OpenFleet, tmp_path: Path
) -> None:
    """SIGTERM in the middle of completions of 200 tokens, which no end of sequence ends before. It is paused
    until then, so that it does not finish them first."""
    attempt, num_samples = next(attempts), 32
    policy = changed_policy(engine.model_dir, seed=6)
    end = load_tokenizer(engine.model_dir).eos_token_id
    own = json.dumps({"logit_bias": {str(end): -100}})
    work = [replace(asked, own_parameters=own) for asked in requests(num_samples)]
    finished: list[int] = []

    def on_finished(place: int, rollout: Rollout) -> None:
        if not rollout.is_aborted:
            finished.append(place)

    with start(tmp_path / "stopping", name="stopping") as stopping:
        fleet = await open_fleet(
            *(engine, stopping),
            attempt=attempt,
            sampling=SamplingSpec(max_tokens=200),
            max_in_flight=64,
            is_asynchronous=True,
            pause=Pause(PauseMode.ABORT),
        )
        await fleet.sync(weights_of(policy), version=PolicyVersion(attempt, 0), probe=probe_of(policy))
        async with open_session() as session:
            tokens = Tokens(data=engine.data_token, admin=engine.admin_token)
            address = Address("127.0.0.1", stopping.port)
            client = EngineClient(session, address, tokens=tokens, attempt=attempt)
            while True:
                finished.clear()
                before = (await load_of(client, timeout_seconds=60)).num_tokens
                step = asyncio.ensure_future(fleet.generate(work, on_finished=on_finished))
                await until_all_have_tokens(client, step, num_samples // 2, enough=before + 4 * num_samples)
                await client.pause(mode="keep", clears_cache=False, timeout_seconds=60)
                if (await load_of(client, timeout_seconds=60)).num_tokens - before < 100 * num_samples // 2:
                    break
                # while this test waited for a busy machine they were finished, or nearly
                await client.resume(timeout_seconds=60)
                await step
        code = await asyncio.to_thread(stopping.stop)
        rollouts, said = await step, stopping.log()
    assert code == ExitCode.TERMINATED
    assert "Application shutdown complete." in said, "its end was cut off"
    assert re.search(r"INFO .*: handing over what was sampled for [1-9]\d* calls", said)
    assert sorted(finished) == list(range(num_samples))
    handed_over = [rollout for rollout in rollouts if rollout.segments]
    assert len(handed_over) == fleet.num_handed_over == num_samples // 2
    for rollout in rollouts:
        assert len(rollout.completion_ids) == 200
        ids, begin = rollout.prompt_ids + rollout.completion_ids, len(rollout.prompt_ids)
        with torch.no_grad():
            logits = policy(torch.tensor([ids])).logits[0, begin - 1 : -1].float()
        logits[:, end] -= 100
        wanted = logits.log_softmax(-1).gather(-1, torch.tensor(rollout.completion_ids)[:, None])[:, 0]
        assert rollout.rollout_logprobs == pytest.approx(wanted.tolist(), abs=1e-4)
    for rollout in handed_over:
        first, second = rollout.segments
        assert (first.engine, second.engine) == ("stopping", "engine-0")
        assert 0 < first.end == second.start < second.end == 200


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Processes that exist and do nothing."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def num_connections_to(port: int) -> int:
    """How many open connections of this machine lead to `port`."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    ends = [(line.split()[2], line.split()[3]) for line in lines]
    return sum(int(remote.rpartition(":")[2], 16) == port and state == "01" for remote, state in ends)


async def until_all_have_tokens(
    client: EngineClient, step: "asyncio.Future[Any]", num_samples: int, *, enough: float
) -> None:
    """Until an engine samples so many at a time and has come to enough tokens, or the step has ended."""
    while not step.done():
        load = await load_of(client, timeout_seconds=60)
        if load.num_running == num_samples and load.num_tokens >= enough:
            return
