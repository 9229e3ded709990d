"""How a pod ends, given how its ranks ended. Pure."""

from collections.abc import Mapping

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import Progress, TerminationMessage, TrainerState
from grpo_api.contract.reasons import Reason
from grpo_runtime.supervisor.outcome import decide_outcome
from grpo_runtime.supervisor.rank_processes import RankExit


def progress(step: int = 3, state: TrainerState = TrainerState.TRAINING) -> Progress:
    return Progress(job_uid="uid", attempt=1, state=state, step=step, total_steps=5)


LOST_A_PEER = TerminationMessage(
    reason=Reason.PEER_LOST, message="rank 1 is gone", exit_code=ExitCode.TRANSIENT, is_effect=True
)
WRONG_REWARD = TerminationMessage(
    reason=Reason.USER_ERROR, message="rewards[0] raised KeyError", exit_code=ExitCode.USER_ERROR
)


def outcome_of(
    *exits: RankExit,
    failures: Mapping[int, TerminationMessage] | None = None,
    reported: Progress | None = None,
    is_stop_requested: bool = False,
) -> TerminationMessage:
    return decide_outcome(
        exits, failures or {}, progress=reported or progress(), is_stop_requested=is_stop_requested
    )


def test_ranks_that_did_every_step_end_the_pod_with_0() -> None:
    outcome = outcome_of(RankExit(0, 0), RankExit(1, 0), reported=progress(5, TrainerState.DONE))
    assert outcome == TerminationMessage(
        exit_code=0, reason=Reason.DONE, message="training is done: 5 of 5 steps"
    )


def test_ranks_that_end_without_an_error_before_the_last_step_are_not_a_success() -> None:
    assert outcome_of(RankExit(0, 0), reported=progress(3)).exit_code == ExitCode.UNEXPECTED


def test_a_kill_ranks_above_the_lost_peer_that_it_causes_in_whichever_order_they_are_seen() -> None:
    lost, killed = RankExit(0, 75), RankExit(1, 137, signal_number=9)
    for exits in ([lost, killed], [killed, lost]):
        outcome = outcome_of(*exits, failures={0: LOST_A_PEER})
        assert (outcome.exit_code, outcome.reason, outcome.rank) == (137, "Killed", 1)
        assert outcome.message == "rank 1 was killed by SIGKILL; mostly this means out of memory"


def test_of_several_causes_the_first_is_named() -> None:
    outcome = outcome_of(RankExit(1, 40), RankExit(0, 1), failures={1: WRONG_REWARD})
    assert outcome == WRONG_REWARD.model_copy(update={"rank": 1})


def test_a_rank_that_the_supervisor_killed_is_not_the_cause() -> None:
    killed = RankExit(1, 137, signal_number=9, is_ours=True)
    outcome = outcome_of(RankExit(0, 75), killed, failures={0: LOST_A_PEER})
    assert (outcome.exit_code, outcome.reason, outcome.rank) == (75, Reason.PEER_LOST, 0)


def test_a_requested_stop_is_143_even_when_ranks_had_to_be_killed() -> None:
    for exits in (
        [RankExit(0, 143), RankExit(1, 143)],
        [RankExit(0, 137, signal_number=9, is_ours=True)],
        [RankExit(0, 75)],
    ):
        outcome = outcome_of(*exits, failures={0: LOST_A_PEER}, is_stop_requested=True)
        assert (outcome.exit_code, outcome.reason) == (143, "Terminated")


def test_a_failure_of_its_own_shows_also_when_a_stop_was_requested() -> None:
    outcome = outcome_of(RankExit(0, 40), failures={0: WRONG_REWARD}, is_stop_requested=True)
    assert outcome.exit_code == 40


def test_a_connection_that_broke_to_something_outside_the_pod_is_a_cause() -> None:
    refused = TerminationMessage(
        reason=Reason.UNEXPECTED_ERROR,
        message="RuntimeError: Connection refused",
        exit_code=1,
        is_effect=True,
    )
    aborted = RankExit(1, 134, signal_number=6)
    outcome = outcome_of(RankExit(0, 1), aborted, failures={0: refused})
    assert outcome == refused.model_copy(update={"rank": 0})


def test_an_error_of_the_user_ranks_above_an_error_before_it() -> None:
    outcome = outcome_of(RankExit(1, 1), RankExit(0, 40), failures={0: WRONG_REWARD})
    assert outcome == WRONG_REWARD.model_copy(update={"rank": 0})
