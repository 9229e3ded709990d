"""What a backend brings: a sender in the trainer and a receiver in each worker of an engine.

A transfer goes

    init -> start -> update -> finish(version) -> ... start -> update -> finish(version) ... -> shutdown

and only `finish` changes the weights that are served. `update` delivers everything and checks it; when it
fails, or `abort` is called instead of `finish`, the old weights stay and the next `start` opens a new update.
Where weights go into the model while they arrive, the engine ends instead, and is started again.
A new sender may `init` a receiver at any time: it replaces the connection of the one before.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch

from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.source import WeightSource

Info = Mapping[str, Any]
"""What a verb carries to the receiver: JSON values only."""

Failures = Mapping[str, Exception]
"""The engines that failed a verb, by name, and why. Empty when all of them did it."""


class WeightSyncError(Exception):
    """A transfer failed. The receiver still has its old weights and takes another transfer."""

    MARK: ClassVar[str] = ""
    """Words that begin the message of this kind of error. An answer of vLLM holds the message of an error and
    nothing else: by them the other side knows which one it was."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{self.MARK}: {why}" if self.MARK else why)

    @staticmethod
    def told_in(answer: str) -> "WeightSyncError":
        """The error in the answer of an engine; its message is the answer."""
        kind = next((kind for kind in _kinds(WeightSyncError) if kind.MARK and kind.MARK in answer), None)
        error = WeightSyncError(answer) if kind is None else kind.__new__(kind, answer)
        error.args = (answer,)
        return error


