"""Shows a running trainer on the screen: new lines of metrics.jsonl and changes of its progress."""

from pathlib import Path

from grpo_api.contract.progress import Progress
from grpo_api.v1alpha1.status import ConditionType
from grpo_runtime.local.screen import Screen
from grpo_runtime.report.metrics import METRICS_FILE, MetricsRecord, parse_metrics


class MetricsTail:
    """Reads what is appended to the metrics file of `output` from now on."""

    def __init__(self, output: Path) -> None:
        self._path = output / METRICS_FILE
        self._position = self._path.stat().st_size if self._path.exists() else 0

    def read_new(self) -> list[MetricsRecord]:
        """The records whose lines were finished since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            text, newline, _ = file.read().rpartition(b"\n")
        self._position += len(text) + len(newline)
        return parse_metrics(text.decode())


class ProgressDisplay:
    """Shows on `screen` what is new about a job of `total_steps`, or of as many as its trainer says."""

    def __init__(self, output: Path, screen: Screen, *, total_steps: int) -> None:
        self._tail = MetricsTail(output)
        self._screen = screen
        self._total = total_steps
        self._shown: tuple[int, str] = (0, "")
        """Attempt and message that were shown last."""
        self._is_signal_reported = False
        """Whether it was shown that the newest steps teach nothing."""
        self._resumed_attempt = 0
        """The last attempt whose resume was shown."""

    def update(self, progress: Progress | None) -> None:
        """Show what is new, given the newest report of the trainer."""
        if progress is not None:
            self._total = progress.total_steps or self._total
            self._show_resume(progress)
        for record in self._tail.read_new():
            self._screen.step(record, total=self._total)
        if progress is not None:
            self._show_signal(progress)
        if progress is not None and progress.message and self._shown != (progress.attempt, progress.message):
            self._shown = (progress.attempt, progress.message)
            self._screen.say(f"{progress.state.value}: {progress.message}")

    def _show_signal(self, progress: Progress) -> None:
        found = progress.no_learning_signal
        if found is not None and not self._is_signal_reported:
            self._screen.say(f"{ConditionType.NO_LEARNING_SIGNAL}: {found.message}")
        self._is_signal_reported = found is not None

    def _show_resume(self, progress: Progress) -> None:
        step, of = progress.resumed_from_step, ""
        if progress.loaded_step is not None:
            step, of = progress.loaded_step, " that resumeFrom names"
        if step is not None and self._resumed_attempt != progress.attempt:
            self._resumed_attempt = progress.attempt
            if progress.set_aside:
                self._screen.say(progress.set_aside)
            self._screen.say(f"attempt {progress.attempt} goes on from the checkpoint of step {step}{of}")
