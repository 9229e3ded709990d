"""What a process remembers of a trainer: its newest report, until it is written, and when it last changed."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import pytest

from grpo_api.contract.progress import EngineCounts, HungEngine
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.judge.engines import LONGEST_GAP_SECONDS
from grpo_api.v1alpha1.status import GRPOJobStatus, WaitingForRoom
from grpo_operator.observe.observed import (
    EngineView,
    JobAndPods,
    JobView,
    PodView,
    Refusal,
    Remembered,
    TrainerReport,
)
from grpo_operator.observe.process_state import OLD_SECONDS, UNREACHABLE_SECONDS, ProcessState
from grpo_operator.plan.draft import EventDraft

from .fake_cluster import NOW, UID, job_view, report

KEY = ("default", "copy")


def seconds(number: float):
    return NOW + timedelta(seconds=number)


def test_a_report_is_news_until_status_says_it():
    state = ProcessState()
    first = report(heartbeat=1)
    state.remember_progress(KEY, first, now=NOW)
    assert state.report(KEY, uid=UID, attempt=1).is_news
    state.mark_written(KEY, TrainerReport(progress=first))
    assert state.report(KEY, uid=UID, attempt=1).is_news is False
    state.remember_progress(KEY, report(heartbeat=2), now=NOW)
    assert state.report(KEY, uid=UID, attempt=1).is_news


def test_a_report_that_arrives_while_the_status_is_written_is_still_news():
    state = ProcessState()
    first = report(heartbeat=1)
    state.remember_progress(KEY, first, now=NOW)
    state.remember_progress(KEY, report(heartbeat=2), now=NOW)
    state.mark_written(KEY, TrainerReport(progress=first))
    assert state.report(KEY, uid=UID, attempt=1).is_news


def test_an_answer_that_took_longer_than_the_next_is_dropped():
    state = ProcessState()
    state.remember_progress(KEY, report(step=5, heartbeat=9), now=NOW)
    assert state.remember_progress(KEY, report(step=4, heartbeat=8), now=NOW) is False
    assert state.remember_progress(KEY, report(step=5, heartbeat=8), now=NOW) is False
    known = state.report(KEY, uid=UID, attempt=1).progress
    assert known is not None and (known.step, known.heartbeat) == (5, 9)


def test_after_another_operators_write_only_a_newer_report_is_news():
    state = ProcessState()
    state.remember_progress(KEY, report(heartbeat=1), now=NOW)
    state.mark_superseded(KEY)
    assert state.report(KEY, uid=UID, attempt=1).is_news is False
    assert state.remember_progress(KEY, report(heartbeat=2), now=NOW)  # wakes, though the numbers are old
    assert state.report(KEY, uid=UID, attempt=1).is_news


def test_a_report_problem_is_news_although_another_operator_wrote_before_or_after_it():
    state = ProcessState()
    state.remember_progress(KEY, report(heartbeat=1), now=NOW)
    state.mark_superseded(KEY)
    unreadable = ReasonMessage("ProgressUnreadable", "not a report")
    for _ in range(2):
        assert state.remember_report_problem(KEY, unreadable, uid=UID, attempt=1)
        assert state.report(KEY, uid=UID, attempt=1).is_news
        assert state.remember_report_problem(KEY, unreadable, uid=UID, attempt=1) is False
        state.mark_superseded(KEY)


def test_a_report_after_a_report_problem_is_news_although_the_numbers_are_the_same():
    state = ProcessState()
    state.remember_progress(KEY, report(heartbeat=1), now=NOW)
    state.remember_report_problem(
        KEY, ReasonMessage("ProgressUnreadable", "not a report"), uid=UID, attempt=1
    )
    assert state.remember_progress(KEY, report(heartbeat=2), now=NOW)
    heard = state.report(KEY, uid=UID, attempt=1)
    assert (heard.problem, heard.is_news) == (None, True)


def test_an_unreachable_trainer_is_news_although_another_operator_wrote_before_or_after():
    state = ProcessState()
    state.remember_no_answer(KEY, "refused", uid=UID, attempt=1, now=NOW)
    state.mark_superseded(KEY)
    for at in (UNREACHABLE_SECONDS, UNREACHABLE_SECONDS + 2):
        assert state.remember_no_answer(KEY, "refused", uid=UID, attempt=1, now=seconds(at))
        heard = state.report(KEY, uid=UID, attempt=1)
        assert heard.problem is not None and heard.problem.reason == "ProgressUnreachable"
        assert heard.is_news
        assert state.remember_no_answer(KEY, "refused", uid=UID, attempt=1, now=seconds(at + 1)) is False
        state.mark_superseded(KEY)


def test_liveness_changes_with_the_heartbeat_and_not_with_the_answers():
    state = ProcessState()
    for at, beat in ((0, 1), (2, 2), (4, 2), (6, 2)):
        state.remember_progress(KEY, report(heartbeat=beat), now=seconds(at))
    signs = state.report(KEY, uid=UID, attempt=1).liveness
    assert signs is not None
    assert (signs.changed_at, signs.answered_at, signs.quiet_seconds) == (seconds(2), seconds(6), 4)


def test_an_hour_in_which_nobody_asked_is_no_hour_in_which_the_trainer_stood_still():
    state = ProcessState()
    for at in (0, 2, 3602, 3604, 3600):
        state.remember_progress(KEY, report(heartbeat=1), now=seconds(at))
    signs = state.report(KEY, uid=UID, attempt=1).liveness
    assert signs is not None
    assert signs.quiet_seconds == 2 + LONGEST_GAP_SECONDS + 2


def test_an_old_report_is_not_taken_for_what_the_trainer_says_now():
    state = ProcessState()
    look(state)
    state.remember_progress(KEY, report(), now=NOW)
    assert look(state, at=OLD_SECONDS).report.is_answering
    assert not look(state, at=OLD_SECONDS + 1).report.is_answering
    state.remember_progress(KEY, report(), now=seconds(3600))
    assert look(state, at=3601).report.is_answering


def test_the_report_of_one_attempt_is_not_that_of_the_next():
    state = ProcessState()
    state.remember_progress(KEY, report(heartbeat=5), now=NOW)
    assert state.report(KEY, uid=UID, attempt=2).progress is None


def look(
    state: ProcessState,
    *,
    uid: str = UID,
    rollouts: Sequence[tuple[int, int]] = (),
    failed: int = 0,
    at: float = 0,
) -> Remembered:
    """What is remembered after a look at a job with these rollout pods, whose attempt `failed` failed."""
    job = JobView("default", "copy", uid, 1, "1", False, None, "", GRPOJobStatus(attempt=max(failed, 1)))
    pods = [EngineView(f"rollout-{position}", "u", position, "Running", True, False) for position in rollouts]
    failing = [PodView("trainer", "u", (failed, 0), "Failed", False, False)] if failed else []
    found = JobAndPods(job, tuple(failing), tuple(pods))
    return state.remember_pods(KEY, found, now=seconds(at))


def test_the_highest_incarnation_of_a_replica_is_remembered_after_its_pod_is_gone():
    state = ProcessState()
    look(state, rollouts=[(0, 0), (1, 4)])
    assert look(state, rollouts=[(0, 2), (1, 1)]).highest_incarnations == {0: 2, 1: 4}
    assert look(state).highest_incarnations == {0: 2, 1: 4}


def test_a_job_made_anew_under_its_name_begins_with_the_first_incarnation():
    state = ProcessState()
    look(state, rollouts=[(0, 3)])
    assert look(state, uid="another", rollouts=[(1, 0)]).highest_incarnations == {1: 0}


def test_a_failure_of_the_job_before_is_not_one_of_the_job_made_anew_under_its_name():
    state = ProcessState()
    look(state, failed=1)
    state.remember_refusal(
        KEY, Refusal("a-pod", ReasonMessage("QuotaExceeded", "does not fit")), now=NOW, chance=0.5
    )
    anew = look(state, uid="another", failed=1, at=60)
    assert (anew.failing_since, anew.refusal) == (seconds(60), None)


def test_what_is_remembered_of_a_job_goes_with_it():
    state = ProcessState()
    state.remember_progress(KEY, report(), now=NOW)
    state.remember_refusal(
        KEY, Refusal("a-pod", ReasonMessage("QuotaExceeded", "does not fit")), now=NOW, chance=0.5
    )
    state.forget(KEY)
    assert state.report(KEY, uid=UID, attempt=1).progress is None
    assert look(state).refusal is None


def test_an_event_of_a_job_that_was_created_again_under_its_name_is_new():
    state, started = ProcessState(), EventDraft(ReasonMessage("Started", "attempt 1 runs"), key="1")
    assert [state.is_new_event(KEY, started.identity, uid=uid) for uid in (UID, UID, "another")] == [
        True,
        False,
        True,
    ]


def test_the_failure_of_each_attempt_is_dated_from_when_it_was_first_seen():
    state = ProcessState()
    assert [look(state, failed=1, at=at).failing_since for at in (0, 2)] == [NOW, NOW]
    assert look(state, failed=2, at=5).failing_since == seconds(5)
    assert [look(state, failed=failed, at=at).failing_since for failed, at in ((0, 6), (2, 7))] == [
        None,
        seconds(7),
    ]


def test_a_refusal_with_other_numbers_is_no_news_and_one_with_another_reason_is():
    state = ProcessState()
    for refusal, is_news in (
        (Refusal("pod", ReasonMessage("QuotaExceeded", "used 3 of 3")), True),
        (Refusal("pod", ReasonMessage("QuotaExceeded", "used 4 of 3")), False),
        (Refusal("pod", ReasonMessage("CreateForbidden", "no right")), True),
        (None, True),
        (None, False),
    ):
        assert state.remember_refusal(KEY, refusal, now=NOW, chance=0.5) is is_news
        assert look(state).refusal == refusal


@pytest.mark.parametrize(("reason", "longest"), [("CreateForbidden", 180), ("QueueUnavailable", 30)])
def test_what_is_refused_is_tried_again_less_and_less_often_and_soon_where_only_kueue_is_missing(
    reason: str, longest: int
):
    state, waits = ProcessState(), []
    for _ in range(8):
        state.remember_refusal(KEY, Refusal("child", ReasonMessage(reason, "no")), now=NOW, chance=0.999)
        waits.append(state.seconds_until_next_try(KEY, now=NOW))
    assert waits == sorted(waits) and 0.9 * longest < waits[-1] <= longest


def test_what_a_trainer_said_that_was_given_back_does_not_hide_the_same_attempt_when_it_comes_again():
    state = ProcessState()
    state.remember_progress(KEY, report(step=0, heartbeat=500), now=NOW)
    held_back = WaitingForRoom(since=NOW, held_back_until=seconds(60))
    job = job_view(spec=None, status=GRPOJobStatus(attempt=1, waiting_for_room=held_back))
    assert state.remember_pods(KEY, JobAndPods(job=job), now=NOW).report.progress is None
    assert state.remember_progress(KEY, report(step=0, heartbeat=1), now=seconds(90))


def test_it_remembers_since_when_a_process_is_called_hung_until_it_no_longer_is():
    state = ProcessState()

    def hear(at: float, *instances: str) -> Mapping[str, datetime]:
        told = tuple(HungEngine(name="pod-0", instance=each, since=NOW, why="") for each in instances)
        counts = EngineCounts(desired=2, known=2, current=2 - len(told), hung=told or None)
        state.remember_progress(KEY, report(heartbeat=int(at), engines=counts), now=seconds(at))
        return state.report(KEY, uid=UID, attempt=1).hung_since

    assert hear(1) == {}
    assert hear(2, "a") == {"a": seconds(2)}
    assert hear(9, "a", "b") == {"a": seconds(2), "b": seconds(9)}
    assert hear(10, "b") == {"b": seconds(9)}
    assert hear(11, "a") == {"a": seconds(11)}
