"""Completions that other weights than the newest had a part in are not used, counted, and sampled again."""

import asyncio

import pytest
from fake_engine_server import FakeEngine
from fleet_builder import fleet_of, requests, seeds, sync, until, versions

from grpo_runtime.engines.routes import SAMPLE_PATH

pytestmark = pytest.mark.usefixtures("pod_environment")


@pytest.mark.parametrize(
    "tokens",
    [
        ("1.0", "1.1", "1.1"),
        ("1.1", "1.0", "1.1"),
        ("1.1", "1.1", "1.0"),
        ("1.0", "1.0", "1.0"),
        # a later attempt's step of the same number, and a step that this attempt has not reached
        ("2.1", "2.1", "2.1"),
        ("1.2", "1.2", "1.2"),
    ],
    ids=["first", "middle", "last", "all", "another attempt", "newer"],
)
async def test_a_completion_with_other_weights_in_any_span_is_thrown_away_and_sampled_again(
    tokens: tuple[str, ...],
) -> None:
    behind, good = FakeEngine("behind"), FakeEngine("good")
    async with fleet_of(behind, good) as fleet:
        await sync(fleet, step=1)
        behind.vllm.next_versions.append(tokens)
        # 3 samples a call: the stale completion makes its whole call worthless
        rollouts = await fleet.generate(requests(24))

        assert seeds(rollouts) == list(range(100, 124))
        assert versions(rollouts) == {"1.1"}
        assert fleet.num_stale_answers == 3
        assert fleet.num_resent >= 3
        asked = [call for engine in (behind, good) for call in engine.vllm.asked]
        assert len(asked) == 8 + fleet.num_resent // 3


async def test_an_engine_with_stale_answers_gets_no_work_before_it_has_been_synced_again() -> None:
    behind = FakeEngine("behind")
    async with fleet_of(behind) as fleet:
        await sync(fleet, step=1)
        behind.vllm.next_versions.append(("1.0", "1.1", "1.1"))
        behind.vllm.reached.clear()
        rollouts = await fleet.generate(requests(1))

        assert seeds(rollouts) == [100]
        assert versions(rollouts) == {"1.1"}
        # how it is and what it does is asked at any time
        calls = [call for call in behind.vllm.reached if not call.startswith("GET ")]
        sample, pause, *between, admitted = calls
        assert (sample, pause, admitted) == ("POST /grpo/v1/sample", "POST /pause", sample)
        assert "POST /finish_weight_update" in between
        assert fleet.num_stale_answers == 1


async def test_a_completion_that_new_weights_interrupted_is_thrown_away_and_sampled_again() -> None:
    engine = FakeEngine("a")
    async with fleet_of(engine) as fleet:
        may_go_on = asyncio.Event()
        engine.vllm.during[SAMPLE_PATH] = may_go_on.wait
        step = asyncio.ensure_future(fleet.generate(requests(4)))
        await until(lambda: engine.vllm.num_sampling == 4)
        engine.vllm.during.clear()
        await sync(fleet, step=1)
        may_go_on.set()

        rollouts = await step
        assert seeds(rollouts) == [100, 101, 102, 103]
        assert versions(rollouts) == {"1.1"}
        # a pause that had aborted them would have spoiled them in another way
        assert fleet.num_stale_answers > 0
