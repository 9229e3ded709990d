"""An engine in this process that computes nothing and remembers what it was asked, and ranks as threads."""

import queue
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from weight_sources import FixedWeights

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollouts.interface import GenerateRequest, OnFinished, Rollout, VersionSpan
from grpo_runtime.weight_sync.in_process import InProcessReceiver
from grpo_runtime.weight_sync.interface import Info, Receiver, ReceiverSettings

SHAPES: Mapping[str, tuple[int, ...]] = {"weight": (2, 2)}


def some_weights() -> FixedWeights:
    """A model of one tensor."""
    return FixedWeights([("weight", torch.ones(2, 2))])


class FakeLocalEngine:
    """A `LocalEngine`. It answers a request by the token of its seed, and every probe by `logprobs`.

    What is asleep cannot be used: vLLM would read memory that it has given back. After a sleep at level 2 it
    has no weights until the next update is finished.
    """

    def __init__(
        self,
        *,
        logprobs: Sequence[float] = (),
        error: Exception | None = None,
        is_stepped: bool = False,
        receiver: Receiver | None = None,
        name: str = "engine-0",
    ) -> None:
        self.name = name
        self.calls: list[str] = []
        self.sampled: list[GenerateRequest] = []
        self.channel = FakeControlChannel(
            self, receiver or InProcessReceiver(ReceiverSettings(layout=SHAPES))
        )
        self.version = "initial"
        self.asleep: set[str] = set()
        self.has_weights = True
        self._logprobs = list(logprobs)
        self._error = error
        self._steps: queue.Queue[int] | None = queue.Queue() if is_stepped else None
        self._num_unfinished = 0

    def finish(self, number: int) -> None:
        """Let an engine that is stepped finish so many samples more."""
        assert self._steps is not None
        self._steps.put(number)

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")
        self.asleep = {"weights", "kv_cache"}
        self.has_weights = level < 2

    def wake_up(self, tag: str) -> None:
        self.calls.append(f"wake {tag}")
        self.asleep.discard(tag)

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset prefix cache")

    def sample(
        self, requests: Sequence[GenerateRequest], *, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        self.calls.append("sample")
        self.require_weights()
        if self._error is not None:
            raise self._error
        rollouts = [self.rollout(request) for request in requests]
        self._num_unfinished = len(requests)
        while self._num_unfinished:
            number = self._num_unfinished if self._steps is None else self._steps.get(timeout=10)
            first = len(requests) - self._num_unfinished
            self._num_unfinished -= number
            for index in range(first, first + number):
                if on_finished is not None:
                    on_finished(index, rollouts[index])
        self.sampled += requests
        return rollouts

    def rollout(self, request: GenerateRequest) -> Rollout:
        """What it answers to a request."""
        length = request.seed % 3 + 1
        return Rollout(
            prompt_ids=request.prompt_ids,
            completion_ids=(token_of(request.seed),) * length,
            rollout_logprobs=(-0.5,) * length,
            versions=(VersionSpan(PolicyVersion.parse(self.version), 0, length),),
            is_terminated=request.seed % 2 == 0,
            engine=self.name,
        )

    def num_unfinished(self) -> int:
        return self._num_unfinished

    def probe_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        self.calls.append("probe")
        self.require_weights()
        return self._logprobs

    def require_awake(self, *tags: str) -> None:
        """Raise where vLLM would crash."""
        if asleep := self.asleep.intersection(tags):
            raise RuntimeError(f"{', '.join(sorted(asleep))} asleep")

    def require_weights(self) -> None:
        """Raise where vLLM would compute with whatever is in its memory."""
        self.require_awake("weights", "kv_cache")
        if not self.has_weights:
            raise RuntimeError("the weights were thrown away, and no update has brought others")


def token_of(seed: int) -> int:
    """The token that stands for a seed."""
    return seed % 2**20


class FakeControlChannel:
    """The verbs, with the receiver that an engine has."""

    def __init__(self, engine: FakeLocalEngine, receiver: Receiver) -> None:
        self._engine = engine
        self._receiver = receiver

    async def init(self, info: Info) -> None:
        self._receiver.init(info)

    async def start(self) -> None:
        self._engine.calls.append("start")
        self._receiver.start()

    async def update(self, info: Info) -> None:
        self._engine.calls.append("update")
        self._receiver.update(info)

    async def finish(self, version: str) -> None:
        self._engine.calls.append("finish")
        self._engine.require_awake("weights")
        assert [name for name, _ in self._receiver.take()] == list(SHAPES)
        self._engine.version = version
        self._engine.has_weights = True

    async def shutdown(self) -> None:
        self._receiver.shutdown()


class FakeChannel:
    """One rank's end of a channel among threads; `of(n)` makes the ends of `n` ranks."""

    def __init__(self, rank: int, downs: list["queue.Queue[Any]"], ups: list["queue.Queue[Any]"]) -> None:
        self.rank = rank
        self.world_size = len(downs)
        self._downs = downs
        self._ups = ups

    @classmethod
    def of(cls, world_size: int) -> list["FakeChannel"]:
        downs: list[queue.Queue[Any]] = [queue.Queue() for _ in range(world_size)]
        ups: list[queue.Queue[Any]] = [queue.Queue() for _ in range(world_size)]
        return [cls(rank, downs, ups) for rank in range(world_size)]

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.rank == 0:
            for down in self._downs[1:]:
                down.put(tensor.clone())
            return tensor
        return tensor.copy_(self._downs[self.rank].get())

    def send(self, tensor: torch.Tensor) -> None:
        self._ups[self.rank].put(tensor.clone())

    def receive(self, tensor: torch.Tensor, *, rank: int) -> torch.Tensor:
        return tensor.copy_(self._ups[rank].get(timeout=10))
