"""Training that does not continue: says where each process of this pod is, and when the attempt is to end
because of it. No torch here.

A process that is stopped, hangs in a collective operation or waits for a volume reports nothing, and the
others soon wait for it.
"""

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import Progress, TerminationMessage
from grpo_api.contract.reasons import Reason
from grpo_api.judge.clocks import Clocks
from grpo_runtime.process.background import in_thread
from grpo_runtime.report.position import Position, read_positions
from grpo_runtime.report.progress import STANDSTILL_FILE, rounded_down
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.storage.files import write_atomically
from grpo_runtime.supervisor.positions import PodPositions, ask_other_pods, describe, positions_of_pod

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 15.0
"""How long no process must have made progress before that is reported."""
LONGER_FACTOR = 3.0
"""How many times as long as ever before a process may take for what it does."""
HEARD_SECONDS = 120.0
"""How long somebody who has asked for the progress counts as one who judges it."""


class Standstill:
    """Watches the training processes of one pod; `look` is called every few seconds."""

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        dump_stacks: Callable[[Collection[int]], None],
        ask_others: Callable[[TrainerSettings], list[PodPositions]] = ask_other_pods,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`dump_stacks` makes processes, by local rank, print where they are into the log of the pod."""
        self._settings = settings
        self._dump_stacks = dump_stacks
        self._ask_others = ask_others
        self._clock = clock
        self._file = settings.run_dir / STANDSTILL_FILE
        self._moves: dict[int, int] = {}
        self._moved_at = clock()
        self._is_told = False
        self._others: list[PodPositions] | None = None
        """What the other pods said in this standstill; None while none was asked."""
        self._asking: Future[list[PodPositions]] | None = None

    def look(self) -> None:
        """Write the sentence about a standstill, or take it back once a process continues."""
        now = self._clock()
        positions = read_positions(self._settings.run_dir)
        moves = {rank: position.num_moves for rank, position in positions.items()}
        seconds = now - self._moved_at
        if moves != self._moves or not positions:
            if self._is_told:
                logger.warning("the training processes continue after %.0f s", seconds)
                self._file.unlink(missing_ok=True)
            self._moves, self._moved_at, self._is_told = moves, now, False
            self._others = self._asking = None
        elif seconds >= patience_seconds(positions.values()):
            self._tell(seconds, local_ranks=positions.keys())

    def _tell(self, seconds: float, *, local_ranks: Collection[int]) -> None:
        sentence = f"no training process has made progress for {rounded_down(seconds)} s: {self._positions()}"
        if not self._is_told:
            logger.warning("%s; the stacks of those of this pod follow", sentence)
            self._dump_stacks(local_ranks)
        self._is_told = True
        write_atomically(self._file, sentence)

    def _positions(self) -> str:
        """Where the processes are, in trainer pod 0 those of all pods once it has asked the others."""
        pods, num_nodes = [positions_of_pod(self._settings)], self._settings.run_config.topology.num_nodes
        if self._settings.node_index == 0 and num_nodes > 1:
            self._ask()
        if self._others is None:
            return describe(pods)
        pods += self._others
        silent = set(range(num_nodes)) - {pod.node_index for pod in pods}
        return describe(pods, silent=sorted(silent))

    def _ask(self) -> None:
        """Ask the other pods in a thread: one that does not answer must not hold this process up."""
        if self._asking is None:
            self._asking = in_thread(lambda: self._ask_others(self._settings), name="positions")
        elif self._asking.done():
            self._others, self._asking = self._asking.result(), None


def patience_seconds(positions: Collection[Position]) -> float:
    """How long processes that do this may show no sign before it is reported."""
    longest = max(position.longest_seconds for position in positions)
    return max(PATIENCE_SECONDS, LONGER_FACTOR * longest)


class StallLimit:
    """Whether an attempt has made no progress for too long, while nobody asks for its progress. Otherwise the
    operator judges it: its limits may have changed since the pod was made."""

    def __init__(self, settings: TrainerSettings, *, now: float) -> None:
        """The limits are those of `settings`, and the attempt begins at `now` (monotonic, in seconds)."""
        self._stall_seconds = settings.stall_timeout_seconds
        self._startup_seconds = settings.startup_deadline_seconds
        self._clocks = Clocks.begin(now)

    def exceeded(
        self, progress: Progress | None, *, asked_at: float | None, now: float
    ) -> TerminationMessage | None:
        """Why the attempt is to end, given its newest report and when somebody asked for it last; None while
        it is not."""
        if progress is None:
            return None  # a pod without rank 0
        self._clocks = self._clocks.updated(progress, now=now)
        has_begun = self._clocks.has_begun
        limit = self._stall_seconds if has_begun else self._startup_seconds
        is_judged = asked_at is not None and now - asked_at < HEARD_SECONDS
        seconds = now - self._clocks.alive_at
        if limit is None or is_judged or seconds < limit:
            return None
        field = "stallTimeoutSeconds" if has_begun else "startupDeadlineSeconds"
        sentence = f"no sign of life for {seconds:.0f} s ({field} is {limit}), and no operator asks"
        return TerminationMessage(
            exit_code=ExitCode.TRANSIENT,
            reason=Reason.TRAINER_STALLED,
            message=f"{sentence}: {progress.message or progress.state.value}",
        )
