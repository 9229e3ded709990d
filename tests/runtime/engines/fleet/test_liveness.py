"""Which engine hangs, from what is seen of it once a second."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat

import pytest

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.liveness import (
    Limits,
    Look,
    Signs,
    excused,
    first_signs,
    looked,
    taken_out,
    unanswered,
    warm,
    why_hung,
)

LIMITS = Limits(hung_after_seconds=10, first_step_seconds=120)
VERSION = PolicyVersion(1, 1)
SILENT = None
"""A look that the server does not answer."""
HUNG = Look(is_paused=None, num_tokens=7, num_running=3)
STILL = Look(is_paused=False, num_tokens=7, num_running=3)
PAUSED = Look(is_paused=True, num_tokens=7, num_running=3)
QUEUED = Look(is_paused=False, num_tokens=7, num_running=0)
IDLE = Look(is_paused=False)
"""Without requests of ours; or it does not count."""


def moving(*, is_paused: bool | None = False, every: int = 1) -> list[Look]:
    """A minute of looks at an engine that generates a token each `every` seconds."""
    return [Look(is_paused, num_tokens=100 + now // every, num_running=3) for now in range(60)]


def warm_engine() -> Signs:
    return looked(warm(first_signs(0.0)), STILL, version=VERSION, now=0.0)


def after(
    signs: Signs, looks: Iterable[Look | None], *, start: float = 0.0, version: PolicyVersion = VERSION
) -> tuple[Signs, float | None, str]:
    """The signs after one look each second, and when and why the engine was first found hung."""
    at, why, now = None, "", start
    for look in looks:
        now += 1.0
        signs = unanswered(signs) if look is SILENT else looked(signs, look, version=version, now=now)
        found = why_hung(signs, limits=LIMITS, now=now)
        if found and not why:
            at, why = now - start, found
    return signs, at, why


@pytest.mark.parametrize(
    ("look", "sentence"),
    [
        (SILENT, "its server does not answer"),
        (HUNG, "its engine core does not answer"),
        (STILL, "it has requests and generates nothing"),
    ],
)
def test_an_engine_of_which_one_part_stands_still_is_hung_after_the_limit(
    look: Look | None, sentence: str
) -> None:
    _, at, why = after(warm_engine(), repeat(look, 60))
    assert (at, why) == (11.0, sentence)


@pytest.mark.parametrize(
    "looks",
    [
        repeat(IDLE, 600),
        repeat(PAUSED, 600),
        [QUEUED] * 29 + moving(),
        moving(),
        # steps of 9 s, between which alone the core answers and tokens come
        moving(is_paused=None, every=9),
        moving(every=9),
        [SILENT, SILENT, STILL, HUNG] * 20 + moving(),
    ],
    ids=["idle", "paused", "answers on their way", "quick", "slow", "slow tokens", "answers now and then"],
)
def test_an_engine_that_is_idle_paused_or_only_slow_is_not_hung(looks: Iterable[Look | None]) -> None:
    looks = list(looks)[:60]
    assert after(warm_engine(), looks)[1:] == (None, "")


def test_an_engine_that_works_on_none_of_its_requests_has_lost_them_or_their_answers() -> None:
    _, at, why = after(warm_engine(), repeat(QUEUED, 60))
    assert (at, why) == (31.0, "it works on none of its requests")
    # the first request may wait for what is compiled before the core has it
    cold = looked(first_signs(0.0), QUEUED, version=VERSION, now=0.0)
    assert after(cold, repeat(QUEUED, 600))[1] == 121.0


@pytest.mark.parametrize("look", [IDLE, replace(QUEUED, is_paused=True), replace(QUEUED, is_paused=None)])
def test_an_engine_that_is_asked_for_nothing_or_may_not_work_has_lost_nothing(look: Look) -> None:
    signs, at, _ = after(warm_engine(), [*repeat(QUEUED, 25), *repeat(look, 8)])
    assert at is None
    # it is looked at anew
    assert after(signs, repeat(QUEUED, 60), start=33.0)[1] in (31.0, 32.0)


def test_in_a_weight_sync_an_engine_has_lost_nothing() -> None:
    signs = excused(after(warm_engine(), repeat(QUEUED, 25))[0], now=60.0)
    assert after(signs, repeat(QUEUED, 60), start=60.0)[1] == 32.0


def test_answers_that_take_long_to_arrive_arrive_at_last() -> None:
    """An engine whose requests were given to others in vain has twice the time for the next ones."""
    signs, found = warm_engine(), []
    for start in (0.0, 1000.0, 2000.0, 3000.0):
        # out of the fleet, and then given the same weights once more
        signs = looked(signs, IDLE, version=None, now=start)
        signs, at, _ = after(signs, [IDLE, *repeat(QUEUED, 400)], start=start)
        assert at is not None
        found.append(at)
        signs = taken_out(signs, now=start + at)
    assert found == [33.0, 65.0, 129.0, 257.0]


def test_one_late_look_is_no_sign_however_late_it_is() -> None:
    """The trainer itself was suspended for a minute."""
    for look in (SILENT, HUNG, STILL):
        signs = unanswered(warm_engine()) if look is SILENT else looked(
            warm_engine(), look, version=VERSION, now=60.0
        )  # fmt: skip
        assert why_hung(signs, limits=LIMITS, now=60.0) == ""


def test_an_engine_that_has_sampled_nothing_yet_may_compile_for_longer() -> None:
    cold = looked(first_signs(0.0), STILL, version=VERSION, now=0.0)
    assert after(cold, repeat(STILL, 600))[1] is None
    assert after(cold, repeat(HUNG, 600))[1] == 121.0
    # compiling is the core's work
    assert after(cold, repeat(SILENT, 60))[1] == 11.0


@pytest.mark.parametrize("look", [HUNG, STILL])
def test_an_engine_is_warm_once_it_has_answered_a_call_or_its_tokens_were_seen_to_rise(look: Look) -> None:
    cold = looked(first_signs(0.0), replace(STILL, num_tokens=6), version=VERSION, now=0.0)
    assert after(cold, repeat(look, 60))[1] == 12.0
    never_moved = looked(first_signs(0.0), STILL, version=VERSION, now=0.0)
    assert after(warm(never_moved), repeat(look, 60))[1] == 11.0


def test_the_token_that_verifies_new_weights_does_not_make_an_engine_warm() -> None:
    cold = looked(first_signs(0.0), STILL, version=None, now=0.0)
    signs, at, _ = after(cold, [replace(STILL, num_tokens=8), *repeat(replace(HUNG, num_tokens=8), 60)])
    assert (signs.is_warm, at) == (False, None)


def test_a_weight_sync_is_no_time_in_which_an_engine_stands_still() -> None:
    signs = warm_engine()
    for now in range(1, 100):
        signs = excused(unanswered(signs), now=float(now))
        assert why_hung(signs, limits=LIMITS, now=float(now)) == ""
    assert after(signs, repeat(HUNG, 60), start=99.0)[1] == 11.0


def test_an_engine_whose_step_took_long_is_given_twice_that_time_until_a_round_without_one() -> None:
    signs, at, _ = after(warm_engine(), [*repeat(HUNG, 29), STILL])
    assert at == 11.0
    for version, limit in ((PolicyVersion(1, 2), 60.0), (PolicyVersion(1, 3), 10.0)):
        start = 100.0 * version.step
        signs, at, _ = after(signs, repeat(STILL, 5), start=start, version=version)
        assert at is None
        assert after(signs, repeat(HUNG, 100), start=start + 5, version=version)[1] == limit + 1


def test_of_several_long_steps_of_a_round_the_longest_counts() -> None:
    signs, _, _ = after(warm_engine(), [*repeat(HUNG, 29), STILL, *repeat(HUNG, 14), STILL])
    assert after(signs, repeat(HUNG, 100), start=45.0)[1] == 61.0


def test_a_busy_machine_on_which_steps_take_less_than_the_limit_does_not_raise_it() -> None:
    signs, at, _ = after(warm_engine(), [*repeat(HUNG, 8), STILL])
    assert at is None
    assert after(signs, repeat(HUNG, 45), start=9.0)[1] == 11.0


def test_a_server_that_stood_still_once_is_found_as_fast_the_next_time() -> None:
    signs, at, _ = after(warm_engine(), [*repeat(SILENT, 45), STILL])
    assert at == 11.0
    assert after(signs, repeat(SILENT, 45), start=46.0)[1] == 11.0
    # and what it hid meanwhile is not held against core and tokens
    assert after(signs, repeat(HUNG, 45), start=46.0)[1] == 11.0
