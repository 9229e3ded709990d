"""What becomes of samples of engines that stop, are removed, hang or are lost, with pauseMode Abort, without
models. Each sample has a prompt of its own, and each of two engines is given two of four."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_engine_server import FakeEngine, staging_engine
from fake_vllm import LARGEST_SEED, NUM_TOKENS, RefusedError
from fleet_builder import fleet_of, hang, raising, sync, until

from grpo_api.v1alpha1.spec import PauseMode, SamplingSpec
from grpo_runtime.data.seeds import segment_seed
from grpo_runtime.engines.fleet.core import FleetCore
from grpo_runtime.engines.fleet.engine_client import Address
from grpo_runtime.engines.fleet.settings import Pause
from grpo_runtime.engines.routes import HAND_OVER_PATH, SAMPLE_PATH, UPDATE_PATH
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout, Segment

pytestmark = pytest.mark.usefixtures("pod_environment")
NUM_SAMPLES = 4


@asynccontextmanager
async def aborting_fleet_of(*engines: FakeEngine, **changes: Any) -> AsyncIterator[FleetCore]:
    settings: dict[str, Any] = {
        "is_asynchronous": True,
        "sampling": SamplingSpec(temperature=1.0, max_tokens=8),
        "pause": Pause(PauseMode.ABORT),
    }
    async with fleet_of(*engines, **settings, **changes) as fleet:
        yield fleet


class Step:
    """Four samples, and how often each was finished."""

    def __init__(self, fleet: FleetCore) -> None:
        self._fleet = fleet
        self.finished: list[int] = []
        requests = [GenerateRequest((4 + place,), seed=100 * place) for place in range(NUM_SAMPLES)]
        self._rollouts = asyncio.ensure_future(fleet.generate(requests, on_finished=self._note))

    def _note(self, place: int, rollout: Rollout) -> None:
        if not rollout.is_aborted:
            self.finished.append(place)

    async def rollouts(self) -> list[Rollout]:
        """All of them, each of which was finished once."""
        rollouts = await self._rollouts
        assert sorted(self.finished) == list(range(NUM_SAMPLES))
        assert [rollout.prompt_ids for rollout in rollouts] == [(4 + place,) for place in range(NUM_SAMPLES)]
        return rollouts


def sampled(place: int, *, behind: int = 0) -> tuple[int, ...]:
    """What is sampled of a sample that an engine has handed over `behind` so many tokens."""
    seed = segment_seed(100 * place, start=behind) % LARGEST_SEED
    rest = tuple(seed + number for number in range(NUM_TOKENS))
    return (*(100 * place + number for number in range(behind)), *rest)


async def test_an_engine_that_stops_hands_over_all_of_its_samples_and_another_one_goes_on() -> None:
    """The engine refuses to go on with the first itself, and then the second is still on its way."""
    stopping, other = staging_engine("stopping"), staging_engine("other")
    stopping.vllm.during[SAMPLE_PATH] = hang
    stopping.vllm.num_handed_over = 2
    answers = itertools.count()
    async with aborting_fleet_of(stopping, other) as fleet:

        async def before_answer() -> None:
            if next(answers) == 1:
                await until(lambda: len(fleet.workers()) == 1)

        stopping.before_answer = before_answer
        step = Step(fleet)
        await until(lambda: stopping.vllm.num_sampling == 2 and len(step.finished) == 2)
        await stopping.begin_to_stop()
        rollouts = await step.rollouts()
        assert (fleet.num_handed_over, fleet.num_resent) == (2, 1)
    left = [place for place, rollout in enumerate(rollouts) if rollout.segments]
    assert len(left) == 2
    for place, rollout in enumerate(rollouts):
        assert rollout.completion_ids == sampled(place, behind=2 if place in left else 0)
    for place in left:
        assert rollouts[place].segments == (Segment("stopping", 0, 2), Segment("other", 2, 5))
        assert rollouts[place].engine == "stopping, other"


async def test_an_engine_that_is_scaled_away_still_hands_over_once_the_fleet_has_forgotten_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaving, other = staging_engine("leaving"), staging_engine("other")
    leaving.vllm.during[SAMPLE_PATH] = hang
    may_answer = asyncio.Event()
    leaving.before_answer = may_answer.wait
    loop, names = asyncio.get_running_loop(), {"leaving.test", "127.0.0.1"}

    async def getaddrinfo(host: str, port: int, *, type: int) -> list[object]:
        if host not in names:
            raise socket.gaierror
        return [(socket.AF_INET, type, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    async with leaving.serving():
        others = [Address("leaving.test", leaving.address.port)]
        async with aborting_fleet_of(other, others=others, desired=2) as fleet:
            step = Step(fleet)
            await until(lambda: leaving.vllm.num_sampling == 2 and len(step.finished) == 2)
            await leaving.begin_to_stop()
            leaving.take_no_connections()
            names.remove("leaving.test")
            await until(lambda: fleet.counts().known == 1)
            may_answer.set()
            rollouts = await step.rollouts()
            assert (fleet.num_handed_over, fleet.num_resent) == (2, 0)
    assert [rollout.engine for rollout in rollouts].count("leaving, other") == 2


async def test_a_hung_engine_hands_over_what_its_server_has_and_another_one_goes_on() -> None:
    hanging, other = staging_engine("hanging"), staging_engine("other")
    limits = {"hung_after_seconds": 0.3, "first_step_seconds": 0.3, "probe_timeout_seconds": 0.3}
    async with aborting_fleet_of(hanging, other, **limits) as fleet:
        hanging.freeze_core()
        rollouts = await Step(fleet).rollouts()
        assert f"POST {HAND_OVER_PATH}" in hanging.vllm.reached
        assert (fleet.num_handed_over, fleet.num_resent) == (2, 0)
    assert sorted(rollout.engine for rollout in rollouts) == ["hanging, other"] * 2 + ["other"] * 2


async def test_an_engine_that_did_not_get_its_weights_hands_over_what_the_old_ones_sampled() -> None:
    failing, other = staging_engine("failing"), staging_engine("other")
    async with aborting_fleet_of(failing, other) as fleet:
        failing.vllm.during |= {SAMPLE_PATH: hang, UPDATE_PATH: raising(RefusedError("no memory is left"))}
        step = Step(fleet)
        await until(lambda: failing.vllm.num_sampling == 2 and len(step.finished) == 2)
        assert set((await sync(fleet, step=1)).failed) == {"failing"}
        rollouts = await step.rollouts()
        assert (fleet.num_handed_over, fleet.num_resent) == (2, 0)
    spans = [
        [(str(span.version), span.start, span.end) for span in rollout.versions]
        for rollout in rollouts
        if rollout.segments
    ]
    assert spans == [[("1.0", 0, 1), ("1.1", 1, 4)]] * 2


async def test_samples_of_an_engine_that_is_lost_go_on_from_what_was_handed_over_before() -> None:
    """One of them had been handed over for new weights, and the others begin anew."""
    lost, other = staging_engine("lost"), staging_engine("other")
    async with aborting_fleet_of(lost, other) as fleet:
        may_sample = asyncio.Event()
        for engine in (lost, other):
            engine.vllm.during[SAMPLE_PATH] = may_sample.wait
        step = Step(fleet)
        await until(lambda: lost.vllm.num_sampling == other.vllm.num_sampling == 2)
        lost.vllm.num_handed_over, other.vllm.num_handed_over = 2, 0
        await sync(fleet, step=1)
        await until(lambda: lost.vllm.num_sampling == other.vllm.num_sampling == 2)
        lost.hang_up()
        await until(lambda: fleet.num_resent == 2)
        may_sample.set()
        rollouts = await step.rollouts()
        assert fleet.num_handed_over == 2
    for place, rollout in enumerate(rollouts):
        begun = [segment.end for segment in rollout.segments][:1]
        assert rollout.completion_ids == sampled(place, behind=begun[0] if begun else 0)
        assert rollout.rollout_logprobs == (-1.0,) * len(rollout.completion_ids)
    assert sorted(rollout.engine for rollout in rollouts) == ["lost, other"] * 2 + ["other"] * 2


async def test_an_engine_that_does_not_hand_over_in_time_has_its_samples_taken_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    frozen, other = staging_engine("frozen"), staging_engine("other")
    limits = {"hung_after_seconds": 0.3, "first_step_seconds": 0.3, "probe_timeout_seconds": 0.3}
    async with aborting_fleet_of(frozen, other, hand_over_seconds=0.2, **limits) as fleet:
        frozen.freeze_core()
        frozen.vllm.during[HAND_OVER_PATH] = hang
        rollouts = await Step(fleet).rollouts()
        assert (fleet.num_handed_over, fleet.num_resent) == (0, 2)
    assert [rollout.completion_ids for rollout in rollouts] == [sampled(place) for place in range(4)]
    assert "engine frozen hands over nothing more" in caplog.text


async def test_nothing_is_taken_of_an_engine_that_gave_a_bad_answer() -> None:
    """One of its two samples has a token of unknown weights, and the other is in work."""
    bad, other = staging_engine("bad"), staging_engine("other")
    is_first = iter((True,))

    async def sample() -> None:
        if not next(is_first, False):
            await hang()

    async with aborting_fleet_of(bad, other) as fleet:
        bad.vllm.during[SAMPLE_PATH] = sample
        bad.vllm.next_versions.append(("7.7",) * NUM_TOKENS)
        rollouts = await Step(fleet).rollouts()
        assert (fleet.num_handed_over, fleet.num_stale_answers) == (0, 1)
        assert f"POST {HAND_OVER_PATH}" not in bad.vllm.reached
    assert {rollout.engine for rollout in rollouts} == {"other"}


async def test_an_engine_that_was_verified_since_its_bad_answer_hands_over_again() -> None:
    bad = staging_engine("bad")
    async with aborting_fleet_of(bad) as fleet:
        [key] = fleet.workers()
        bad.vllm.next_versions.append(("7.7",) * NUM_TOKENS)
        await Step(fleet).rollouts()
        assert fleet.num_stale_answers == 1
        # it has answered the others, for which it was verified anew
        await fleet.hand_over(key)
        assert f"POST {HAND_OVER_PATH}" in bad.vllm.reached
