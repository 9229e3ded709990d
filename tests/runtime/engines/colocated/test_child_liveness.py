"""When the engine in a child process counts as hung, second by second."""

import math
from dataclasses import replace

import pytest

from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_runtime.engines.colocated.child_liveness import (
    ChildLimits,
    ChildSigns,
    call_began,
    call_ended,
    first_signs,
    missed_report,
    reported,
    why_hung,
)

LIMITS = ChildLimits(hung_after_seconds=10.0, first_generation_seconds=300.0)


def seconds_until_hung(
    signs: ChildSigns,
    *,
    is_silent: bool,
    call: str = "sample",
    stopped_from: float = math.inf,
    limits: ChildLimits = LIMITS,
) -> float | None:
    """A call begins at second 0. From then on the child says nothing, or once a second that it has taken no
    other step. A silent one is stopped at a second, or runs."""
    signs = call_began(signs, call, now=0.0)
    for second in range(1, 400):
        now = float(second)
        if is_silent:
            signs = missed_report(signs, is_stopped=now >= stopped_from, now=now)
        else:
            signs = reported(signs, signs.num_steps, now=now)
        if why_hung(signs, limits=limits, now=now):
            return now
    return None


def generated(signs: ChildSigns, *, step_seconds: int, limits: ChildLimits = LIMITS) -> ChildSigns:
    """The signs after a generation of one step, which took so long and ended at second 0. The child reported
    once a second."""
    signs = at_second(call_began(signs, "sample", now=-step_seconds), -step_seconds)
    for second in range(1 - step_seconds, 0):
        signs = reported(signs, signs.num_steps, now=second)
        assert not why_hung(signs, limits=limits, now=second)
    return call_ended(reported(signs, signs.num_steps + 1, now=0.0), is_done=True, now=0.0)


def at_second(signs: ChildSigns, now: float) -> ChildSigns:
    """The same signs, last seen then."""
    return replace(signs, process=replace(signs.process, at=now), steps=replace(signs.steps, at=now))


def warm() -> ChildSigns:
    """A child that has finished a generation of short steps."""
    return generated(first_signs(0.0), step_seconds=1)


def test_a_process_that_says_nothing_is_hung_within_15_seconds() -> None:
    assert seconds_until_hung(warm(), is_silent=True) == 11


@pytest.mark.parametrize("call", ["init", "update", "sleep", ""])
@pytest.mark.parametrize("signs", [first_signs(0.0), warm()], ids=["new", "warm"])
def test_a_process_that_says_nothing_while_nothing_is_computed_is_hung_within_15_seconds(
    call: str, signs: ChildSigns
) -> None:
    assert seconds_until_hung(signs, is_silent=True, call=call) == 11


def test_an_engine_that_takes_no_step_is_hung_within_15_seconds_once_it_has_sampled() -> None:
    assert seconds_until_hung(warm(), is_silent=False) == 11


@pytest.mark.parametrize(
    ("call", "is_silent"), [("sample", False), ("sample", True), ("probe_logprobs", True)]
)
@pytest.mark.parametrize("is_done", [None, True, False], ids=["first", "after-probe", "after-failure"])
def test_until_the_first_generation_is_finished_a_limit_of_its_own_applies(
    call: str, is_silent: bool, is_done: bool | None
) -> None:
    signs = first_signs(0.0)
    if is_done is not None:
        signs = call_began(signs, "probe_logprobs" if is_done else "sample", now=0.0)
        signs = call_ended(reported(signs, 1, now=0.0), is_done=is_done, now=0.0)
    assert seconds_until_hung(signs, is_silent=is_silent, call=call) == 301


@pytest.mark.parametrize("call", ["sample", "probe_logprobs"])
@pytest.mark.parametrize(("stopped_from", "found_at"), [(1.0, 11.0), (100.0, 110.0)])
def test_a_process_that_is_stopped_in_its_first_generation_is_found_as_fast_as_later(
    call: str, stopped_from: float, found_at: float
) -> None:
    new = first_signs(0.0)
    assert seconds_until_hung(new, is_silent=True, call=call, stopped_from=stopped_from) == found_at


def test_a_first_generation_that_hangs_is_found_long_before_the_job_counts_as_stalled() -> None:
    stall_seconds = GRPOJobSpec.model_fields["stall_timeout_seconds"].default
    assert ChildLimits().first_generation_seconds <= stall_seconds / 2


def test_an_engine_that_compiled_for_a_minute_is_found_as_fast_as_others_two_generations_later() -> None:
    compiled = generated(first_signs(0.0), step_seconds=60)
    assert seconds_until_hung(compiled, is_silent=True) == 11
    assert seconds_until_hung(compiled, is_silent=False) == 121
    assert seconds_until_hung(generated(compiled, step_seconds=1), is_silent=False) == 11


def test_a_step_may_take_twice_as_long_as_the_longest_of_late() -> None:
    assert seconds_until_hung(generated(warm(), step_seconds=4), is_silent=False) == 11
    slow = generated(warm(), step_seconds=8)
    assert seconds_until_hung(slow, is_silent=False) == 17
    slower = generated(slow, step_seconds=15)
    assert seconds_until_hung(slower, is_silent=False) == 31


def test_an_engine_that_has_nothing_to_do_takes_no_step_and_is_well() -> None:
    signs = warm()
    for second in range(1, 200):
        signs = reported(signs, signs.num_steps, now=float(second))
        assert not why_hung(signs, limits=LIMITS, now=float(second))


def test_what_was_quiet_before_a_call_is_not_held_against_it() -> None:
    signs = call_began(warm(), "sample", now=500.0)
    signs = reported(signs, signs.num_steps, now=501.0)
    signs = reported(signs, signs.num_steps, now=502.0)
    assert not why_hung(signs, limits=LIMITS, now=502.0)


def test_steps_that_go_on_are_well_however_slow_the_samples_are() -> None:
    signs = call_began(warm(), "sample", now=0.0)
    for second in range(9, 900, 9):
        signs = reported(signs, second, now=float(second))
        assert not why_hung(signs, limits=LIMITS, now=float(second))


def test_a_rank_that_stood_still_itself_does_not_blame_its_engine() -> None:
    signs = missed_report(warm(), is_stopped=True, now=1000.0)
    assert not why_hung(signs, limits=LIMITS, now=1000.0)


def test_the_engine_that_replaces_one_which_may_only_have_been_slow_has_more_time() -> None:
    assert seconds_until_hung(warm(), is_silent=False, limits=LIMITS.times(2.0)) == 21


@pytest.mark.parametrize(
    ("patience", "step_seconds", "expected"),
    [(1.0, 4, 11), (1.0, 8, 17), (1.0, 15, 31), (2.0, 4, 21), (2.0, 8, 21), (2.0, 15, 31)],
)
def test_patience_and_a_long_step_do_not_multiply_and_the_step_counts_for_one_more_generation(
    patience: float, step_seconds: int, expected: int
) -> None:
    limits = LIMITS.times(patience)
    # the step may have been taken while the patience was greater
    slow = generated(warm(), step_seconds=step_seconds, limits=LIMITS.times(2.0))
    assert seconds_until_hung(slow, is_silent=False, limits=limits) == expected
    well = generated(slow, step_seconds=1, limits=limits)
    assert seconds_until_hung(well, is_silent=False, limits=limits) == 10 * patience + 1
