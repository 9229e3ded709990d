"""Rank 0's commands to the ranks that hold engines, and their answers: two tensors each, nothing is
pickled."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeVar

import torch

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.colocated.rank_engine import Completion, RankSync
from grpo_runtime.rollout.interface import GenerateRequest, Probe

T = TypeVar("T")


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
class Message:
    """`integers` int64 and `floats` float64, both one-dimensional."""

    integers: torch.Tensor
    floats: torch.Tensor

    @classmethod
    def of(cls, integers: Sequence[int], floats: Sequence[float] = ()) -> "Message":
        """A message of plain numbers."""
        return cls(torch.tensor(integers, dtype=torch.int64), torch.tensor(floats, dtype=torch.float64))


_LAST = -1
"""In place of an index, at the end of an answer that is streamed."""
DONE = Message.of([])
"""The answer of a rank that is done and has nothing to give."""


@dataclass(frozen=True)
class SyncCommand:
    """Load the policy of your own process as `version`, and compute the probe."""

    version: PolicyVersion
    probe: Probe | None


@dataclass(frozen=True)
class GenerateCommand:
    """Sample your engine's part of `requests`. `is_streamed` asks for each completion as it finishes, too.
    With `stays_awake` another command to generate, or one to rest, follows."""

    requests: Sequence[GenerateRequest]
    is_streamed: bool = False
    stays_awake: bool = False


@dataclass(frozen=True)
class RestCommand:
    """Let your engine sleep: training follows."""


@dataclass(frozen=True)
class Sampled:
    """One engine's completions, and the version of the weights that sampled them."""

    version: PolicyVersion
    completions: Sequence[Completion]


Command = SyncCommand | GenerateCommand | RestCommand


class _Kind(IntEnum):
    SYNC = 1
    GENERATE = 2
    REST = 3


def encode_command(command: Command) -> Message:
    """A command as rank 0 broadcasts it."""
    if isinstance(command, RestCommand):
        return Message.of([_Kind.REST])
    if isinstance(command, SyncCommand):
        header = [_Kind.SYNC, command.version.attempt, command.version.step]
        if command.probe is None:
            return Message.of(header)
        probe = command.probe
        return Message.of([*header, *probe.token_ids], [probe.tolerance, *probe.logprobs])
    requests = command.requests
    return Message.of(
        [
            _Kind.GENERATE,
            command.is_streamed,
            command.stays_awake,
            any(request.is_evaluation for request in requests),
            len(requests),
            *(request.seed for request in requests),
            *(request.max_tokens or 0 for request in requests),
            *(len(request.prompt_ids) for request in requests),
            *(token for request in requests for token in request.prompt_ids),
        ]
    )


def decode_command(message: Message) -> Command:
    """The command in a message."""
    numbers = iter(message.integers.tolist())
    kind = next(numbers)
    if kind == _Kind.REST:
        return RestCommand()
    if kind == _Kind.SYNC:
        version = PolicyVersion(attempt=next(numbers), step=next(numbers))
        tolerance, *logprobs = message.floats.tolist() or [0.0]
        probe = Probe(token_ids=tuple(numbers), logprobs=tuple(logprobs), tolerance=tolerance)
        return SyncCommand(version, probe if probe.token_ids else None)
    is_streamed, stays_awake, is_evaluation = (bool(number) for number in _take(numbers, 3))
    count = next(numbers)
    seeds, limits, lengths = (_take(numbers, count) for _ in range(3))
    return GenerateCommand(
        [
            GenerateRequest(tuple(_take(numbers, length)), seed, is_evaluation, max_tokens=limit or None)
            for seed, limit, length in zip(seeds, limits, lengths, strict=True)
        ],
        is_streamed=is_streamed,
        stays_awake=stays_awake,
    )


def encode_sync(sync: RankSync) -> Message:
    """A rank's answer to a SyncCommand."""
    return Message.of([sync.num_bytes, sync.num_bytes_sent], [sync.probe_error, *sync.phase_seconds])


