"""Completions of several turns, over an engine that is a fake: which token is whose, and to what bits."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from skipping_clock import SkippingClock

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.seeds import turn_seed
from grpo_runtime.errors import UserError
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.model.tiny import char_tokenizer
from grpo_runtime.process.user_code import FunctionFile
from grpo_runtime.rollouts.collect import Source
from grpo_runtime.rollouts.function.turns import FunctionOptions, RolloutFunction
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import (
    FunctionFailedError,
    GenerateRequest,
    GivenUp,
    OnFinished,
    Rollout,
    VersionSpan,
)

MAX_TOKENS = 8
PAUSES = (0.0, 0.01)
HUNG_SECONDS = 60.0
"""For what comes in a moment, when it never comes."""
TOKENIZER = char_tokenizer(max_length_tokens=64)
DECODER = CompletionDecoder.of(TOKENIZER)
PROMPT = Prompt(index=4, content="3+4", columns={"answer": "7"})
PROMPT_IDS = tuple(TOKENIZER("3+4")["input_ids"])
SEEDS = (100, 101)
REQUESTS = [GenerateRequest(PROMPT_IDS, seed=seed) for seed in SEEDS]
FROM_THE_JOURNAL = Rollout(PROMPT_IDS, (1,), (-1.0,), (), True, "fake")


class CountingEngines:
    """Samples tokens 50, 51, ..., as many as a request may have; logprobs say in which call and where."""

    def __init__(self, *, is_concurrent: bool = False) -> None:
        self.is_concurrent = is_concurrent
        self.calls: list[list[GenerateRequest]] = []
        self.is_awake = False

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        assert on_finished is None
        self.calls.append(list(requests))
        self.is_awake = stays_awake
        number = len(self.calls)
        return [self._rollout(request, number) for request in requests]

    def _rollout(self, request: GenerateRequest, number: int) -> Rollout:
        assert request.max_tokens is not None
        count = request.max_tokens
        return Rollout(
            prompt_ids=request.prompt_ids,
            completion_ids=tuple(range(50, 50 + count)),
            rollout_logprobs=tuple(-number - place / 8 for place in range(count)),
            versions=(VersionSpan(PolicyVersion(attempt=1, step=number), 0, count),),
            is_terminated=False,
            engine=f"engine-{number}",
        )

    async def rest(self) -> None:
        self.is_awake = False


def function_of(
    function: str | Path,
    *,
    timeout_seconds: float = 60,
    max_turns: int | None = None,
    hang_seconds: float = HUNG_SECONDS,
) -> RolloutFunction:
    """One of the examples, or of a file."""
    is_file = isinstance(function, Path)
    file = FunctionFile(path=Path(function), function="roll", place="key a of ConfigMap b")
    options = FunctionOptions(
        function=None if is_file else f"rollout_examples:{function}",
        file=file if is_file else None,
        timeout_seconds=timeout_seconds,
        max_turns=max_turns,
        max_tokens=MAX_TOKENS,
    )
    return RolloutFunction(
        options, decoder=DECODER, vocab_size=len(TOKENIZER), pauses_seconds=PAUSES, hang_seconds=hang_seconds
    )


async def make(
    function: str | Path,
    *,
    engines: CountingEngines | None = None,
    timeout_seconds: float = 60,
    max_turns: int | None = None,
    of: Sequence[int] = (0, 1),
    told: list[int] | None = None,
) -> list[Rollout]:
    """The completions of the step that follows two. Raises FunctionFailedError with the failure of one that
    is given up."""
    engines = engines or CountingEngines()
    running = function_of(function, timeout_seconds=timeout_seconds, max_turns=max_turns)
    async with running as rollout_function:
        group = Group(step=2, number=0, prompt=PROMPT, requests=REQUESTS)
        for index in set(range(len(REQUESTS))) - set(of):
            group.rollouts[index] = FROM_THE_JOURNAL

        def take(_: Group, index: int, found: Rollout | GivenUp) -> None:
            group.rollouts[index] = found
            if told is not None:
                told.append(index)

        source = rollout_function.over(engines)  # type: ignore[arg-type]
        await source.sample([group], take=take)
        for given_up in group.given_up:
            raise FunctionFailedError(given_up.why)
        rollouts = [group.completions[index] for index in of]
    assert not engines.is_awake
    return rollouts


async def sample_group(source: Source, answer: str) -> Rollout:
    """The completion of a group of its own, which a function knows by its answer. Raises as `make`."""
    prompt = replace(PROMPT, columns={"answer": answer})
    group = Group(step=2, number=0, prompt=prompt, requests=REQUESTS[:1])

    def take(_: Group, index: int, found: Rollout | GivenUp) -> None:
        group.rollouts[index] = found

    await source.sample([group], take=take, stays_awake=True)
    for given_up in group.given_up:
        raise FunctionFailedError(given_up.why)
    return group.completions[0]


@pytest.fixture(autouse=True)
def examples_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


async def test_every_token_is_known_as_sampled_or_added_with_its_logprob_and_its_version() -> None:
    engines, told = CountingEngines(), []
    first, second = await make("with_a_tool", engines=engines, told=told)
    added = tuple(TOKENIZER("N7")["input_ids"])
    assert TOKENIZER.decode([50]) == "N"
    assert first.prompt_ids == PROMPT_IDS
    assert first.completion_ids == (50, *added, 50, *added, 50, 51)
    assert first.loss_mask == (True, False, False, True, False, False, True, True)
    assert first.rollout_logprobs == (-1.0, 0.0, 0.0, -2.0, 0.0, 0.0, -3.0, -3.125)
    assert [(span.version.step, span.start, span.end) for span in first.versions] == [
        (1, 0, 1),
        (2, 3, 4),
        (3, 6, 8),
    ]
    assert first.engine == "engine-1, engine-2, engine-3"
    assert second.loss_mask == (True, False, False, True, True, True, True, True)
    assert (first.num_sampled, second.num_sampled) == (4, 6)
    assert told == [1, 0]


async def test_a_turn_follows_everything_before_it_with_a_seed_and_a_length_of_its_own() -> None:
    engines = CountingEngines()
    [rollout] = await make("with_a_tool", engines=engines, of=[0])
    requests = [request for [request] in engines.calls]
    ends = [0, 3, 6]
    assert [request.prompt_ids for request in requests] == [
        PROMPT_IDS + rollout.completion_ids[:end] for end in ends
    ]
    assert [request.max_tokens for request in requests] == [1, 1, MAX_TOKENS - 6]
    seeds = [request.seed for request in requests]
    assert seeds == [turn_seed(SEEDS[0], turn=turn) for turn in range(3)]
    assert seeds[0] == SEEDS[0]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**62 for seed in seeds)


async def test_a_completion_is_the_same_whatever_others_are_made_with_it() -> None:
    both = await make("with_a_tool")
    assert [await make("with_a_tool", of=[index]) for index in (0, 1)] == [[one] for one in both]


async def test_a_completion_is_the_same_where_the_engines_take_each_turn_at_once() -> None:
    engines = CountingEngines(is_concurrent=True)
    separate, together = await make("with_a_tool", engines=engines), await make("with_a_tool")
    assert {len(call) for call in engines.calls} == {1}
    assert len(engines.calls) == 5
    for name in ("completion_ids", "loss_mask", "is_terminated"):
        assert [getattr(one, name) for one in separate] == [getattr(one, name) for one in together]


@pytest.mark.parametrize("is_concurrent", [False, True])
async def test_a_completion_does_not_wait_for_the_tool_of_another_one(is_concurrent: bool) -> None:
    finished: list[int] = []
    engines = CountingEngines(is_concurrent=is_concurrent)
    rollouts = await make("waits_for_the_second_sample", engines=engines, told=finished)
    assert finished == [1, 0]
    assert [rollout.completion_ids for rollout in rollouts] == [(50, 50), (50, 50, 50)]


async def test_a_completion_of_one_turn_is_the_one_that_the_engines_make_without_a_function() -> None:
    engines = CountingEngines()
    [rollout] = await make("one_turn", engines=engines, of=[0])
    [[asked]] = engines.calls
    assert asked == GenerateRequest(
        PROMPT_IDS, SEEDS[0], max_tokens=MAX_TOKENS, num_group_tokens=len(PROMPT_IDS), session=0
    )
    assert rollout.loss_mask is None
    assert rollout.completion_ids == tuple(range(50, 50 + MAX_TOKENS))


async def test_a_function_that_ends_with_what_a_tool_said_has_ended_by_itself() -> None:
    rollout, _ = await make("ends_with_a_tool")
    assert (rollout.completion_ids, rollout.is_terminated) == ((50, 7, 8), True)


async def test_a_completion_that_was_cut_stays_cut_where_nothing_is_added() -> None:
    rollout, _ = await make("gets_nothing_from_a_tool")
    assert (len(rollout.completion_ids), rollout.is_terminated) == (MAX_TOKENS, False)


@pytest.mark.parametrize(("max_turns", "length"), [(None, MAX_TOKENS), (2, 5)])
async def test_a_function_that_never_ends_is_cut_at_max_tokens_or_max_turns(
    max_turns: int | None, length: int
) -> None:
    rollouts = await make("for_ever", max_turns=max_turns)
    assert [len(rollout.completion_ids) for rollout in rollouts] == [length, length]
    assert not any(rollout.is_terminated for rollout in rollouts)


async def test_a_function_gets_the_row_the_turn_and_a_seed() -> None:
    rollout, _ = await make("tells_what_it_got")
    assert rollout.completion_ids == (50, 51, *TOKENIZER("0")["input_ids"])


async def test_code_from_a_config_map_is_found(tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.write_text("async def roll(conversation):\n    await conversation.sample(max_tokens=3)\n")
    assert [rollout.completion_ids for rollout in await make(path)] == [(50, 51, 52)] * 2


@pytest.mark.parametrize("fails", ["raises", "hangs", "dies"])
async def test_a_function_that_fails_once_makes_what_is_not_finished_again_and_nothing_else(
    fails: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FAILS", fails)
    monkeypatch.setenv("HAS_FAILED", str(tmp_path / "has-failed"))
    engines, told = CountingEngines(), []
    seconds = 5 if fails == "hangs" else 60
    rollouts = await make("fails_once", engines=engines, told=told, timeout_seconds=seconds)
    assert (tmp_path / "has-failed").exists()
    undisturbed = await make("with_a_tool")
    assert [rollout.completion_ids for rollout in rollouts] == [one.completion_ids for one in undisturbed]
    assert [rollout.loss_mask for rollout in rollouts] == [one.loss_mask for one in undisturbed]
    assert sorted(told) == [0, 1]
    num_again = 3
    again = engines.calls[-num_again:]
    assert [len(call) for call in again] == [1] * num_again
    seeds = [SEEDS[0], *(turn_seed(SEEDS[0], turn=number) for number in (1, 2))]
    assert [request.seed for [request] in again] == seeds
    assert "In 0 s its completion begins anew" in caplog.text


async def test_a_function_that_goes_on_to_fail_is_tried_three_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    engines = CountingEngines()
    with pytest.raises(UserError, match=r"catch what a tool may raise\. It was tried 3 times$"):
        await make("notes_and_raises", engines=engines, of=[0])
    assert (tmp_path / "calls").read_text() == "a call\n" * 3
    assert len(engines.calls) == 3


async def test_what_a_failed_try_has_begun_does_not_go_on_in_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HAS_FAILED", str(tmp_path / "has-failed"))
    [rollout] = await make("leaves_a_task_when_it_fails", of=[0])
    assert rollout.completion_ids == (50, *TOKENIZER("!")["input_ids"], 50)


async def test_a_function_that_hangs_when_all_are_finished_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HAS_FAILED", str(tmp_path / "has-failed"))
    engines = CountingEngines()
    rollouts = await make("hangs_when_it_is_cut", engines=engines, max_turns=1, timeout_seconds=5)
    assert [len(rollout.completion_ids) for rollout in rollouts] == [1, 1]
    assert len(engines.calls) == 1


async def test_a_function_that_raises_fails_its_own_call_and_leaves_the_process_to_the_others() -> None:
    async with function_of("waits_for_two_failures") as function:
        source = function.over(CountingEngines(is_concurrent=True))  # type: ignore[arg-type]
        other = asyncio.create_task(sample_group(source, "waits"))
        with pytest.raises(FunctionFailedError, match=r"It was tried 3 times$"):
            await sample_group(source, "raises")
        assert (await other).completion_ids == (50, 50)


async def test_a_completion_that_ends_the_process_at_each_try_fails_its_own_call_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is in the hands of the function at each of its ends has as many failures as the one at fault."""
    deaths = tmp_path / "deaths"
    deaths.touch()
    monkeypatch.setenv("CALLS", str(deaths))
    async with function_of("dies_beside_another") as function:
        source = function.over(CountingEngines(is_concurrent=True))  # type: ignore[arg-type]
        other = asyncio.create_task(sample_group(source, "waits"))
        with pytest.raises(FunctionFailedError, match=r"ended with code 3.*It was tried 3 times$"):
            await sample_group(source, "dies")
        assert (await other).completion_ids == (50, 50)
    assert deaths.read_text() == "xxx"


