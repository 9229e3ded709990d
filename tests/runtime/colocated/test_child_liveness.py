"""When the engine in a child process counts as frozen, second by second."""

from dataclasses import replace

import pytest

from grpo_runtime.colocated.child_liveness import (
    ChildLimits,
    ChildSigns,
    asked,
    first_signs,
    heard,
    silent,
    why_frozen,
)

LIMITS = ChildLimits(frozen_after_seconds=10.0, first_step_seconds=120.0)


def seconds_until_frozen(signs: ChildSigns, *, is_silent: bool, limits: ChildLimits = LIMITS) -> float | None:
    """From second 0 on the child says nothing, or says once a second that it has taken no other step."""
    signs = asked(signs, is_sampling=True, now=0.0)
    for second in range(1, 400):
        now = float(second)
        signs = silent(signs) if is_silent else heard(signs, signs.num_steps, is_sampling=True, now=now)
        if why_frozen(signs, limits=limits, now=now):
            return now
    return None


def warm() -> ChildSigns:
    """A child that has taken a step of sampling at second 0."""
    return heard(first_signs(-1.0), 1, is_sampling=True, now=0.0)


@pytest.mark.parametrize("signs", [first_signs(0.0), warm()])
def test_a_process_that_says_nothing_is_frozen_within_15_seconds(signs: ChildSigns) -> None:
    assert seconds_until_frozen(signs, is_silent=True) == 11


def test_an_engine_that_takes_no_step_is_frozen_within_15_seconds_once_it_has_sampled() -> None:
    assert seconds_until_frozen(warm(), is_silent=False) == 11


def test_the_first_step_may_compile_also_after_the_probe_took_one() -> None:
    probed = heard(first_signs(-1.0), 1, is_sampling=False, now=0.0)
    assert seconds_until_frozen(probed, is_silent=False) == 121


def test_an_engine_that_has_nothing_to_do_takes_no_step_and_is_well() -> None:
    signs = warm()
    for second in range(1, 200):
        signs = heard(signs, 1, is_sampling=False, now=float(second))
        assert not why_frozen(signs, limits=LIMITS, now=float(second))


def test_what_was_quiet_before_a_call_is_not_held_against_it() -> None:
    signs = asked(warm(), is_sampling=True, now=500.0)
    signs = heard(signs, 1, is_sampling=True, now=501.0)
    signs = heard(signs, 1, is_sampling=True, now=502.0)
    assert not why_frozen(signs, limits=LIMITS, now=502.0)


def test_steps_that_go_on_are_well_however_slow_the_samples_are() -> None:
    signs = warm()
    for second in range(9, 900, 9):
        signs = heard(signs, second, is_sampling=True, now=float(second))
        assert not why_frozen(signs, limits=LIMITS, now=float(second))


def test_a_rank_that_stood_still_itself_does_not_blame_its_engine() -> None:
    signs = silent(warm())
    assert not why_frozen(signs, limits=LIMITS, now=1000.0)


def test_the_engine_that_replaces_one_which_may_only_have_been_slow_has_more_time() -> None:
    assert seconds_until_frozen(warm(), is_silent=False, limits=LIMITS.times(2.0)) == 21


def test_one_that_needed_more_time_keeps_it_for_one_more_call() -> None:
    signs = asked(warm(), is_sampling=True, now=0.0)
    for second in range(1, 16):
        signs = heard(signs, 1, is_sampling=True, now=float(second))
        assert not why_frozen(signs, limits=LIMITS.times(2.0), now=float(second))
    slow = heard(signs, 2, is_sampling=True, now=16.0)
    assert seconds_until_frozen(replace(slow, steps=slow.steps.from_now(0.0)), is_silent=False) == 33
    well = asked(slow, is_sampling=True, now=17.0)
    assert seconds_until_frozen(replace(well, steps=well.steps.from_now(0.0)), is_silent=False) == 11
