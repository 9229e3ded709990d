"""How long each phase of a sync may take."""

import pytest

from grpo_runtime.weight_sync.deadlines import Deadlines, not_done_within


@pytest.mark.parametrize(
    ("phase", "took", "limit"),
    [
        ("pause", None, 12.0),
        ("pause", 14.0, 12.0),
        ("finish", None, 300.0),
        ("finish", 0.1, 12.0),
        ("finish", 20.0, 100.0),
        ("finish", 200.0, 300.0),
    ],
)
def test_a_phase_may_take_some_times_what_it_took_before(
    phase: str, took: float | None, limit: float
) -> None:
    deadlines = Deadlines(300.0)
    if took is not None:
        deadlines.note(phase, took)
    assert deadlines.of(phase) == limit


def test_no_phase_takes_longer_than_the_whole_deadline() -> None:
    assert {Deadlines(2.0).of(phase) for phase in ("pause", "finish")} == {2.0}


@pytest.mark.parametrize(("took", "stall"), [(None, 10.0), (1.0, 10.0), (4.0, 20.0), (100.0, 75.0)])
def test_a_buffer_may_take_ten_seconds_or_some_times_the_last_transfer(
    took: float | None, stall: float
) -> None:
    deadlines = Deadlines(300.0)
    if took is not None:
        deadlines.note("transfer", took)
    assert deadlines.stall_seconds() == stall


@pytest.mark.parametrize(
    ("took", "limit"),
    [(None, 300.0), (1.0, 10.0), (4.0, 20.0), (20.0, 75.0), (100.0, 200.0), (200.0, 300.0)],
)
def test_the_first_transfer_to_several_engines_has_the_whole_deadline_and_a_later_one_some_times_the_last(
    took: float | None, limit: float
) -> None:
    deadlines = Deadlines(300.0)
    # what an engine takes alone says nothing about several
    deadlines.note("transfer", 0.1)
    if took is not None:
        deadlines.note("shared transfer", took)
    assert deadlines.shared_seconds() == limit


@pytest.mark.parametrize(("took", "more"), [(0.1, 30.0), (20.0, 100.0)])
def test_who_has_not_done_a_phase_that_another_engine_has_gets_some_more_time(
    took: float, more: float
) -> None:
    assert Deadlines(300.0).lag_seconds(took) == more


def test_the_short_sync_of_an_engine_that_joined_does_not_shorten_the_deadlines_of_all_at_once() -> None:
    deadlines = Deadlines(300.0)
    deadlines.note("finish", 40.0)
    seen = []
    for _ in range(6):
        deadlines.new_weights()
        deadlines.note("finish", 1.0)
        seen.append(deadlines.of("finish"))
    assert seen == [200.0, 100.0, 50.0, 25.0, 12.5, 12.0]


def test_quick_engines_that_are_synced_one_by_one_do_not_shorten_the_deadline_of_a_slow_one() -> None:
    deadlines = Deadlines(300.0)
    for _ in range(3):
        deadlines.new_weights()
        for seconds in (10.0, 1.0, 1.0, 1.0):
            deadlines.note("transfer", seconds)
        assert deadlines.of("transfer") == 50.0


def test_the_first_meeting_may_take_longer_than_those_that_follow() -> None:
    deadlines = Deadlines(300.0)
    assert deadlines.meeting_seconds() == 30.0
    deadlines.note("meeting", 0.2)
    assert deadlines.meeting_seconds() == deadlines.stall_seconds() == 10.0
    assert Deadlines(20.0).meeting_seconds() == 5.0


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.1, "0.1 s"), (12.0004, "12 s"), (99.96, "100 s"), (1800.0004, "1800 s"), (86400.0, "86400 s")],
)
def test_a_missed_deadline_is_told_in_plain_seconds(seconds: float, said: str) -> None:
    assert not_done_within(seconds) == f"not done within {said}"
