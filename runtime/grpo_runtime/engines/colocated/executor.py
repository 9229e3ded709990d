"""What a rank other than 0 does with its engine: it executes rank 0's commands until the process ends.

It does so in a thread of its own, because the main thread goes on meeting the other ranks meanwhile.
"""

import threading

from grpo_runtime.engines.colocated.engine_slice import EngineSlice
from grpo_runtime.engines.colocated.messages import (
    DONE,
    Frames,
    GenerateCommand,
    RestCommand,
    SyncCommand,
    broadcast_message,
    decode_command,
    encode_finished,
    encode_last,
    encode_sampled,
    encode_sync,
    send_message,
)
from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.weight_sync.source import WeightSource


class EngineExecutor:
    """Executes the commands of rank 0 from now on."""

    def __init__(self, engine_slice: EngineSlice, *, weights: WeightSource) -> None:
        """`weights` is this rank's copy of the policy, which is the same on every rank."""
        self._slice = engine_slice
        self._weights = weights
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the engine of this rank."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._slice.enter_thread()
            while True:
                self._execute_next()
        except BaseException as error:
            # for the main thread, which calls `check` after each meeting of the ranks
            self._failure = error

    def _execute_next(self) -> None:
        channel = self._slice.channel
        command = decode_command(broadcast_message(None, channel=channel))
        if isinstance(command, SyncCommand):
            answer = encode_sync(self._slice.sync(command, weights=self._weights))
        elif isinstance(command, RestCommand):
            self._slice.rest()
            answer = DONE
        else:
            answer = self._generate(command)
        send_message(answer, channel=channel)

    def _generate(self, command: GenerateCommand) -> Frames:
        """One rank of an engine gives its completions, but every rank answers when it is done: training must
        not begin while an engine still gives its memory back."""
        if not command.is_streamed:
            rollouts = self._slice.generate(command)
            return encode_sampled(rollouts) if self._slice.is_first else DONE
        if not self._slice.is_first:
            self._slice.generate(command)
            return encode_last(DONE)

        def pass_on(index: int, rollout: Rollout) -> None:
            send_message(encode_finished(index, rollout), channel=self._slice.channel)

        return encode_last(encode_sampled(self._slice.generate(command, on_finished=pass_on)))
