"""From an event of a job to the status that shows it."""

from grpo_operator.status_delays import StatusDelays

KEY, OTHER = ("default", "a"), ("default", "b")


def test_the_first_event_that_a_status_shows_counts() -> None:
    delays = StatusDelays()
    for now in (1.0, 3.0):
        delays.mark_event(KEY, now=now)
    delays.mark_look(KEY)
    assert delays.mark_written(KEY, now=4.5) == 3.5
    assert delays.mark_written(KEY, now=9.0) is None


def test_what_happens_after_the_look_waits_for_the_next_status() -> None:
    delays = StatusDelays()
    delays.mark_event(KEY, now=1.0)
    delays.mark_look(KEY)
    delays.mark_event(KEY, now=2.0)
    assert delays.mark_written(KEY, now=3.0) == 2.0
    delays.mark_look(KEY)
    assert delays.mark_written(KEY, now=5.0) == 3.0


def test_the_time_goes_on_until_a_status_that_could_not_be_written_is() -> None:
    delays = StatusDelays()
    delays.mark_event(KEY, now=1.0)
    delays.mark_look(KEY)  # the write failed, and its next try is a look again
    delays.mark_event(KEY, now=2.0)
    delays.mark_look(KEY)
    assert delays.mark_written(KEY, now=4.0) == 3.0


def test_an_event_that_changes_no_status_and_a_look_without_an_event_have_no_delay() -> None:
    delays = StatusDelays()
    delays.mark_event(KEY, now=1.0)
    delays.mark_look(KEY)
    delays.mark_same(KEY)
    delays.mark_look(KEY)
    assert delays.mark_written(KEY, now=600.0) is None
    delays.mark_event(KEY, now=1.0)
    delays.mark_look(OTHER)
    assert delays.mark_written(OTHER, now=600.0) is None


def test_the_time_in_which_a_process_stood_by_does_not_count() -> None:
    delays = StatusDelays()
    delays.mark_event(KEY, now=1.0)
    delays.restart(now=100.0)
    delays.mark_look(KEY)
    assert delays.mark_written(KEY, now=101.0) == 1.0
