"""When an engine that ended with 40, which no retry can mend, ends a local job: the operator's rule. Pure."""

from collections.abc import Sequence

from grpo_api.contract.engine_absence import NO_ENGINE_SECONDS, EngineAbsence
from grpo_api.contract.progress import Progress
from grpo_api.contract.retries import has_begun
from grpo_runtime.local.process_outcome import ProcessOutcome


class EngineErrorRule:
    """The rule for one attempt: before the job's first step, or when it has had no engine for a minute and
    all of its `num_engines` have ended so."""

    def __init__(self, *, num_engines: int, has_worked: bool = False) -> None:
        """`has_worked` as in `exit_policy`, of the attempts before."""
        self._num_engines = num_engines
        self._has_begun = has_worked
        self._absence = EngineAbsence()

    def fatal(
        self, errors: Sequence[ProcessOutcome], progress: Progress | None, *, now: float
    ) -> ProcessOutcome | None:
        """The first of `errors` if it ends the job, given the newest report of the trainer.

        `errors` are those of engines that ended with 40 during the attempt and are not back yet.
        """
        if progress is not None:
            self._has_begun = self._has_begun or has_begun(progress)
            self._absence = self._absence.updated(progress, now=now)
        has_no_engine = self._absence.seconds >= NO_ENGINE_SECONDS and len(errors) >= self._num_engines
        return errors[0] if errors and (has_no_engine or not self._has_begun) else None
