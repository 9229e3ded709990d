"""From how the ranks ended to how the pod ends: one exit code, one reason, one message. Pure."""

from collections.abc import Mapping, Sequence

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import Progress, TerminationMessage, TrainerState
from grpo_api.contract.reasons import Reason
from grpo_runtime.process.killed import was_killed_by
from grpo_runtime.process.termination import termination_message
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

    A cause ranks above its consequences. A rank that only lost a peer, or that the supervisor killed, is
    named only if no rank failed for a reason of its own; and not at all if the pod was asked to stop, because
    its peers then stopped too.
    """
    failed = [rank for rank in exits if rank.exit_code not in (ExitCode.DONE, ExitCode.TERMINATED)]
    causes = [rank for rank in failed if not rank.is_ours and not _has_lost_a_peer(rank, failures)]
    if causes:
        return _outcome_of_rank(causes[0], failures)
    if failed and not is_stop_requested:
        return _outcome_of_rank(failed[0], failures)
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


def _has_lost_a_peer(rank: RankExit, failures: Mapping[int, TerminationMessage]) -> bool:
    failure = failures.get(rank.local_rank)
    return failure is not None and failure.reason == Reason.PEER_LOST


def _outcome_of_rank(rank: RankExit, failures: Mapping[int, TerminationMessage]) -> TerminationMessage:
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
