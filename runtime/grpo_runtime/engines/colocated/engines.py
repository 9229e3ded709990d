"""Engines in the training processes, or in a process beside each: rank 0 sends commands, and every rank
executes them on its engine.

Commands travel on a channel of their own and are executed in a thread of their own, because the main threads
continue meeting meanwhile: so a stop request of any rank is noticed, and rank 0 reports that it is alive.
Training and engines never compute at the same time: rank 0 waits for its engines first.
"""

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.colocated.engine_slice import EngineSlice, engine_name, parts_of
from grpo_runtime.engines.colocated.rank_engine import PHASES, RankSync
from grpo_runtime.engines.colocated.rank_messages import (
    DONE,
    Frames,
    GenerateCommand,
    RestCommand,
    SyncCommand,
    broadcast_message,
    decode_command,
    decode_sync,
    encode_command,
    encode_finished,
    encode_last,
    encode_sampled,
    encode_sync,
    receive_message,
    receive_streamed,
    send_message,
)
from grpo_runtime.rollouts.frames import Frame
from grpo_runtime.rollouts.interface import (
    EngineError,
    EngineTimeoutError,
    FailedSyncs,
    GenerateRequest,
    Generation,
    OnFinished,
    OnRead,
    Probe,
    Rollout,
    SyncReport,
)
from grpo_runtime.rollouts.wire import read_completion, read_completions
from grpo_runtime.weight_sync.source import WeightSource


@dataclass
class _Call:
    """A running call of `generate`. Only `generation` changes it."""

    num_given: Sequence[int]
    """The requests of each engine."""
    finished_at: float
    """When a sample was last seen to be finished, or else when the call began."""
    num_done: int = 0


