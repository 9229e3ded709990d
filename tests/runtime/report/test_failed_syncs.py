"""What the trainer reports about engines that get no weights."""

from grpo_api.contract.progress import EngineCounts, Progress
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.report.failed_syncs import failed_syncs_message
from grpo_runtime.rollout.interface import FailedSyncs

NONE_CURRENT = EngineCounts(desired=2, known=2, current=0)
ONE_CURRENT = EngineCounts(desired=2, known=2, current=1)
WHY = "verify: its logprobs differ from the trainer's by 0.01 nats, more than 0.0001"


def failed(num: int, why: str = WHY) -> FailedSyncs:
    return FailedSyncs(num=num, version=PolicyVersion(1, 3), why=why)


def test_while_no_engine_serves_every_failure_is_told_of() -> None:
    assert failed_syncs_message({"a": failed(1), "b": failed(3)}, engines=NONE_CURRENT) == (
        f"engine b has failed 3 weight syncs, the last one of weights 1.3: {WHY}; "
        f"engine a did not get weights 1.3: {WHY}"
    )
    assert failed_syncs_message({}, engines=NONE_CURRENT) == ""


def test_while_others_serve_an_engine_is_told_of_that_failed_twice_in_a_row() -> None:
    assert failed_syncs_message({"a": failed(1)}, engines=ONE_CURRENT) == ""
    assert failed_syncs_message({"a": failed(1), "b": failed(2)}, engines=ONE_CURRENT) == (
        f"engine b has failed 2 weight syncs, the last one of weights 1.3: {WHY}"
    )


def test_the_sentence_fits_into_a_condition_however_many_fail_and_whatever_they_say() -> None:
    answer = "transfer: HTTP 500:\n" + "Traceback (most recent call last)\n" * 40
    names = [f"copy-5f0c2a-rollout-{index}-i0" for index in range(20)]
    message = failed_syncs_message(dict.fromkeys(names, failed(4, answer)), engines=ONE_CURRENT)
    assert "HTTP 500: Traceback (most recent call last) Traceback" in message
    assert message.endswith("...; 18 other engines get no weights either")
    assert len(message) < 900
    three = failed_syncs_message(dict.fromkeys("abc", failed(4)), engines=ONE_CURRENT)
    assert three.endswith("; 1 other engine gets no weights either")


def test_the_operator_finds_what_is_said_of_an_engine_by_its_whole_name() -> None:
    for num in (1, 2):
        message = failed_syncs_message({"copy-rollout-1-i10": failed(num)}, engines=NONE_CURRENT)
        progress = Progress(job_uid="uid", attempt=1, total_steps=9, message=f"{message}; step 2: 1 of 8")
        assert progress.said_of("copy-rollout-1-i10") == message
        assert progress.said_of("copy-rollout-1-i1") == progress.said_of("rollout-1-i10") == ""