class HoldingEngines(CountingEngines):
    """Give the first turn that has one token only when they are released."""

    def __init__(self) -> None:
        super().__init__(is_concurrent=True)
        self.is_holding, self.is_released = asyncio.Event(), asyncio.Event()

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        if requests[0].max_tokens == 1 and not self.is_holding.is_set():
            self.is_holding.set()
            await self.is_released.wait()
        return await super().generate(requests, on_finished=on_finished, stays_awake=stays_awake)


async def test_a_tool_that_is_late_fails_its_own_call_and_leaves_the_process_to_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    has_failed, clock, seconds = tmp_path / "has-failed", SkippingClock(monkeypatch), HUNG_SECONDS
    monkeypatch.setenv("HAS_FAILED", str(has_failed))
    monkeypatch.setenv("CALLS", str(tmp_path / "processes"))
    engines = HoldingEngines()
    async with function_of("notes_its_process", timeout_seconds=seconds) as function:
        source = function.over(engines)  # type: ignore[arg-type]
        other = asyncio.create_task(sample_group(source, "samples"))
        await engines.is_holding.wait()
        late = asyncio.create_task(sample_group(source, "waits"))
        found = await clock.skip_once(has_failed.exists, during=late, seconds=seconds)
        assert found.completion_ids == (50, 51)
        engines.is_released.set()
        assert (await other).completion_ids == (50,)
    assert f"it did not answer within {seconds:g} s" in caplog.text
    first, *others = (tmp_path / "processes").read_text().split()
    assert others == [first] * 2


