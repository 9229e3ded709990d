"""Engines within the training processes: rank 0 commands, every rank that holds an engine obeys.

Rank 0's commands travel on a channel of their own and are obeyed in a thread of their own, because the main
threads go on meeting in roll calls meanwhile: so a rank that is asked to stop is heard, and rank 0 reports
that it lives. Training and engines never compute at the same time: rank 0 waits for its engines first.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollout.errors import EngineError, EngineTimeoutError
from grpo_runtime.rollout.in_process import PHASES, InProcessEngine
from grpo_runtime.rollout.interface import (
    GenerateRequest,
    NamedWeights,
    Probe,
    Rollout,
    SyncReport,
    VersionSpan,
)
from grpo_runtime.rollout.rank_messages import (
    Channel,
    GenerateCommand,
    Message,
    Sampled,
    SyncCommand,
    broadcast_message,
    decode_command,
    decode_sampled,
    decode_sync,
    encode_command,
    encode_sampled,
    encode_sync,
    receive_message,
    send_message,
)

DONE = Message.of([])
"""The answer of a rank that has nothing to tell."""

Weights = Callable[[], NamedWeights]


class EngineShare:
    """What one rank holds: an engine, or with tensor parallelism a part of one.

    Ranks [k * ranks_per_engine, (k + 1) * ranks_per_engine) hold engine k, as vLLM itself groups them.
    """

    def __init__(self, engine: InProcessEngine, channel: Channel, *, ranks_per_engine: int) -> None:
        self.channel = channel
        self.ranks_per_engine = ranks_per_engine
        self.num_engines = channel.world_size // ranks_per_engine
        self._engine = engine

    def obey(self, command: SyncCommand | GenerateCommand, *, weights: Weights) -> Message:
        """Do what rank 0 asked for. All ranks of an engine answer the same to a GenerateCommand."""
        if isinstance(command, SyncCommand):
            return encode_sync(self._engine.sync(weights, version=command.version, probe=command.probe))
        index = self.channel.rank // self.ranks_per_engine
        mine = command.requests[part(len(command.requests), index=index, num_parts=self.num_engines)]
        completions = self._engine.generate(mine)
        return encode_sampled(Sampled(self._engine.weight_version(), completions))


class Follower:
    """A rank other than 0: obeys until the process ends."""

    def __init__(self, share: EngineShare, *, weights: Weights) -> None:
        """`weights` gives this rank's copy of the policy, which is the same on every rank."""
        self._share = share
        self._weights = weights
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._obey, name="engine", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what ended the engine of this rank."""
        if self._failure is not None:
            raise self._failure

    def _obey(self) -> None:
        channel = self._share.channel
        is_first = channel.rank % self._share.ranks_per_engine == 0
        try:
            while True:
                command = decode_command(broadcast_message(None, channel=channel))
                answer = self._share.obey(command, weights=self._weights)
                # the completions of an engine are taken once, but every rank says when it is done: training
                # must not begin while an engine still gives its memory back
                is_taken = is_first or isinstance(command, SyncCommand)
                send_message(answer if is_taken else DONE, channel=channel)
        except BaseException as error:
            # for the main thread, which asks after its next roll call
            self._failure = error


class Colocated:
    """`Engines` in the training processes, as rank 0 uses them."""

    def __init__(self, share: EngineShare, *, sync_timeout_seconds: float) -> None:
        self._share = share
        self._sync_timeout_seconds = sync_timeout_seconds
        self._version: PolicyVersion | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    def counts(self) -> EngineCounts:
        """All engines are there from the start; they are current once they were verified."""
        count = self._share.num_engines
        return EngineCounts(desired=count, known=count, current=count if self._version else 0)

    async def sync(self, weights: Weights, *, version: PolicyVersion, probe: Probe | None) -> SyncReport:
        """See `Engines.sync`. `weights` is read in another thread until this returns.

        Raises EngineError when an engine's logprobs of the probe are not the trainer's: it computes something
        else than what is trained.
        """
        limit = self._sync_timeout_seconds * len(PHASES)
        try:
            async with asyncio.timeout(limit):
                answers = await self._command(SyncCommand(version, probe), weights=weights)
        except TimeoutError as error:
            raise EngineTimeoutError(f"the engines did not load the weights within {limit:g} s") from error
        syncs = [decode_sync(answer) for answer in answers]
        for rank, sync in enumerate(syncs):
            if probe is not None and not sync.probe_error <= probe.tolerance:
                raise EngineError(
                    f"the engine of rank {rank} does not compute what is trained: after weight sync "
                    f"{version} its logprobs differ from the trainer's by {sync.probe_error:.3g} nats, "
                    f"more than {probe.tolerance:g}"
                )
        self._version = version
        slowest = map(max, zip(*(sync.phase_seconds for sync in syncs), strict=True))
        return SyncReport(
            version=version,
            synced=tuple(self._name(index) for index in range(self._share.num_engines)),
            failed={},
            num_bytes=syncs[0].num_bytes,
            phase_seconds=dict(zip(PHASES, slowest, strict=True)),
            max_probe_error=max(sync.probe_error for sync in syncs),
        )

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Rollout]:
        """See `Engines.generate`. The engines sleep when it returns."""
        if self._version is None:
            raise RuntimeError("the engines have no weights yet: call sync before generate")
        answers = await self._command(GenerateCommand(requests), weights=lambda: ())
        rollouts: list[Rollout] = []
        for index, answer in enumerate(answers):
            mine = requests[part(len(requests), index=index, num_parts=self._share.num_engines)]
            rollouts += self._rollouts(mine, decode_sampled(answer), engine=self._name(index))
        return rollouts

    async def close(self) -> None:
        """Let go of the thread; engines end with their processes."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _command(
        self, command: SyncCommand | GenerateCommand, *, weights: Weights
    ) -> Sequence[Message]:
        """The answers, once every rank has obeyed: of every rank to a SyncCommand, of every engine's first
        rank to a GenerateCommand."""
        work = self._thread.submit(self._lead, command, weights)
        return await asyncio.wrap_future(work)

    def _lead(self, command: SyncCommand | GenerateCommand, weights: Weights) -> Sequence[Message]:
        channel = self._share.channel
        broadcast_message(encode_command(command), channel=channel)
        own = self._share.obey(command, weights=weights)
        others = (receive_message(channel=channel, rank=rank) for rank in range(1, channel.world_size))
        answers = [own, *others]
        every = 1 if isinstance(command, SyncCommand) else self._share.ranks_per_engine
        return answers[::every]

    def _rollouts(
        self, requests: Sequence[GenerateRequest], sampled: Sampled, *, engine: str
    ) -> list[Rollout]:
        if sampled.version != self._version:
            raise EngineError(f"{engine} sampled with weights {sampled.version}, not {self._version}")
        return [
            Rollout(
                prompt_ids=request.prompt_ids,
                completion_ids=completion.token_ids,
                rollout_logprobs=completion.logprobs,
                versions=(VersionSpan(sampled.version, start=0, end=len(completion.token_ids)),),
                is_terminated=completion.is_terminated,
                engine=engine,
            )
            for request, completion in zip(requests, sampled.completions, strict=True)
        ]

    def _name(self, index: int) -> str:
        return f"engine-{index}"


def num_colocated_engines(run: RunConfig) -> int:
    """How many engines the training processes hold together."""
    return run.topology.world_size // run.engine.tensor_parallel_size


def part(count: int, *, index: int, num_parts: int) -> slice:
    """Which of `count` things go to part `index`: parts are contiguous and differ by at most one."""
    return slice(count * index // num_parts, count * (index + 1) // num_parts)
