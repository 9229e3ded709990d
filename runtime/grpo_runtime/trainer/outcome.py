"""What the end of the ranks means for the pod: one exit code, one reason, one sentence. Pure."""

import signal
from collections.abc import Mapping, Sequence

from grpo_api.contract.exit_codes import PEER_LOST_REASON, ExitCode, exit_policy
from grpo_api.contract.progress import Progress, TrainerState
from grpo_runtime.termination import Outcome
from grpo_runtime.trainer.failure import RankFailure
from grpo_runtime.trainer.gang import RankDeath


def judge(
    deaths: Sequence[RankDeath],
    failures: Mapping[int, RankFailure],
    *,
    progress: Progress | None,
    is_stop_requested: bool,
) -> Outcome:
    """The outcome of a gang whose ranks ended in the order of `deaths`.

    `failures` are the ranks' last words by local rank. A cause ranks above its consequences: a rank that
    merely lost a peer is blamed only when no rank failed for a reason of its own, and not at all when the
    pod was asked to stop, as its peers then were too. `progress` is None on pods without rank 0.
    """
    failed = [death for death in deaths if death.exit_code not in (ExitCode.DONE, ExitCode.TERMINATED)]
    causes = [death for death in failed if not death.is_ours and not _is_consequence(death, failures)]
    if causes:
        return _blame(causes[0], failures)
    if failed and not is_stop_requested:
        return _blame(failed[0], failures)
    if failed:
        return _terminated("asked to stop, but not all ranks reached a step boundary in time", progress)
    if any(death.exit_code == ExitCode.TERMINATED for death in deaths):
        return _terminated("asked to stop, and stopped at a step boundary", progress)
    if progress is not None and progress.state != TrainerState.DONE:
        sentence = _with_progress("the ranks ended without an error before training was done", progress)
        return Outcome(ExitCode.UNEXPECTED, exit_policy(ExitCode.UNEXPECTED).reason, sentence)
    sentence = _with_progress("training is done", progress)
    return Outcome(ExitCode.DONE, exit_policy(ExitCode.DONE).reason, sentence)


def _terminated(sentence: str, progress: Progress | None) -> Outcome:
    reason = exit_policy(ExitCode.TERMINATED).reason
    return Outcome(ExitCode.TERMINATED, reason, _with_progress(sentence, progress))


def _is_consequence(death: RankDeath, failures: Mapping[int, RankFailure]) -> bool:
    words = failures.get(death.local_rank)
    return words is not None and words.reason == PEER_LOST_REASON


def _blame(culprit: RankDeath, failures: Mapping[int, RankFailure]) -> Outcome:
    words = failures.get(culprit.local_rank)
    if words is not None:
        return Outcome(words.exit_code, words.reason, words.message, culprit.local_rank)
    reason = exit_policy(culprit.exit_code).reason
    return Outcome(culprit.exit_code, reason, _without_words(culprit), culprit.local_rank)


def _without_words(death: RankDeath) -> str:
    if death.signal_number is None:
        return (
            f"rank {death.local_rank} ended with exit code {death.exit_code} and gave no reason; see its log"
        )
    name = signal.Signals(death.signal_number).name
    hint = "; mostly this means out of memory" if death.signal_number == signal.SIGKILL else ""
    return f"rank {death.local_rank} was killed by {name}{hint}"


def _with_progress(sentence: str, progress: Progress | None) -> str:
    return sentence if progress is None else f"{sentence}: {progress.step} of {progress.total_steps} steps"
