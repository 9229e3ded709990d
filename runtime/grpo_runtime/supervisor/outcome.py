"""Decides how the pod ends by how its ranks ended: one exit code, one reason, one message. Pure."""

from collections.abc import Mapping, Sequence

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import Progress, TerminationMessage, TrainerState
from grpo_api.contract.reasons import is_effect
from grpo_api.judge.causes import Precedence, cause_of, first_cause
from grpo_runtime.process.termination import termination_message, was_killed_by
from grpo_runtime.supervisor.rank_processes import RankExit


def decide_outcome(
    exits: Sequence[RankExit],
    failures: Mapping[int, TerminationMessage],
    *,
    progress: Progress | None,
    is_stop_requested: bool,
) -> TerminationMessage:
    """How the pod ends, given how its ranks ended, in the order of `exits`.

    `failures` are the failures that ranks wrote, by local rank; `progress` is None on pods without rank 0.

    The first cause is named. A rank that only lost a peer, or that the supervisor killed, is none if the pod
    was asked to stop, because its peers then stopped too.
    """
    failed = [rank for rank in exits if rank.exit_code not in (ExitCode.DONE, ExitCode.TERMINATED)]
    ends = [(_end_of(rank, failures), rank.is_ours) for rank in failed]
    cause = first_cause(
        # a connection that broke may also be one to something outside the pod
        cause_of(end, end, has_worked=False, is_effect=is_ours or is_effect(end.reason))
        for end, is_ours in ends
    )
    if cause is not None and (cause.precedence is not Precedence.EFFECT or not is_stop_requested):
        return cause.ended
    if failed:
        sentence = "asked to stop, but not all ranks reached a step boundary in time"
        return termination_message(ExitCode.TERMINATED, _with_progress(sentence, progress))
    if any(rank.exit_code == ExitCode.TERMINATED for rank in exits):
        sentence = "asked to stop, and stopped at a step boundary"
        return termination_message(ExitCode.TERMINATED, _with_progress(sentence, progress))
    if progress is not None and progress.state != TrainerState.DONE:
        sentence = "the ranks ended without an error before training was done"
        return termination_message(ExitCode.UNEXPECTED, _with_progress(sentence, progress))
    return termination_message(ExitCode.DONE, _with_progress("training is done", progress))


def _end_of(rank: RankExit, failures: Mapping[int, TerminationMessage]) -> TerminationMessage:
    """The failure that the rank wrote, or what its exit code and signal say."""
    failure = failures.get(rank.local_rank)
    if failure is not None:
        return failure.model_copy(update={"rank": rank.local_rank})
    return termination_message(rank.exit_code, _sentence_about(rank), rank=rank.local_rank)


def _sentence_about(rank: RankExit) -> str:
    if rank.signal_number is None:
        return f"rank {rank.local_rank} ended with exit code {rank.exit_code} and gave no reason; see its log"
    return f"rank {rank.local_rank} {was_killed_by(rank.signal_number)}"


def _with_progress(sentence: str, progress: Progress | None) -> str:
    return (
        sentence
        if progress is None
        else f"{sentence}: {progress.step} of {progress.total_steps or '?'} steps"
    )
