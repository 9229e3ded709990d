"""How many failures of a reward function a run bears, and when they end it."""

from collections.abc import Sequence

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.types import FailureKind, RewardFailure, RewardFunction


class Tolerance:
    """Judges the failures of one function, step by step.

    A bug fails for every chunk and ends the run in its first step; what fails now and then, such as a
    verifier that hangs on one completion, ends it only after `max_failing_steps` steps in a row. So does a
    function that has scored a step before and now answers nothing: what it asks may come back.
    """

    def __init__(self, function: RewardFunction, *, has_scored: bool = False) -> None:
        """`has_scored` says that an earlier attempt has finished steps with this function."""
        self._function = function
        self._has_scored = has_scored
        self._num_failing_steps = 0
        self._step: int | None = None
        self._failures: list[RewardFailure] = []
        self._num_samples = 0

    def judge(self, failures: Sequence[RewardFailure], *, num_samples: int, step: int) -> None:
        """Count failures of the step that follows `step` finished ones. Dynamic sampling scores a step in
        several rounds, which are judged together.

        Raises UserError, with what the function said, when they are more than the function may have.
        """
        if step != self._step:
            if not self._failed_chunks():
                self._num_failing_steps = 0
            self._has_scored |= sum(failure.num_samples for failure in self._failures) < self._num_samples
            self._step, self._failures, self._num_samples = step, [], 0
        was_failing = bool(self._failed_chunks())
        self._failures += failures
        self._num_samples += num_samples
        counted = self._failures
        if self._has_scored:
            counted = [failure for failure in counted if failure.kind is not FailureKind.LOST]
        self._refuse_too_many(counted, num_samples=self._num_samples, of_what=f"step {step + 1}")
        failed_chunks = self._failed_chunks()
        self._num_failing_steps += bool(failed_chunks) and not was_failing
        if failed_chunks and self._num_failing_steps >= self._function.max_failing_steps:
            raise UserError(
                f"reward {self._function.name} failed in {self._num_failing_steps} steps in a row, up to "
                f"step {step + 1}, which is its maxFailingSteps: {_first_line(failed_chunks)}"
            )

    def judge_evaluation(self, failures: Sequence[RewardFailure], *, num_samples: int, step: int) -> None:
        """Judge an evaluation after `step` steps, by itself: its failures count for no step.

        Raises UserError, with what the function said, when they are more than `max_failure_share`: what is
        left says little about the policy.
        """
        of_what = f"the evaluation after step {step}"
        self._refuse_too_many(failures, num_samples=num_samples, of_what=of_what)

    def _failed_chunks(self) -> list[RewardFailure]:
        return [failure for failure in self._failures if failure.kind is not FailureKind.REFUSED]

    def _refuse_too_many(self, failures: Sequence[RewardFailure], *, num_samples: int, of_what: str) -> None:
        is_one_lost_chunk = [failure.kind for failure in failures] == [FailureKind.LOST]
        num_failed = sum(failure.num_samples for failure in failures)
        if num_failed <= self._function.max_failure_share * num_samples or is_one_lost_chunk:
            return
        raise UserError(
            f"reward {self._function.name} failed on {num_failed} of {num_samples} completions of {of_what} "
            f"({num_failed / num_samples:.0%}), more than its maxFailureShare of "
            f"{self._function.max_failure_share:.0%}: {_first_line(failures)}"
        )


def _first_line(failures: Sequence[RewardFailure]) -> str:
    return failures[0].reason.partition("\n")[0]
