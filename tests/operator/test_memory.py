"""What a process remembers of a trainer: its newest words, once, and when it last stirred."""

from datetime import timedelta

from grpo_operator.memory import SILENCE_SECONDS, Memory
from grpo_operator.observed import Trouble

from .fake_world import NOW, UID, report

KEY = ("default", "copy")


def seconds(number: float):
    return NOW + timedelta(seconds=number)


def test_a_report_is_news_until_status_says_it():
    memory = Memory()
    first = report(heartbeat=1)
    memory.remember_progress(KEY, first, now=NOW)
    assert memory.heard(KEY, uid=UID, attempt=1).is_news
    memory.told(KEY, first, None)
    assert memory.heard(KEY, uid=UID, attempt=1).is_news is False
    memory.remember_progress(KEY, report(heartbeat=2), now=NOW)
    assert memory.heard(KEY, uid=UID, attempt=1).is_news


def test_what_is_heard_while_the_status_is_written_is_still_news():
    memory = Memory()
    first = report(heartbeat=1)
    memory.remember_progress(KEY, first, now=NOW)
    memory.remember_progress(KEY, report(heartbeat=2), now=NOW)
    memory.told(KEY, first, None)
    assert memory.heard(KEY, uid=UID, attempt=1).is_news


def test_an_answer_that_took_longer_than_the_next_is_dropped():
    memory = Memory()
    memory.remember_progress(KEY, report(step=5, heartbeat=9), now=NOW)
    assert memory.remember_progress(KEY, report(step=4, heartbeat=8), now=NOW) is False
    assert memory.remember_progress(KEY, report(step=5, heartbeat=8), now=NOW) is False
    told = memory.heard(KEY, uid=UID, attempt=1).progress
    assert told is not None and (told.step, told.heartbeat) == (5, 9)


def test_after_another_operators_write_only_a_newer_report_is_told():
    memory = Memory()
    memory.remember_progress(KEY, report(heartbeat=1), now=NOW)
    memory.overtaken(KEY)
    assert memory.heard(KEY, uid=UID, attempt=1).is_news is False
    assert memory.remember_progress(KEY, report(heartbeat=2), now=NOW)  # wakes, though the numbers are old
    assert memory.heard(KEY, uid=UID, attempt=1).is_news


def test_a_complaint_is_told_although_another_operator_wrote_before_or_after_it():
    memory = Memory()
    memory.remember_progress(KEY, report(heartbeat=1), now=NOW)
    memory.overtaken(KEY)
    unreadable = Trouble("ProgressUnreadable", "not a report")
    for _ in range(2):
        assert memory.remember_complaint(KEY, unreadable, uid=UID, attempt=1)
        assert memory.heard(KEY, uid=UID, attempt=1).is_news
        assert memory.remember_complaint(KEY, unreadable, uid=UID, attempt=1) is False
        memory.overtaken(KEY)


def test_a_silence_is_told_although_another_operator_wrote_before_or_after_it_was_noticed():
    memory = Memory()
    memory.remember_silence(KEY, "refused", uid=UID, attempt=1, now=NOW)
    memory.overtaken(KEY)
    for at in (SILENCE_SECONDS, SILENCE_SECONDS + 2):
        assert memory.remember_silence(KEY, "refused", uid=UID, attempt=1, now=seconds(at))
        heard = memory.heard(KEY, uid=UID, attempt=1)
        assert heard.complaint is not None and heard.complaint.reason == "ProgressUnreachable"
        assert heard.is_news
        assert memory.remember_silence(KEY, "refused", uid=UID, attempt=1, now=seconds(at + 1)) is False
        memory.overtaken(KEY)


def test_the_signs_of_life_move_with_the_heartbeat_and_not_with_the_answers():
    memory = Memory()
    for at, beat in ((0, 1), (2, 2), (4, 2), (6, 2)):
        memory.remember_progress(KEY, report(heartbeat=beat), now=seconds(at))
    signs = memory.heard(KEY, uid=UID, attempt=1).signs
    assert signs is not None
    assert (signs.changed_at, signs.heard_at) == (seconds(2), seconds(6))


def test_the_words_of_one_attempt_are_not_those_of_the_next():
    memory = Memory()
    memory.remember_progress(KEY, report(heartbeat=5), now=NOW)
    assert memory.heard(KEY, uid=UID, attempt=2).progress is None
