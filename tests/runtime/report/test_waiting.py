"""What the trainer reports while it waits: of single engines, of a generation and of rewards."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_api.contract.progress import MAX_ENGINE_NOTES, EngineCounts, Progress, TrainerState
from grpo_api.contract.run_config import JobRef
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.report.progress import read_progress
from grpo_runtime.report.reporter import Reporter
from grpo_runtime.report.waiting import (
    still_ahead_message,
    still_message,
    stopped,
    unscored_message,
    with_notes,
    without_weights,
    without_weights_message,
)
from grpo_runtime.rewards.types import OpenCalls, Outage
from grpo_runtime.rollouts.interface import FailedSyncs, Generation

CURRENT = EngineCounts(desired=2, known=2, current=2)
NONE_CURRENT = EngineCounts(desired=2, known=2, current=0)
ONE_CURRENT = EngineCounts(desired=2, known=2, current=1)
HELD = {"rollout-0": 12, "rollout-1": 8}
WHY = "verify: its logprobs differ from the trainer's by 0.01 nats, more than 0.0001"


def generation(num_done: int, quiet_seconds: float, given: Mapping[str, int] = HELD) -> Generation:
    return Generation(num_samples=32, num_done=num_done, quiet_seconds=quiet_seconds, given=given)


@pytest.fixture
def reporter(tmp_path: Path) -> Reporter:
    (tmp_path / "run").mkdir()
    return Reporter(
        output_dir=tmp_path / "output",
        run_dir=tmp_path / "run",
        job=JobRef(namespace="team", name="copy", uid="uid"),
        initial=Progress(job_uid="uid", attempt=1, step=4, total_steps=9),
        sinks=(),
    )


def said(reporter: Reporter, tmp_path: Path, found: Generation | None) -> Progress:
    """The report about a moment of a generation, as the supervisor serves it."""
    reporter.report_waiting(CURRENT, generation=found)
    progress = read_progress(tmp_path / "run")
    assert progress is not None
    return progress


def test_a_generation_without_progress_is_reported_within_15_seconds_and_no_longer_once_it_goes_on(
    reporter: Reporter, tmp_path: Path
) -> None:
    messages = {
        seconds: said(reporter, tmp_path, generation(12, float(seconds))).message for seconds in range(13)
    }
    assert messages[9] == ""
    assert messages[12] == (
        "step 5: 12 of 32 samples are done, and none was finished in the last 10 s; "
        "open are 12 on rollout-0, 8 on rollout-1"
    )
    after = said(reporter, tmp_path, generation(13, 0.5))
    assert (after.state, after.message) == (TrainerState.TRAINING, "")


def test_where_groups_are_begun_ahead_samples_without_progress_are_those_of_all_of_them(
    reporter: Reporter, tmp_path: Path
) -> None:
    def sentence(quiet_seconds: float, *, num_finished: int = 5) -> str:
        return still_ahead_message(
            generation(12, quiet_seconds),
            step=5,
            num_finished=num_finished,
            num_groups=16,
            num_running=27,
        )

    assert sentence(9.9) == ""
    wanted = (
        "step 5: 5 of 16 groups are finished; 27 are being sampled, and no sample was finished in the last "
        "20 s; open are 12 on rollout-0, 8 on rollout-1"
    )
    assert sentence(25.0) == wanted
    assert sentence(25.0, num_finished=17).startswith(
        "step 5: 16 of 16 groups are finished, but others would be too old after it; 27 are being sampled"
    )
    reporter.report_waiting(CURRENT, generation=generation(12, 25.0), waits_for=wanted)
    assert reporter.progress.latest.message == wanted


def test_rewards_that_are_waited_for_are_told_of_with_who_has_not_answered(
    reporter: Reporter, tmp_path: Path
) -> None:
    outage = Outage(url="http://judge/score", why="HTTP 503", seconds=95.0)
    calls = [OpenCalls(name="judge", number=16, outage=outage), OpenCalls(name="slow", number=24)]
    seconds_to_sentence = {
        seconds: unscored_message(
            "step 5", num_scored=40, num_groups=64, quiet_seconds=seconds, open_calls=calls
        )
        for seconds in (9.9, 70.0)
    }
    assert seconds_to_sentence[9.9] == ""
    reporter.report_waiting(CURRENT, waits_for=seconds_to_sentence[70.0])
    progress = read_progress(tmp_path / "run")
    assert progress is not None and progress.state is TrainerState.TRAINING
    assert progress.message == (
        "step 5: 40 of 64 groups are scored, and none was in the last 60 s; "
        "open calls of reward judge: 16, and http://judge/score is out of reach for 60 s: HTTP 503; "
        "open calls of reward slow: 24"
    )
    assert said(reporter, tmp_path, None).message == ""


def test_of_many_rewards_that_are_waited_for_a_few_are_named_those_of_services_that_are_out_first() -> None:
    outage = Outage(url="http://judge/score", why="HTTP 503", seconds=95.0)
    calls = [OpenCalls(name=name, number=number) for name, number in zip("abcd", (1, 2, 3, 3), strict=True)]
    calls.append(OpenCalls(name="judge", number=1, outage=outage))
    sentence = unscored_message("step 5", num_scored=0, num_groups=4, quiet_seconds=10.0, open_calls=calls)
    assert sentence == (
        "step 5: 0 of 4 groups are scored, and none was in the last 10 s; "
        "open calls of reward judge: 1, and http://judge/score is out of reach for 60 s: HTTP 503; "
        "open calls of reward c: 3; open calls of reward d: 3; open calls of 2 other rewards: 3"
    )
    one_more = unscored_message(
        "step 5", num_scored=0, num_groups=4, quiet_seconds=10.0, open_calls=calls[1:]
    )
    assert one_more.endswith("open calls of 1 other reward: 2")


def test_the_sentence_changes_ever_less_often() -> None:
    sentences = {still_message(generation(0, float(seconds)), step=1) for seconds in range(10, 1800)}
    assert len(sentences) == 5 + 9 + 4
    assert "in the last 1500 s" in still_message(generation(0, 1799.9), step=1)


def test_many_engines_are_summed_up_and_what_waits_is_named() -> None:
    given = {f"rollout-{index}": 2 + (index == 5) for index in range(7)}
    sentence = still_message(generation(6, 30, given), step=1)
    assert sentence.endswith(
        "open are 3 on rollout-5, 2 on rollout-0, 2 on rollout-1, 2 on rollout-2, 6 on 3 other engines, "
        "11 not given to an engine yet"
    )


def test_engines_that_are_hung_are_named(reporter: Reporter, tmp_path: Path) -> None:
    why = "its engine core does not answer"
    found = replace(generation(20, 12.0, {"rollout-0": 12}), hung={"rollout-1": why})
    assert said(reporter, tmp_path, found).message.endswith(
        f"; open are 12 on rollout-0; engine rollout-1 hangs: {why}"
    )
    reporter.report_waiting(
        NONE_CURRENT, generation=replace(found, hung={f"rollout-{index}": why for index in range(6)})
    )
    message = reporter.progress.latest.message
    assert message.startswith(
        "no rollout engine has the newest weights: 2 of 2 engines have answered; engine rollout-0"
    )
    assert message.endswith(f"; engine rollout-3 hangs: {why}; 2 other engines hang")


def test_while_no_sample_finishes_no_report_is_a_sign_of_life(reporter: Reporter, tmp_path: Path) -> None:
    first = said(reporter, tmp_path, generation(0, 1.0))
    still = [said(reporter, tmp_path, generation(0, float(seconds))) for seconds in range(2, 100)]
    assert {progress.heartbeat for progress in still} == {first.heartbeat}
    assert {progress.state for progress in still} == {TrainerState.TRAINING}
    finished = said(reporter, tmp_path, generation(4, 0.3))
    assert finished.heartbeat > first.heartbeat
    assert said(reporter, tmp_path, None).heartbeat > finished.heartbeat  # rewards are computed


def test_a_sample_that_was_a_call_of_its_own_is_a_sign_of_life_when_it_is_finished(
    reporter: Reporter, tmp_path: Path
) -> None:
    """As turns are: it is no longer counted then."""
    waiting = [said(reporter, tmp_path, generation(0, seconds)).heartbeat for seconds in (1.0, 4.0, 0.5, 3.5)]
    assert [heartbeat - waiting[0] for heartbeat in waiting] == [0, 0, 1, 1]


def test_waiting_for_engines_is_a_sign_of_life_and_so_is_the_next_generation(
    reporter: Reporter, tmp_path: Path
) -> None:
    before = said(reporter, tmp_path, generation(4, 30.0))
    heartbeats = []
    for _ in range(3):
        reporter.report_waiting(NONE_CURRENT, generation=generation(4, 31.0))
        heartbeats.append(reporter.progress.latest.heartbeat)
    assert heartbeats == [before.heartbeat + number for number in (1, 2, 3)]
    assert said(reporter, tmp_path, generation(4, 32.0)).heartbeat == before.heartbeat + 4
    said(reporter, tmp_path, None)
    again = said(reporter, tmp_path, generation(0, 0.5))
    assert again.heartbeat == before.heartbeat + 6
    assert said(reporter, tmp_path, generation(3, 0.5)).heartbeat == before.heartbeat + 7
    # the one after it, before anything of it is done
    assert said(reporter, tmp_path, generation(1, 0.5)).heartbeat == before.heartbeat + 8


def test_engines_that_are_started_again_are_told_of(reporter: Reporter, tmp_path: Path) -> None:
    one = replace(generation(12, 20.0, {"engine-1": 20}), starting_again=("engine-1",))
    assert said(reporter, tmp_path, one).message == (
        "step 5: 12 of 32 samples are done, and none was finished in the last 20 s; "
        "open are 20 on engine-1; engine engine-1 is started again"
    )
    many = replace(one, starting_again=tuple(f"engine-{index}" for index in range(8)))
    assert said(reporter, tmp_path, many).message.endswith("; 8 engines are started again")


def failed(num: int, why: str = WHY) -> FailedSyncs:
    return FailedSyncs(num=num, version=PolicyVersion(1, 3), why=why)


def message_of(syncs: dict[str, FailedSyncs], *, engines: EngineCounts) -> str:
    return without_weights_message(without_weights(syncs, engines=engines))


def test_while_no_engine_serves_every_failure_is_told_of() -> None:
    assert message_of({"a": failed(1), "b": failed(3)}, engines=NONE_CURRENT) == (
        f"engine b has failed 3 weight syncs, the last one of weights 1.3: {WHY}; "
        f"engine a did not get weights 1.3: {WHY}"
    )
    assert message_of({}, engines=NONE_CURRENT) == ""


def test_while_others_serve_an_engine_is_told_of_that_failed_twice_in_a_row() -> None:
    assert message_of({"a": failed(1)}, engines=ONE_CURRENT) == ""
    assert message_of({"a": failed(1), "b": failed(2)}, engines=ONE_CURRENT) == (
        f"engine b has failed 2 weight syncs, the last one of weights 1.3: {WHY}"
    )


def test_the_sentence_fits_into_a_condition_however_many_fail_and_whatever_they_say() -> None:
    answer = "transfer: HTTP 500:\n" + "Traceback (most recent call last)\n" * 40
    names = [f"copy-5f0c2a-rollout-{index}-i0" for index in range(20)]
    message = message_of(dict.fromkeys(names, failed(4, answer)), engines=ONE_CURRENT)
    assert "HTTP 500: Traceback (most recent call last) Traceback" in message
    assert message.endswith("...; 18 other engines get no weights either")
    assert len(message) < 900
    three = message_of(dict.fromkeys("abc", failed(4)), engines=ONE_CURRENT)
    assert three.endswith("; 1 other engine gets no weights either")


def test_what_is_told_of_an_engine_is_found_by_its_whole_name() -> None:
    notes = without_weights({"copy-rollout-1-i10": failed(1)}, engines=NONE_CURRENT)
    counts = with_notes(NONE_CURRENT, notes)
    assert (
        counts.notes_on("copy-rollout-1-i10") == f"engine copy-rollout-1-i10 did not get weights 1.3: {WHY}"
    )
    assert counts.notes_on("copy-rollout-1-i1") == counts.notes_on("rollout-1-i10") == ""


def test_engines_that_hang_and_those_that_are_started_again_are_told_of_by_name() -> None:
    generation = Generation(8, 2, 12.0, {}, hung={"b": "its core is hung"}, starting_again=("a",))
    counts = with_notes(ONE_CURRENT, stopped(generation))
    assert counts.notes_on("b") == "engine b hangs: its core is hung"
    assert counts.notes_on("a") == "engine a is started again"


def test_a_report_tells_of_a_bounded_number_of_engines() -> None:
    notes = without_weights({f"e{index}": failed(1) for index in range(40)}, engines=NONE_CURRENT)
    assert len(notes) == 40
    assert len(with_notes(NONE_CURRENT, notes).notes or ()) == MAX_ENGINE_NOTES
    assert with_notes(NONE_CURRENT, ()).notes is None
    [long] = without_weights({"e" * 2000: failed(1)}, engines=NONE_CURRENT)
    assert (len(long.name), len(long.text)) == (253, 1024)
