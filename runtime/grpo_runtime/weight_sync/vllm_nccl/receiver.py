"""vLLM's own nccl engine in one worker, kept from serving a model that is neither the old nor the new one.

vLLM's engine takes the layers of the model apart when an update starts and loads tensors while they arrive,
by calls of NCCL that wait for other members without a deadline. So an update that fails once it has begun
ends the process, and so does a call that misses its deadline.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pydantic import ValidationError

from grpo_runtime.weight_sync.interface import Info, ModelBrokenError, ReceiverSettings, WeightSyncError
from grpo_runtime.weight_sync.network.watchdog import Watchdog
from grpo_runtime.weight_sync.vllm_nccl.wire import ENGINE_OF_VLLM, InitMessage, UpdateMessage

_M = TypeVar("_M", InitMessage, UpdateMessage)


class VllmNcclReceiver:
    """See `Receiver`. The model is touched from the moment on at which an update is found to be for it, not
    when it is opened."""

    def __init__(self, settings: ReceiverSettings, *, end_engine: Callable[[str], None]) -> None:
        """Raises WeightSyncError where there is no vLLM."""
        if settings.vllm_engine is None:
            raise WeightSyncError("vLLM's nccl engine is there in a worker of vLLM only")
        self._settings = settings
        self._engine = settings.vllm_engine(ENGINE_OF_VLLM)
        late = "vLLM's nccl engine waits for the trainer beyond its deadline, and nothing can interrupt it"
        self._watchdog = Watchdog(partial(end_engine, late))
        self._connection = ""
        self._has_begun = False
        """Whether the model has been taken apart for an update that is not finished."""

    def init(self, info: Info) -> None:
        """Meet a new sender. Raises GroupBrokenError when vLLM's engine cannot; the model is as it was."""
        self._require_whole_model()
        message = _parsed(InitMessage, info)
        self._connection = ""
        self._engine.shutdown()
        with self._watchdog.within(message.meeting_seconds):
            self._engine.init_transfer_engine(self._engine.parse_init_info(message.for_vllm()))
        self._connection = message.connection

    def start(self) -> None:
        """Open an update."""
        self._require_whole_model()

    def update(self, info: Info) -> None:
        """Let vLLM's engine receive and load everything, or give the update up; see `Receiver`."""
        self._require_whole_model()
        message = _parsed(UpdateMessage, info)
        if message.abort or not message.names:
            raise WeightSyncError(f"weight update given up: {message.abort or 'no reason given'}")
        if message.connection != self._connection:
            raise WeightSyncError("this engine is not connected to this sender: it must init first")
        if problems := message.problems(self._settings):
            raise WeightSyncError(f"weight update refused: {'; '.join(problems[:5])}")
        self._has_begun = True
        try:
            with self._watchdog.within(message.transfer_seconds):
                self._engine.start_weight_update()
                self._engine.update_weights(message.for_vllm())
        except Exception as error:
            raise ModelBrokenError(f"a transfer into the model failed: {error}") from error

    def take(self) -> None:
        """Let vLLM's engine finish the update. Raises WeightSyncError when there is none."""
        if not self._has_begun:
            raise WeightSyncError("there is nothing to finish: no complete weight update was received")
        try:
            self._engine.finish_weight_update()
        except Exception as error:
            raise ModelBrokenError(f"an update of the model could not be finished: {error}") from error
        self._has_begun = False

    def shutdown(self) -> None:
        """Let go of the connection."""
        self._connection = ""
        self._engine.shutdown()

    def _require_whole_model(self) -> None:
        if self._has_begun:
            raise ModelBrokenError("the model has weights of an update that was given up")


def _parsed(kind: type[_M], info: Info) -> _M:
    try:
        return kind.model_validate_json(json.dumps(info))
    except ValidationError as error:
        raise WeightSyncError(f"not understood by vLLM's nccl engine: {error}") from error