def decode_sync(message: Message) -> RankSync:
    """See `encode_sync`."""
    error, *seconds = message.floats.tolist()
    num_bytes, num_bytes_sent = message.integers.tolist()
    return RankSync(
        phase_seconds=tuple(seconds),
        num_bytes=num_bytes,
        num_bytes_sent=num_bytes_sent,
        probe_error=float(error),
    )


def encode_sampled(sampled: Sampled) -> Message:
    """An engine's answer to a GenerateCommand."""
    completions = sampled.completions
    return Message.of(
        [
            sampled.version.attempt,
            sampled.version.step,
            len(completions),
            *(completion.is_terminated for completion in completions),
            *(len(completion.token_ids) for completion in completions),
            *(token for completion in completions for token in completion.token_ids),
        ],
        [logprob for completion in completions for logprob in completion.logprobs],
    )


def decode_sampled(message: Message) -> Sampled:
    """See `encode_sampled`."""
    numbers, logprobs = iter(message.integers.tolist()), iter(message.floats.tolist())
    version = PolicyVersion(attempt=next(numbers), step=next(numbers))
    count = next(numbers)
    ends, lengths = _take(numbers, count), _take(numbers, count)
    completions = [
        Completion(
            token_ids=tuple(_take(numbers, length)),
            logprobs=tuple(_take(logprobs, length)),
            is_terminated=bool(end),
        )
        for end, length in zip(ends, lengths, strict=True)
    ]
    return Sampled(version, completions)


def encode_completed(index: int, sampled: Sampled) -> Message:
    """One completion of an answer that is streamed, and which of the engine's requests it is of."""
    message = encode_sampled(sampled)
    return Message(torch.cat([torch.tensor([index]), message.integers]), message.floats)


def encode_last(message: Message) -> Message:
    """The end of an answer that is streamed: the whole of it."""
    return Message(torch.cat([torch.tensor([_LAST]), message.integers]), message.floats)


def receive_streamed(on_completed: Callable[[int, Sampled], None], *, channel: Channel, rank: int) -> Message:
    """Rank 0: the whole answer of `rank`, after passing on what came of it before."""
    while True:
        message = receive_message(channel=channel, rank=rank)
        index, rest = int(message.integers[0]), Message(message.integers[1:], message.floats)
        if index == _LAST:
            return rest
        on_completed(index, decode_sampled(rest))


def broadcast_message(message: Message | None, *, channel: Channel) -> Message:
    """Rank 0's message on every rank; the others give None."""
    sizes = [0, 0] if message is None else [len(message.integers), len(message.floats)]
    sizes = channel.broadcast(torch.tensor(sizes)).tolist()
    message = message or _empty(sizes)
    for tensor in (message.integers, message.floats):
        if len(tensor):
            channel.broadcast(tensor)
    return message


def send_message(message: Message, *, channel: Channel) -> None:
    """Answer rank 0, which waits in `receive_message`."""
    channel.send(torch.tensor([len(message.integers), len(message.floats)]))
    for tensor in (message.integers, message.floats):
        if len(tensor):
            channel.send(tensor)


def receive_message(*, channel: Channel, rank: int) -> Message:
    """Rank 0: the answer of `rank`."""
    message = _empty(channel.receive(torch.zeros(2, dtype=torch.int64), rank=rank).tolist())
    for tensor in (message.integers, message.floats):
        if len(tensor):
            channel.receive(tensor, rank=rank)
    return message


def _empty(sizes: Sequence[int]) -> Message:
    num_integers, num_floats = sizes
    return Message(torch.zeros(num_integers, dtype=torch.int64), torch.zeros(num_floats, dtype=torch.float64))


def _take(numbers: Iterator[T], count: int) -> list[T]:
    return [next(numbers) for _ in range(count)]
