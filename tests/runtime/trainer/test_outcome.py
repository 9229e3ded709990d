from grpo_api.contract.exit_codes import PEER_LOST_REASON, ExitCode
from grpo_api.contract.progress import Progress, TerminationMessage, TrainerState
from grpo_runtime.termination import MAX_TERMINATION_BYTES, Outcome, termination_message
from grpo_runtime.trainer.failure import RankFailure
from grpo_runtime.trainer.gang import RankDeath
from grpo_runtime.trainer.outcome import judge


def progress(step: int = 3, state: TrainerState = TrainerState.TRAINING) -> Progress:
    return Progress(job_uid="uid", attempt=1, state=state, step=step, total_steps=5)


PEER_WAS_LOST = RankFailure(reason=PEER_LOST_REASON, message="connection closed by peer", exit_code=75)
WRONG_REWARD = RankFailure(reason="UserError", message="rewards[0] raised KeyError", exit_code=40)


def test_a_gang_that_did_every_step_ends_with_0() -> None:
    deaths = [RankDeath(0, 0), RankDeath(1, 0)]
    outcome = judge(deaths, {}, progress=progress(5, TrainerState.DONE), is_stop_requested=False)
    assert outcome == Outcome(0, "Done", "training is done: 5 of 5 steps")


def test_ranks_that_end_well_before_the_last_step_are_not_a_success() -> None:
    outcome = judge([RankDeath(0, 0)], {}, progress=progress(3), is_stop_requested=False)
    assert outcome.exit_code == ExitCode.UNEXPECTED


def test_a_kill_ranks_above_the_broken_pipe_it_causes_whatever_is_seen_first() -> None:
    lost, killed = RankDeath(0, 75), RankDeath(1, 137, signal_number=9)
    for deaths in ([lost, killed], [killed, lost]):
        outcome = judge(deaths, {0: PEER_WAS_LOST}, progress=progress(), is_stop_requested=False)
        assert (outcome.exit_code, outcome.reason, outcome.rank) == (137, "Killed", 1)
        assert outcome.message == "rank 1 was killed by SIGKILL; mostly this means out of memory"


def test_the_first_of_several_causes_is_blamed() -> None:
    deaths = [RankDeath(1, 40), RankDeath(0, 1)]
    outcome = judge(deaths, {1: WRONG_REWARD}, progress=progress(), is_stop_requested=False)
    assert outcome == Outcome(40, "UserError", "rewards[0] raised KeyError", 1)


def test_a_rank_that_we_killed_is_not_blamed() -> None:
    deaths = [RankDeath(0, 75), RankDeath(1, 137, signal_number=9, is_ours=True)]
    outcome = judge(deaths, {0: PEER_WAS_LOST}, progress=progress(), is_stop_requested=False)
    assert (outcome.exit_code, outcome.reason) == (75, PEER_LOST_REASON)


def test_a_requested_stop_is_143_even_when_ranks_had_to_be_killed() -> None:
    for deaths in (
        [RankDeath(0, 143), RankDeath(1, 143)],
        [RankDeath(0, 137, signal_number=9, is_ours=True)],
        [RankDeath(0, 75)],
    ):
        words = {0: PEER_WAS_LOST}
        outcome = judge(deaths, words, progress=progress(), is_stop_requested=True)
        assert (outcome.exit_code, outcome.reason) == (143, "Terminated")


def test_a_failure_of_its_own_shows_also_when_a_stop_was_requested() -> None:
    outcome = judge([RankDeath(0, 40)], {0: WRONG_REWARD}, progress=progress(), is_stop_requested=True)
    assert outcome.exit_code == 40


def test_the_termination_message_fits_and_keeps_as_much_as_it_can() -> None:
    short = TerminationMessage.model_validate_json(
        termination_message(Outcome(1, "UnexpectedError", "boom", 0), progress())
    )
    assert (short.message, short.progress) == ("boom", progress())
    text = termination_message(Outcome(1, "UnexpectedError", "✗\n" * 4000, 0), progress())
    assert 2000 < len(text.encode()) <= MAX_TERMINATION_BYTES
    cut = TerminationMessage.model_validate_json(text)
    assert cut.progress is None
    assert cut.message.startswith("✗\n")
