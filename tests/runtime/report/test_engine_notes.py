"""What the trainer reports about single engines."""

from grpo_api.contract.progress import MAX_ENGINE_NOTES, EngineCounts
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.report.engine_notes import (
    stopped,
    with_notes,
    without_weights,
    without_weights_message,
)
from grpo_runtime.rollouts.interface import FailedSyncs, Generation

NONE_CURRENT = EngineCounts(desired=2, known=2, current=0)
ONE_CURRENT = EngineCounts(desired=2, known=2, current=1)
WHY = "verify: its logprobs differ from the trainer's by 0.01 nats, more than 0.0001"


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
    assert counts.told_of("copy-rollout-1-i10") == f"engine copy-rollout-1-i10 did not get weights 1.3: {WHY}"
    assert counts.told_of("copy-rollout-1-i1") == counts.told_of("rollout-1-i10") == ""


def test_engines_that_hang_and_those_that_are_started_again_are_told_of_by_name() -> None:
    generation = Generation(8, 2, 12.0, {}, hung={"b": "its core stands still"}, starting_again=("a",))
    counts = with_notes(ONE_CURRENT, stopped(generation))
    assert counts.told_of("b") == "engine b hangs: its core stands still"
    assert counts.told_of("a") == "engine a is started again"


def test_a_report_tells_of_a_bounded_number_of_engines() -> None:
    notes = without_weights({f"e{index}": failed(1) for index in range(40)}, engines=NONE_CURRENT)
    assert len(notes) == 40
    assert len(with_notes(NONE_CURRENT, notes).notes or ()) == MAX_ENGINE_NOTES
    assert with_notes(NONE_CURRENT, ()).notes is None
    [long] = without_weights({"e" * 2000: failed(1)}, engines=NONE_CURRENT)
    assert (len(long.name), len(long.text)) == (253, 1024)