@pytest.mark.parametrize("fails", ["blocks", "dies"])
async def test_all_calls_notice_a_process_that_hangs_or_dies_and_one_other_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    blocks, clock, seconds = tmp_path / "blocks", SkippingClock(monkeypatch), HUNG_SECONDS
    monkeypatch.setenv("HAS_FAILED", str(tmp_path / "has-failed"))
    monkeypatch.setenv("CALLS", str(tmp_path / "processes"))
    monkeypatch.setenv("BLOCKS", str(blocks))
    engines = HoldingEngines()
    async with function_of("notes_its_process", timeout_seconds=seconds, hang_seconds=0.2) as function:
        source = function.over(engines)  # type: ignore[arg-type]
        others = [asyncio.create_task(sample_group(source, "samples")) for _ in range(2)]
        await engines.is_holding.wait()
        failing = asyncio.create_task(sample_group(source, fails))
        if fails == "blocks":
            await clock.skip_once(blocks.exists, during=failing, seconds=seconds)
        assert (await failing).completion_ids == (50, 51)
        # of one of them the turn is still held
        assert [one.completion_ids for one in await asyncio.gather(*others)] == [(50,), (50,)]
    processes = (tmp_path / "processes").read_text().split()
    assert len(set(processes)) == 2
    why = {
        "blocks": "its event loop was blocked for more than 0.2 s",
        "dies": "its process ended with code 3",
    }
    assert f"in step 3: {why[fails]}: give" in caplog.text