class ColocatedEngines:
    """`Engines` as rank 0 uses them: it sends commands to the other ranks and executes them itself."""

    is_concurrent = False

    def __init__(
        self,
        engine_slice: EngineSlice,
        *,
        sync_timeout_seconds: float,
        num_finished: Callable[[], Sequence[int]],
        is_starting_again: Callable[[], Sequence[bool]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`num_finished` gives by rank how many samples of the running step its engine has finished, as the
        ranks reported at their last meeting, and `is_starting_again` whether its engine was lost and does not
        serve yet."""
        self._slice = engine_slice
        self._num_finished = num_finished
        self._is_starting_again = is_starting_again
        self._clock = clock
        self._running: _Call | None = None
        self._sync_timeout_seconds = sync_timeout_seconds
        self._version: PolicyVersion | None = None
        self._engine_of: dict[int, int] = {}
        """Session -> the engine that has had a turn of it since the last sync."""
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="engine", initializer=engine_slice.enter_thread
        )
        self._readers = ThreadPoolExecutor(
            max_workers=max(1, engine_slice.channel.world_size - 1), thread_name_prefix="read-engine"
        )

    def counts(self) -> EngineCounts:
        """All engines are there from the start; they are current once they were verified."""
        count = self._slice.num_engines
        return EngineCounts(desired=count, known=count, current=count if self._version else 0)

    async def sync(
        self,
        weights: WeightSource,
        *,
        version: PolicyVersion,
        probe: Probe | None,
        on_read: OnRead | None = None,
    ) -> SyncReport:
        """Let every rank load its copy of the policy into its engine, and verify it. `weights` is rank 0's,
        and is read in another thread until this returns.

        Raises EngineTimeoutError after the deadlines of all phases together, and EngineError when an engine's
        logprobs of the probe are not the trainer's: it computes something else than what is trained.
        """
        limit = self._sync_timeout_seconds * len(PHASES)
        try:
            async with asyncio.timeout(limit):
                command = SyncCommand(version, probe)
                syncs = await asyncio.wrap_future(self._thread.submit(self._lead_sync, command, weights))
        except TimeoutError as error:
            raise EngineTimeoutError(f"the engines did not load the weights within {limit:g} s") from error
        for rank, sync in enumerate(syncs):
            if probe is not None and not sync.probe_error <= probe.tolerance:
                raise EngineError(
                    f"the engine of rank {rank} does not compute what is trained: after weight sync "
                    f"{version} its logprobs differ from the trainer's by {sync.probe_error:.3g} nats, "
                    f"more than {probe.tolerance:g}"
                )
        self._version = version
        self._engine_of.clear()
        if on_read is not None:
            on_read()
        slowest = map(max, zip(*(sync.phase_seconds for sync in syncs), strict=True))
        return SyncReport(
            version=version,
            synced=tuple(engine_name(index) for index in range(self._slice.num_engines)),
            failed={},
            num_bytes=syncs[0].num_bytes,
            phase_seconds=dict(zip(PHASES, slowest, strict=True)),
            num_bytes_sent=sum(sync.num_bytes_sent for sync in syncs),
            max_probe_error=max(sync.probe_error for sync in syncs),
        )

    async def rest(self) -> None:
        """Let all engines sleep: training follows. They serve again after the next `sync`."""
        await asyncio.wrap_future(self._thread.submit(self._lead_rest))

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        """Sample all requests, in the order given. The engines sleep when it returns, unless they are to stay
        awake."""
        if self._version is None:
            raise RuntimeError("the engines have no weights yet: call sync before generate")
        parts = self._parts(requests)
        command = GenerateCommand(
            requests, parts=parts, is_streamed=on_finished is not None, stays_awake=stays_awake
        )
        # now, because a stop may end this call before the thread begins with it
        self._running = _Call([*map(len, parts)], finished_at=self._clock())
        try:
            return await asyncio.wrap_future(self._thread.submit(self._lead_generate, command, on_finished))
        finally:
            self._running = None

    def generation(self) -> Generation | None:
        """How far the running call of `generate` has come; None when none runs."""
        call = self._running
        if call is None:
            return None
        finished = self._num_finished()[:: self._slice.ranks_per_engine]
        left = [max(0, given - done) for given, done in zip(call.num_given, finished, strict=True)]
        num_samples = sum(call.num_given)
        num_done = num_samples - sum(left)
        if num_done != call.num_done:
            call.num_done, call.finished_at = num_done, self._clock()
        return Generation(
            num_samples=num_samples,
            num_done=num_done,
            quiet_seconds=self._clock() - call.finished_at,
            given={engine_name(index): number for index, number in enumerate(left) if number},
            starting_again=tuple(
                engine_name(index) for index, is_so in enumerate(self._is_starting_again()) if is_so
            ),
        )

    def failed_syncs(self) -> Mapping[str, FailedSyncs]:
        """None: a failed sync ends the attempt or the engine."""
        return {}

    def take_idle_seconds(self) -> Mapping[str, float]:
        """None: they take turns with the trainer."""
        return {}

    def take_recomputed(self) -> None:
        """Not counted: their vLLM keeps no statistics."""

    async def close(self) -> None:
        """Let go of the threads; engines end with their processes."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _lead_sync(self, command: SyncCommand, weights: WeightSource) -> list[RankSync]:
        """What every rank says of its sync, once all of them are done."""
        broadcast_message(encode_command(command), channel=self._slice.channel)
        own = self._slice.sync(command, weights=weights)
        return [own, *(decode_sync(answer) for answer in self._answers())]

    def _lead_rest(self) -> None:
        """Return when all engines sleep."""
        broadcast_message(encode_command(RestCommand()), channel=self._slice.channel)
        self._slice.rest()
        self._answers()

    def _lead_generate(self, command: GenerateCommand, on_finished: OnFinished | None) -> list[Rollout]:
        """What all engines sampled, once all ranks are done."""
        broadcast_message(encode_command(command), channel=self._slice.channel)
        if on_finished is None:
            own = self._slice.generate(command)
            answers = self._answers()
        else:
            own, answers = self._lead_streamed(command, on_finished)
        per_engine = self._slice.ranks_per_engine
        # only the first rank of each engine returns completions; rank 0's are in `own`
        firsts = answers[per_engine - 1 :: per_engine]
        others = [
            read_completions(answer, of=[command.requests[place] for place in part])
            for answer, part in zip(firsts, command.parts[1:], strict=True)
        ]
        places = [place for part in command.parts for place in part]
        sampled = [rollout for rollouts in (own, *others) for rollout in rollouts]
        rollouts = [rollout for _, rollout in sorted(zip(places, sampled, strict=True), key=itemgetter(0))]
        for rollout in rollouts:
            if not self._is_newest(rollout):
                found = ", ".join(str(span.version) for span in rollout.versions)
                raise EngineError(f"{rollout.engine} sampled with weights {found}, not {self._version}")
        return rollouts

    def _lead_streamed(
        self, command: GenerateCommand, on_finished: OnFinished
    ) -> tuple[list[Rollout], list[Frames]]:
        """What the engine of this rank sampled, and the answers of the others. Every completion is passed on
        as it finishes: what another engine says is read in a thread while that of this rank samples."""
        channel, per_engine, parts = self._slice.channel, self._slice.ranks_per_engine, command.parts

        def pass_on(engine: int, index: int, rollout: Rollout) -> None:
            # one of other weights ends the call when the whole of it is looked at
            if self._is_newest(rollout):
                on_finished(parts[engine][index], rollout)

        def read_and_pass_on(engine: int, index: int, frame: Frame) -> None:
            request = command.requests[parts[engine][index]]
            pass_on(engine, index, read_completion(frame, prompt_ids=request.prompt_ids))

        def read(rank: int) -> Frames:
            of_engine = functools.partial(read_and_pass_on, rank // per_engine)
            return receive_streamed(of_engine, channel=channel, rank=rank)

        answers = [self._readers.submit(read, rank) for rank in range(1, channel.world_size)]
        own = self._slice.generate(command, on_finished=functools.partial(pass_on, 0))
        return own, [answer.result() for answer in answers]

    def _answers(self) -> list[Frames]:
        """The answers of ranks 1, 2, ..."""
        channel = self._slice.channel
        return [receive_message(channel=channel, rank=rank) for rank in range(1, channel.world_size)]

    def _is_newest(self, rollout: Rollout) -> bool:
        return all(span.version == self._version for span in rollout.versions)

    def _parts(self, requests: Sequence[GenerateRequest]) -> list[list[int]]:
        """The indices of the requests of each engine, which has their sessions from now on."""
        parts = parts_of(requests, num_engines=self._slice.num_engines, engine_of=self._engine_of)
        for engine, part in enumerate(parts):
            sessions = (requests[place].session for place in part)
            self._engine_of |= {session: engine for session in sessions if session is not None}
        return parts


class EngineExecutor:
    """What a rank other than 0 does with its engine: executes rank 0's commands from now on, until the
    process ends."""

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
