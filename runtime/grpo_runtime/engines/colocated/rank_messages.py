"""Rank 0's commands to the ranks that hold engines, and their answers: frames, as one tensor of bytes.
Nothing is pickled."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.colocated.rank_engine import RankSync
from grpo_runtime.rollouts.frames import Frame, encode_frames, read_frames
from grpo_runtime.rollouts.interface import GenerateRequest, Probe, Rollout
from grpo_runtime.rollouts.wire import completion_frame, read_request, request_frame

Frames = Sequence[Frame]


class Channel(Protocol):
    """How ranks exchange tensors beside the meetings of training. Blocks; raises when a rank is gone."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's tensor on every rank, in place."""
        ...

    def send(self, tensor: torch.Tensor) -> None:
        """Give a tensor to rank 0."""
        ...

    def receive(self, tensor: torch.Tensor, *, rank: int) -> torch.Tensor:
        """Rank 0: what `rank` sends, in place."""
        ...


@dataclass(frozen=True)
class SyncCommand:
    """Load the policy of your own process as `version`, and compute the probe."""

    version: PolicyVersion
    probe: Probe | None


@dataclass(frozen=True)
class GenerateCommand:
    """Sample your engine's part of `requests`: `parts` has the indices of those of each engine. `is_streamed`
    asks for each completion as it finishes, too. With `stays_awake` another command to generate, or one to
    rest, follows."""

    requests: Sequence[GenerateRequest]
    parts: Sequence[Sequence[int]]
    is_streamed: bool = False
    stays_awake: bool = False


@dataclass(frozen=True)
class RestCommand:
    """Let your engine sleep: training follows."""


Command = SyncCommand | GenerateCommand | RestCommand

_SYNC, _GENERATE, _REST = "sync", "generate", "rest"
DONE: Frames = ()
"""The answer of a rank that is done and has nothing to give."""


def encode_command(command: Command) -> Frames:
    """A command as rank 0 broadcasts it."""
    if isinstance(command, RestCommand):
        return [Frame({"command": _REST}, {})]
    if isinstance(command, GenerateCommand):
        header = {
            "command": _GENERATE,
            "parts": command.parts,
            "is_streamed": command.is_streamed,
            "stays_awake": command.stays_awake,
        }
        return [Frame(header, {}), *map(request_frame, command.requests)]
    probe = [] if command.probe is None else [_probe_frame(command.probe)]
    return [Frame({"command": _SYNC, "version": str(command.version)}, {}), *probe]


def decode_command(message: Frames) -> Command:
    """The command that rank 0 has broadcast."""
    first, *rest = message
    if first.header["command"] == _REST:
        return RestCommand()
    if first.header["command"] == _GENERATE:
        return GenerateCommand(
            [read_request(frame) for frame in rest],
            parts=first.header["parts"],
            is_streamed=first.header["is_streamed"],
            stays_awake=first.header["stays_awake"],
        )
    return SyncCommand(
        PolicyVersion.parse(first.header["version"]), probe=_read_probe(rest[0]) if rest else None
    )


def _probe_frame(probe: Probe) -> Frame:
    return Frame(
        {"tolerance": probe.tolerance, "vocab_size": probe.vocab_size},
        {"token_ids": array("i", probe.token_ids), "logprobs": array("d", probe.logprobs)},
    )


def _read_probe(frame: Frame) -> Probe:
    return Probe(
        token_ids=tuple(frame.arrays["token_ids"]), logprobs=tuple(frame.arrays["logprobs"]), **frame.header
    )


def encode_sync(sync: RankSync) -> Frames:
    """A rank's answer to a SyncCommand."""
    # the error of a probe need not be finite, which JSON does not know
    header = {"num_bytes": sync.num_bytes, "num_bytes_sent": sync.num_bytes_sent}
    arrays = {"seconds": array("d", sync.phase_seconds), "probe_error": array("d", [sync.probe_error])}
    return [Frame(header, arrays)]


def decode_sync(message: Frames) -> RankSync:
    """What a rank did, from its answer."""
    [frame] = message
    [error] = frame.arrays["probe_error"]
    return RankSync(phase_seconds=tuple(frame.arrays["seconds"]), probe_error=error, **frame.header)


def encode_sampled(rollouts: Iterable[Rollout]) -> Frames:
    """An engine's answer to a GenerateCommand: see `wire.read_completions`."""
    return [completion_frame(rollout) for rollout in rollouts]


def encode_finished(index: int, rollout: Rollout) -> Frames:
    """One completion of an answer that is streamed, and which of the engine's requests it is of."""
    return [Frame({"finished": index}, {}), completion_frame(rollout)]


def encode_last(message: Frames) -> Frames:
    """The end of an answer that is streamed: the whole of it."""
    return [Frame({"finished": None}, {}), *message]


def receive_streamed(on_finished: Callable[[int, Frame], None], *, channel: Channel, rank: int) -> Frames:
    """Rank 0: the whole answer of `rank`, after passing on what came of it before."""
    while True:
        first, *frames = receive_message(channel=channel, rank=rank)
        if first.header["finished"] is None:
            return frames
        on_finished(first.header["finished"], *frames)


def broadcast_message(message: Frames | None, *, channel: Channel) -> Frames:
    """Rank 0's message on every rank; the others give None."""
    own = _tensor(message or ())
    [size] = channel.broadcast(torch.tensor([len(own)])).tolist()
    return _read(channel.broadcast(own if message is not None else torch.zeros(size, dtype=torch.uint8)))


def send_message(message: Frames, *, channel: Channel) -> None:
    """Answer rank 0, which waits in `receive_message`."""
    tensor = _tensor(message)
    channel.send(torch.tensor([len(tensor)]))
    if len(tensor):
        channel.send(tensor)


def receive_message(*, channel: Channel, rank: int) -> Frames:
    """Rank 0: the answer of `rank`."""
    [size] = channel.receive(torch.zeros(1, dtype=torch.int64), rank=rank).tolist()
    if size == 0:
        return DONE
    return _read(channel.receive(torch.zeros(size, dtype=torch.uint8), rank=rank))


def _tensor(message: Frames) -> torch.Tensor:
    data = bytearray(encode_frames(message))
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


def _read(tensor: torch.Tensor) -> Frames:
    return read_frames(tensor.numpy().tobytes())