async def test_a_call_that_is_given_up_ends_its_conversations_and_no_others() -> None:
    engines = HoldingEngines()
    async with function_of("waits_for_one_that_is_given_up") as function:
        source = function.over(engines)  # type: ignore[arg-type]
        given_up = asyncio.create_task(sample_group(source, "is given up"))
        other = asyncio.create_task(sample_group(source, "waits"))
        await engines.is_holding.wait()
        given_up.cancel()
        async with asyncio.timeout(HUNG_SECONDS):
            assert (await other).completion_ids == (50, 51)
        assert given_up.cancelled()


class CallingEngines(CountingEngines):
    """Connects to the server of the function while the second turn is sampled, until it hangs up."""

    def __init__(self, port_file: Path) -> None:
        super().__init__()
        self._port_file = port_file

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        if len(self.calls) == 1:
            async with asyncio.timeout(HUNG_SECONDS):
                reader, writer = await asyncio.open_connection("127.0.0.1", int(self._port_file.read_text()))
                assert await reader.read() == b""
                writer.close()
        return await super().generate(requests, on_finished=on_finished, stays_awake=stays_awake)


@pytest.mark.parametrize("function", ["answers_while_it_waits", "gives_up_a_turn"])
async def test_what_a_function_has_begun_goes_on_while_a_turn_is_sampled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, function: str
) -> None:
    monkeypatch.setenv("CALLS", str(tmp_path / "port"))
    engines = CallingEngines(tmp_path / "port")
    [rollout] = await make(function, engines=engines, of=[0])
    assert rollout.completion_ids == (50, 50)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("raises", "raised ValueError: the tool is gone for row 5 of the dataset in step 3: catch what"),
        ("samples_twice_at_once", "raised RuntimeError: sample was called while another turn"),
        ("hangs", r"turn for row 5 of the dataset in step 3: it did not answer within 0\.5 s: give what it"),
        ("dies", "to its next turn in step 3: its process ended with code 3"),
        (
            "adds_what_no_tokenizer_has",
            "added token 99, but tokenizer and model have 99.* It was tried 3 times",
        ),
        (
            "fills_the_room",
            "sampled no turn for row 5 of the dataset in step 3 before.* It was tried 3 times",
        ),
        ("adds_half_a_character", "the function added text that is not Unicode.* It was tried 3 times"),
        ("no_coroutine", "is no coroutine: write `async def`"),
        ("missing", "module rollout_examples has no attribute missing"),
    ],
)
async def test_a_function_that_cannot_be_used_ends_the_run_with_a_sentence(
    function: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=rf"^sampling\.rolloutFunction: .*{sentence}"):
        await make(function, timeout_seconds=0.5 if function == "hangs" else 60)
