"""What a person sees of a local job: new steps and changes of its progress, with a bar on a terminal, and as
lines anywhere else."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TextIO

from tqdm import tqdm

from grpo_api.contract.left_out import left_out_message
from grpo_api.contract.progress import Progress
from grpo_api.v1alpha1.status import ConditionType
from grpo_runtime.report.metrics_file import METRICS_FILE, MetricsRecord, parse_metrics

# tqdm would start a thread, and this process forks
tqdm.monitor_interval = 0


class Screen(Protocol):
    """Where a local job shows its steps and sentences."""

    def say(self, sentence: str) -> None:
        """Show a sentence that stays."""

    def step(self, record: MetricsRecord, *, total: int) -> None:
        """Show a finished step."""

    def close(self) -> None:
        """Leave the bar, if there is one, as it is."""


def screen_for(stream: TextIO | None = None) -> Screen:
    """A bar if `stream` (standard output) is a terminal, else lines; nothing any more once it is closed."""
    stream = stream or sys.stdout
    return UntilClosed(Bar(stream) if stream.isatty() else Lines(stream), stream)


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
        self._is_left_out_reported = False
        """Whether it was shown that an environment fails."""
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
        if progress.left_out and not self._is_left_out_reported:
            self._screen.say(f"{ConditionType.ENVIRONMENT_FAILING}: {left_out_message(progress.left_out)}")
        self._is_left_out_reported = bool(progress.left_out)

    def _show_resume(self, progress: Progress) -> None:
        step, of = progress.resumed_from_step, ""
        if progress.loaded_step is not None:
            step, of = progress.loaded_step, " that resumeFrom names"
        if step is not None and self._resumed_attempt != progress.attempt:
            self._resumed_attempt = progress.attempt
            if progress.set_aside:
                self._screen.say(progress.set_aside)
            self._screen.say(f"attempt {progress.attempt} continues from the checkpoint of step {step}{of}")


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


class UntilClosed:
    """Shows on `screen` until its stream fails: a terminal that was closed, a pipe without a reader.

    The job continues without it, and can still save when it is asked to stop.
    """

    def __init__(self, screen: Screen, stream: TextIO) -> None:
        self._screen = screen
        self._stream = stream
        self._is_closed = False

    def say(self, sentence: str) -> None:
        with self._until_closed():
            if not self._is_closed:
                self._screen.say(sentence)

    def step(self, record: MetricsRecord, *, total: int) -> None:
        with self._until_closed():
            if not self._is_closed:
                self._screen.step(record, total=total)

    def close(self) -> None:
        with self._until_closed():
            self._screen.close()

    @contextmanager
    def _until_closed(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._is_closed = True
            # what is left in its buffer would fail again at exit, and change the exit code
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


class Lines:
    """One line for each step."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, sentence: str) -> None:
        print(sentence, file=self._stream, flush=True)

    def step(self, record: MetricsRecord, *, total: int) -> None:
        numbers = "  ".join(f"{name} {value}" for name, value in _numbers(record).items())
        self.say(f"step {record.step}/{total}  {numbers}")

    def close(self) -> None:
        """Lines need no end."""


class Bar:
    """A bar that appears with the first step, and goes back when an attempt resumes from an earlier step."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: tqdm[None] | None = None

    def say(self, sentence: str) -> None:
        tqdm.write(sentence, file=self._stream)
        self._stream.flush()

    def step(self, record: MetricsRecord, *, total: int) -> None:
        if self._bar is None:
            size = os.get_terminal_size(self._stream.fileno())
            # some terminals do not report their size
            shape = {"dynamic_ncols": True} if size.columns else {"ncols": 80, "nrows": 24}
            self._bar = tqdm(
                total=total, initial=record.step - 1, unit="step", file=self._stream, mininterval=0, **shape
            )
        self._bar.set_postfix(_numbers(record), refresh=False)
        self._bar.update(record.step - self._bar.n)
        self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _numbers(record: MetricsRecord) -> dict[str, str]:
    """Reward, time and tokens per second, as far as the step has them."""
    formats = {"reward": "{:.3f}", "step_time": "{:.2f} s", "tokens_per_second": "{:.0f}"}
    names = {"step_time": "time", "tokens_per_second": "tokens/s"}
    return {
        names.get(name, name): form.format(record.values[name])
        for name, form in formats.items()
        if name in record.values
    }