def _kinds(kind: type[WeightSyncError]) -> Iterator[type[WeightSyncError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)


class GroupBrokenError(WeightSyncError):
    """A transfer failed because of another member of its group, or nobody knows because of whom."""

    MARK = "the group of this transfer broke"


class OverLimitError(GroupBrokenError):
    """A transfer to several engines went on for longer than they may wait for one another."""


class TooSlowError(WeightSyncError):
    """An engine took so long for its weights that others must not wait for it again. It may well get them in
    a sync of its own."""


class NeedsAllWeightsError(WeightSyncError):
    """A receiver was sent what changed, and does not have the weights that this changes."""

    MARK = "this engine must be given all weights"


class NeedsPauseError(WeightSyncError):
    """A receiver in an engine that serves has no memory to stage the weights in: only one whose engine is
    paused may put them into the model while they arrive."""

    MARK = "this engine must be paused to receive"


class WrongTagError(WeightSyncError):
    """A stream has another tag than it should."""

    MARK = "the bytes received are not the bytes announced"


class ModelBrokenError(Exception):
    """An engine's model has some new weights and some old ones, or new ones of an aborted update: its process
    must end, for it must never serve them."""


class ControlChannel(Protocol):
    """How the verbs reach one engine. Each call returns when the engine has done it, or raises
    WeightSyncError.

    An engine of several workers passes each call on to all of them.
    """

    async def init(self, info: Info) -> None: ...

    async def start(self) -> None: ...

    async def update(self, info: Info) -> None: ...

    async def finish(self, version: str) -> None: ...

    async def shutdown(self) -> None: ...


@dataclass(frozen=True)
class Peer:
    """One engine as a sender sees it. `host` is a name or an address at which the engine is reached, and
    `num_workers` how many receivers it has."""

    channel: ControlChannel
    host: str
    num_workers: int = 1


@dataclass(frozen=True)
class SenderSettings:
    """Settings of all senders of a fleet."""

    deadlines: Deadlines

    @property
    def timeout_seconds(self) -> float:
        """The whole deadline of a verb."""
        return self.deadlines.timeout_seconds


class VllmTransferEngine(Protocol):
    """vLLM's own transfer engine in one worker, with what a worker of vLLM calls. It is not safe to serve
    between `start_weight_update` and the end of `finish_weight_update`."""

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any: ...

    def init_transfer_engine(self, init_info: Any) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None: ...

    def finish_weight_update(self) -> None: ...

    def shutdown(self) -> None: ...


Load = Callable[[Iterator[tuple[str, torch.Tensor]]], None]
"""Puts tensors, by name, into the model. It may keep some until it has all of a layer, as vLLM does."""


@dataclass(frozen=True)
class DirectLoad:
    """What loads weights into the model while they arrive, in an engine without the memory to stage them
    beside it: `has_room` says whether there is memory for so many bytes more, and where there is not, `load`
    is used.

    From the first tensor on the model is neither the old one nor the new one. The tag at the end of the
    stream says whether it became the new one; if not, the process that holds the model must end.
    """

    has_room: Callable[[int], bool]
    load: Load


@dataclass(frozen=True)
class ReceiverSettings:
    """What a receiver knows about the worker that it is made in.

    `layout` has the shape of every tensor that the model is made of, by its name; `optional` names may be
    left out of a transfer. `device` is where the worker's model is. `worker` is its index among the workers
    of its engine: each takes every tensor whole, and vLLM cuts its part from it, or leaves out a layer that
    another has. Without a `direct_load` weights are always staged. `vllm_engine` makes vLLM's own engine of
    a name for the worker's model, where there is vLLM.
    """

    layout: Mapping[str, tuple[int, ...]]
    optional: frozenset[str] = frozenset()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    worker: int = 0
    direct_load: DirectLoad | None = None
    vllm_engine: Callable[[str], VllmTransferEngine] | None = None

    def layout_problems(self, sent: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Sentences about how the tensors `sent` (shapes by name) differ from those of the engine's model."""
        found = []
        for name, shape in self.layout.items():
            if name not in sent and name not in self.optional:
                found.append(f"{name} is missing")
            elif name in sent and sent[name] != shape:
                found.append(f"{name} has shape {list(sent[name])} but the engine's has {list(shape)}")
        return found + [f"the engine's model has no {name}" for name in sent if name not in self.layout]


class PreparedWeights(Protocol):
    """What a backend makes of a WeightSource before it sends: a copy, or something that is read later."""

    @property
    def num_bytes(self) -> int:
        """Bytes that travel to each engine."""
        ...

    @property
    def num_bytes_sent(self) -> int:
        """What has left the trainer so far, with the tag of the stream: once for each group of engines,
        however many are in it, once for each engine with a connection of its own, and once in all where
        engines read what was written for them. A transfer that broke
        counts as far as it came, and what engines read from memory that they share with the trainer counts
        too. What the trainer shares within its own process has not left it and counts as nothing."""
        ...

    def wait_until_read(self) -> float:
        """Wait until the source need not stay as it is for a copy of it; returns the seconds that the copy
        took. Raises what reading it raised."""
        ...


W = TypeVar("W", bound=PreparedWeights)
W_contra = TypeVar("W_contra", bound=PreparedWeights, contravariant=True)


class WeightSender(Protocol[W_contra]):
    """The trainer's side, for the engines that it was made for.

    A verb goes to the `engines` named, all at once, and returns which of them failed: the failure of one is
    not that of the others, which may have to wait for it. It is over within the deadline of the
    SenderSettings. After a failure the connection may be unusable: `shutdown`, and make a new sender.
    """

    async def init(self, engines: Collection[str]) -> Failures:
        """Connect to the receivers."""
        ...

    async def start(self, engines: Collection[str]) -> Failures:
        """Open an update, ending one that an earlier trainer left open. The engines must be paused, unless
        the backend `receives_while_serving`."""
        ...

    async def update(
        self, weights: W_contra, *, engines: Collection[str], ends_at: float | None = None
    ) -> Failures:
        """Deliver all weights and wait until the receivers have checked them. Nothing is applied yet.

        It is over by `ends_at` (of `time.monotonic`), where some of the deadline is used up already."""
        ...

    async def finish(self, version: str, *, engines: Collection[str]) -> Failures:
        """Apply what was delivered, under this version."""
        ...

    async def abort(self, engines: Collection[str]) -> Failures:
        """End an update instead of finishing it; the old weights stay. Harmless when none is open."""
        ...

    async def shutdown(self) -> None:
        """Let go of every connection and thread; the engines are not called."""
        ...


class Receiver(Protocol):
    """The end in one worker of an engine. Weights leave it only through `take`, whole and checked."""

    def init(self, info: Info) -> None:
        """Connect to a new sender; what an earlier one had delivered is dropped."""
        ...

    def start(self) -> None:
        """Open an update."""
        ...

    def update(self, info: Info) -> None:
        """Receive and check a whole update, or give it up.

        Raises WeightSyncError when anything is wrong with it, and always for an abort: an update that was
        given up must not be finished. Raises ModelBrokenError when the model had some of it by then; every
        verb may, when the model has all of it.
        """
        ...

    def take(self) -> Iterator[tuple[str, torch.Tensor]] | None:
        """The weights of a complete, checked update; they can be taken once. None when they went into the
        model while they arrived.

        Raises WeightSyncError when there is none, and ModelBrokenError as `update` does.
        """
        ...

    def shutdown(self) -> None:
        """Let go of the connection and of what was delivered."""
        ...


ModelFiles = Callable[[], Mapping[str, bytes]]
"""Gives the files that make a folder of weights a model of Hugging Face, by name."""


class Reach(StrEnum):
    """How far apart the two ends may be."""

    NETWORK = "network"
    MACHINE = "machine"
    PROCESS = "process"


@dataclass(frozen=True)
class Backend(Generic[W]):
    """One way for weights to travel. In vLLM's weight transfer config it is called `name_in_vllm(name)`.

    `prepare` makes of the weights what its senders take, once for all of them. `make_sender` is given the
    engines by name, `make_receiver` what a worker of an engine knows about itself.

    `is_collective` says that one transfer reaches several engines: those that are due at the same time then
    share a sender and go through a sync together. Otherwise every engine has a sender of its own and waits
    for no other. `needs_gpu` says that both ends are on one, and `needs_gpu_in` whether they are in a run,
    where that depends on it.

    `for_run` makes the backend of one run, where it has to know it. `name_version` is called with the version
    the prepared weights are. `wait_until_ready` waits, before engines are paused, until they can be sent, for
    as long as something of it is done every so many seconds; it raises WeightSyncError, and SupersededError
    once a later attempt has begun. `update_bytes` says how many bytes an engine is sent that can use what
    changed, None until that is known. `receives_while_serving` says that an engine may receive before it is
    paused: nothing touches its model until `finish`.
    """

    name: str
    reach: Reach
    prepare: Callable[[WeightSource], W]
    make_sender: Callable[[Mapping[str, Peer], SenderSettings], WeightSender[W]]
    make_receiver: Callable[[ReceiverSettings], Receiver]
    is_collective: bool = False
    needs_gpu: bool = False
    needs_gpu_in: Callable[[RunConfig], bool] | None = None
    for_run: "Callable[[TrainerSettings, ModelFiles], Backend[W]] | None" = None
    name_version: Callable[[W, PolicyVersion], None] | None = None
    wait_until_ready: Callable[[W, float], Awaitable[None]] | None = None
    update_bytes: Callable[[W], int | None] | None = None
    receives_while_serving: bool = False
