"""A transfer engine of vLLM in one worker, kept from serving a model that is neither the old nor the new one.

vLLM's engines take the layers of the model apart when an update starts and load tensors while they arrive, by
calls that may wait for the trainer without a deadline. So an update that fails once it has begun ends the
process, and so does a call that misses its deadline.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_runtime.weight_sync.interface import Info, ModelBrokenError, ReceiverSettings, WeightSyncError
from grpo_runtime.weight_sync.stream.manifest import WIRE_DTYPES, WeightManifest
from grpo_runtime.weight_sync.watchdog import Watchdog

NCCL = "nccl"
"""vLLM's name of its own engine that this is mostly used for."""
_M = TypeVar("_M", bound="_Message")


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    connection: Annotated[str, Field(max_length=128, repr=False)] = ""
    """The name of the connection, which no other has."""


class InitMessage(_Message):
    """What the verb `init` carries: `init_info` is what the trainer's half sends the engine's."""

    init_info: Annotated[dict[str, Any], Field(repr=False)]
    meeting_seconds: Annotated[float, Field(gt=0)]


class UpdateMessage(_Message):
    """What the verb `update` carries: the tensors of the update, and what the trainer's half sends the
    engine's of this part of it; or `abort`."""

    names: tuple[str, ...] = ()
    dtype_names: tuple[str, ...] = ()
    shapes: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...] = ()
    update_info: dict[str, Any] | list[dict[str, Any]] = {}
    """Where it is a list, that of each worker."""
    transfer_seconds: Annotated[float, Field(gt=0)] = 10.0
    """How long all of it may take."""
    abort: Annotated[str, Field(max_length=1024)] = ""
    """Why the open update is aborted; nothing follows."""

    @classmethod
    def of(cls, manifest: WeightManifest, *, connection: str, transfer_seconds: float) -> "UpdateMessage":
        """The `update` of the tensors that the manifest describes, without `update_info`."""
        return cls(
            names=tuple(entry.name for entry in manifest.tensors),
            dtype_names=tuple(entry.dtype for entry in manifest.tensors),
            shapes=tuple(entry.shape for entry in manifest.tensors),
            connection=connection,
            transfer_seconds=transfer_seconds,
        )

    def problems(self, settings: ReceiverSettings) -> list[str]:
        """Sentences about why these cannot be the tensors of the engine's model."""
        if not len(self.names) == len(self.dtype_names) == len(self.shapes):
            return ["names, dtypes and shapes are not as many"]
        if len(set(self.names)) < len(self.names):
            return ["a name is there twice"]
        unknown = [
            f"dtype {dtype} cannot travel" for dtype in set(self.dtype_names) if dtype not in WIRE_DTYPES
        ]
        return unknown + settings.layout_problems(dict(zip(self.names, self.shapes, strict=True)))


class VllmNativeReceiver:
    """The engine's half, as a `Receiver`. The model is touched from the moment on at which an update is found
    to be for it, not when it is opened."""

    def __init__(self, settings: ReceiverSettings, *, engine: str, end_engine: Callable[[str], None]) -> None:
        """`engine` is the name of the half. Raises WeightSyncError where there is none of this name."""
        if settings.vllm_engine is None:
            raise WeightSyncError("transfer engines of vLLM are there in a worker of vLLM only")
        try:
            self._engine = settings.vllm_engine(engine)
        except (ValueError, ImportError) as error:
            raise WeightSyncError(
                f"vLLM in the rollout image has no weight transfer engine {engine}, which is "
                f"weightSync.vllmEngine: {error}"
            ) from error
        self._name = engine
        self._settings = settings
        late = (
            f"vLLM's {engine} engine waits for the trainer beyond its deadline, and nothing can interrupt it"
        )
        self._watchdog = Watchdog(partial(end_engine, late))
        self._connection = ""
        self._has_begun = False
        """Whether the model has been taken apart for an update that is not finished."""

    def init(self, info: Info) -> None:
        """Meet a new sender. Raises GroupBrokenError when vLLM's engine cannot; the model is as it was."""
        self._require_whole_model()
        message = self._parsed(InitMessage, info)
        if self._name == NCCL and not _meets_by_id(message.init_info):
            raise WeightSyncError(
                "vLLM's nccl engine must get NCCL's id, and no store: it unpickles what it finds in one"
            )
        self._connection = ""
        self._engine.shutdown()
        with self._watchdog.within(message.meeting_seconds):
            self._engine.init_transfer_engine(self._engine.parse_init_info(message.init_info))
        self._connection = message.connection

    def start(self) -> None:
        """Open an update."""
        self._require_whole_model()

    def update(self, info: Info) -> None:
        """Let vLLM's engine receive and load a part of an update, which may be all of it, or give it up.

        Raises WeightSyncError while the model is as it was, and ModelBrokenError from then on.
        """
        message = self._parsed(UpdateMessage, info)
        if message.abort or not message.names:
            self._require_whole_model()
            raise WeightSyncError(f"weight update aborted: {message.abort or 'no reason given'}")
        if not message.connection or message.connection != self._connection:
            self._require_whole_model()
            raise WeightSyncError("this engine is not connected to this sender: it must init first")
        if problems := message.problems(self._settings):
            self._require_whole_model()
            raise WeightSyncError(f"weight update refused: {'; '.join(problems[:5])}")
        sent = message.update_info
        is_first, self._has_begun = not self._has_begun, True
        try:
            with self._watchdog.within(message.transfer_seconds):
                if is_first:
                    self._engine.start_weight_update()
                self._engine.update_weights(sent[self._settings.worker] if isinstance(sent, list) else sent)
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
            raise ModelBrokenError("the model has weights of an update that was aborted")

    def _parsed(self, kind: type[_M], info: Info) -> _M:
        try:
            return kind.model_validate_json(json.dumps(info))
        except ValidationError as error:
            self._require_whole_model()
            raise WeightSyncError(f"not understood by vLLM's {self._name} engine: {error}") from error


def _meets_by_id(init_info: dict[str, Any]) -> bool:
    is_id = isinstance(init_info.get("nccl_unique_id_b64"), str)
    return is_id and init_info.keys().isdisjoint({"master_address", "master_port"})
