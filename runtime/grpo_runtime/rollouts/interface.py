"""What the training loop asks of rollout engines, wherever they run, and how they can fail."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.errors import KnownError, UserError
from grpo_runtime.weight_sync.source import WeightSource


@dataclass(frozen=True)
class GenerateRequest:
    """One completion to sample. `seed` alone decides the tokens, given the weights. One that `is_evaluation`
    is sampled as evaluations are, and the requests of a call are all of one kind. `max_tokens` is its longest
    completion where that is not sampling.maxTokens. A turn of a conversation has `num_group_tokens`: so many
    of its first tokens are the prompt of its group; None where all are. All turns that a function or an agent
    asks for to make one completion have the same `session`, a number that no others have. `stop` are texts
    that end it, beside those of sampling.stop. One that is not trained has `own_parameters`: vLLM's
    parameters, as JSON, that replace the job's, of which stop and regex do not hold for it. `so_far` is what
    an engine has handed over of the completion, which goes on from there.
    """

    prompt_ids: tuple[int, ...]
    seed: int
    is_evaluation: bool = False
    max_tokens: int | None = None
    num_group_tokens: int | None = None
    session: int | None = None
    stop: tuple[str, ...] = ()
    own_parameters: str | None = None
    so_far: "Rollout | None" = None


@dataclass(frozen=True)
class VersionSpan:
    """Completion tokens [start, end) were sampled with the weights of `version`."""

    version: PolicyVersion
    start: int
    end: int

    def behind(self, num_tokens: int) -> "VersionSpan":
        """The same one where so many more tokens are before it."""
        return VersionSpan(self.version, self.start + num_tokens, self.end + num_tokens)


@dataclass(frozen=True)
class Segment:
    """Completion tokens [start, end) are what `engine` sampled in one call, which ended or was handed over
    there."""

    engine: str
    start: int
    end: int

    def behind(self, num_tokens: int) -> "Segment":
        """The same one where so many more tokens are before it."""
        return Segment(self.engine, self.start + num_tokens, self.end + num_tokens)


class EpisodeFailure(StrEnum):
    """Whose failure it is that something failed in an episode."""

    POLICY = "policy"
    """An action or a call that nobody can read, or that does not exist. The policy is told, or the episode
    ends with what it has earned."""
    TOOL = "tool"
    """A tool that raised. The policy is told. Nothing but the limit of the episode ends one that is late."""
    ENVIRONMENT = "environment"
    """The agent raised, sampled nothing or was late, or its process ended: the episode is begun again."""
    LIMIT = "limit"
    """The episode came to one of its limits, and was cut there."""


@dataclass(frozen=True, kw_only=True)
class AgentTurn:
    """A call of an agent that was answered, and what was sampled for it: the tokens [start, end) of the
    completion of one of the episode's sequences."""

    sequence: int
    """Its index among the sequences of the episode."""
    start: int
    end: int
    seconds: float
    """From the call to its answer."""
    waited_seconds: float
    """Those in which no engine had it yet: engines were busy, or got weights."""
    chat: int | None = None
    """Index of its chat in the trajectory; None where it brought tokens and no messages."""
    messages: tuple[int, int] = (0, 0)
    """[start, end) of the messages of that chat that are new with this call. Its reply is the next one."""


@dataclass(frozen=True, kw_only=True)
class AgentCalls:
    """What an agent has asked for in an episode of its environment, and by field how many of its calls asked
    for another value than the job's."""

    environment: str
    turns: Sequence[AgentTurn]
    """In the order in which they were answered."""
    overridden: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    """How often something failed, by EpisodeFailure."""


@dataclass(frozen=True)
class Rollout:
    """One sampled completion.

    `rollout_logprobs` are the sampler's, in nats, after temperature, one per completion token.
    `is_terminated` is False when the completion was cut at the token limit. One that `is_aborted` is not
    finished: its engine has handed it over, perhaps without a token. `segments` are of what was handed over
    before it was finished; they are empty where one call sampled all. Of several turns, the tokens of a
    completion that no policy sampled, such as what a tool said, are those that `loss_mask` has as False, and
    their logprobs are 0; `versions` leave them out. None means that all were sampled.

    It is an episode. An agent that rewrites its history makes one of several sequences: the first is the
    rollout itself, and `branches` are the others, in the order in which they began. Each has a prompt of its
    own, and none has branches.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    rollout_logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    is_terminated: bool
    engine: str
    loss_mask: tuple[bool, ...] | None = None
    branches: tuple["Rollout", ...] = ()
    returned: float | None = None
    """What the agent that made it returned as its reward."""
    trajectory: Mapping[str, Any] | None = None
    """What reward functions see of an agent's episode, as JSON: `chats`, each a list of messages, and the
    `state` that the agent returned."""
    calls: AgentCalls | None = None
    """Those of the agent that made it; None where none did."""
    sampling_seconds: float | None = field(default=None, compare=False)
    """From when an engine had the request, the last one that got it, to its answer; of one that was handed
    over, of all that had it. None where nobody has measured that."""
    is_aborted: bool = False
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        assert not any(branch.branches for branch in self.branches), "a branch has branches"

    @property
    def sequences(self) -> tuple["Rollout", ...]:
        """All sequences of the episode, each without branches."""
        return (replace(self, branches=()), *self.branches) if self.branches else (self,)

    @property
    def last(self) -> "Rollout":
        """The sequence in which the episode ends: that of the last call of its agent, which may have begun
        before others did. Where no calls are known it is the one that began last."""
        turns = () if self.calls is None else self.calls.turns
        return self.sequences[turns[-1].sequence if turns else -1]

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled, of all sequences."""
        own = len(self.completion_ids) if self.loss_mask is None else sum(self.loss_mask)
        return own + sum(branch.num_sampled for branch in self.branches)

    def of_prompt(self, prompt_ids: tuple[int, ...]) -> "Rollout":
        """The same with another prompt of the first sequence."""
        return replace(self, prompt_ids=prompt_ids)


@dataclass(frozen=True)
class GivenUp:
    """A completion that there is not, because each try to make it failed. `why` is the last failure."""

    why: str
    num_tries: int = field(default=0, compare=False)
    """How many tries have failed."""

    @property
    def failures(self) -> Mapping[str, int]:
        """As those of AgentCalls: what fails a try is the environment's."""
        return {EpisodeFailure.ENVIRONMENT.value: self.num_tries}


OnFinished = Callable[[int, Rollout], None]
"""Takes a sample as soon as it is finished, with the index of its request, and before that what there is of
it whenever an engine has handed it over, which is aborted. Called in any thread, with what is finished once
for each sample; it must not raise."""


OnRead = Callable[[], None]
"""Learns that weights are copied and may change from then on. Called in any thread; it must not raise."""


@dataclass(frozen=True)
class Probe:
    """A fixed sequence and the trainer's logprobs of its tokens after the first, in float32.

    Engines must reproduce `logprobs` to `tolerance` (nats a token, on average) before they may serve the
    weights. `vocab_size` is that of the policy: no engine samples an id that is not below it.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    tolerance: float
    vocab_size: int | None = None


@dataclass(frozen=True)
class SyncReport:
    """What one weight sync did. `phase_seconds` are per phase, the slowest engine of each."""

    version: PolicyVersion
    synced: tuple[str, ...]
    failed: Mapping[str, str]
    """Engine -> why it left the fleet; empty in mode Colocated."""
    num_bytes: int
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    num_bytes_sent: int = 0
    """What has left the trainer by the time of the report; see `PreparedWeights.num_bytes_sent`. 0 in mode
    Colocated with the engine in the trainer's process."""
    num_update_bytes: int | None = None
    """Bytes that engines with the previous weights are sent with `weightSync.sparse`: what changed with its
    index, or all weights."""
    paused_seconds: float | None = None
    """Time from the call that pauses an engine to its answer that it has resumed, of the slowest one that got
    the weights. None where engines are not paused because they have no work, in mode Colocated."""
    max_probe_error: float = 0.0
    """Largest difference to the probe's logprobs over all synced engines."""


@dataclass(frozen=True)
class FailedSyncs:
    """The weight syncs of an engine that have failed since its last good one: `num` of them, the last one of
    the weights `version`, because of `why`."""

    num: int
    version: PolicyVersion
    why: str


@dataclass(frozen=True)
class Generation:
    """How far the running call of `generate` has come, in samples: of one that is not finished nothing is
    known."""

    num_samples: int
    num_done: int
    quiet_seconds: float
    """Since a sample was finished last, or else since the call began."""
    given: Mapping[str, int]
    """Engine -> the samples it was given and has not finished."""
    hung: Mapping[str, str] = field(default_factory=dict)
    """Engine -> why it is hung; its samples were given to others."""
    starting_again: tuple[str, ...] = ()
    """Engines beside their ranks that were lost, and that continue with their samples once they are
    started."""

    @property
    def num_waiting(self) -> int:
        """Samples that no engine has been given."""
        return max(0, self.num_samples - self.num_done - sum(self.given.values()))

    def is_still_since(self, before: "Generation | None") -> bool:
        """Whether no sample was finished, and no call begun, since `before`. Where each call is for one
        sample, of those that run none is ever done: then only `quiet_seconds` begin again."""
        return (
            before is not None
            and self.num_done == before.num_done
            and self.quiet_seconds >= before.quiet_seconds
        )


@dataclass(frozen=True)
class Recomputed:
    """What engines have computed again: `num_tokens` of contexts because weights changed within a completion
    or another engine went on with it, and that of completions that were taken out of the KV cache
    `num_preemptions` times."""

    num_tokens: int = 0
    num_preemptions: int = 0

    def since(self, before: "Recomputed") -> "Recomputed":
        """What has been added to `before`."""
        return Recomputed(self.num_tokens - before.num_tokens, self.num_preemptions - before.num_preemptions)


class Engines(Protocol):
    """The rollout engines of a run, as rank 0 sees them. Only those with the newest weights are given work.

    In mode Disaggregated they are a fleet: pods that come and go by themselves. RolloutLostError is raised
    when none was left for longer than the stated wait. In mode Colocated every rank holds one, or its share
    of one: they work in step, are all there or none, and what fails in one of them ends the attempt, unless
    it has a process of its own and can be started again.
    """

    @property
    def is_concurrent(self) -> bool:
        """Whether several calls of `generate` may run at the same time, as in a fleet. Colocated engines take
        one at a time: a call begins when the one before has returned."""
        ...

    def counts(self) -> EngineCounts:
        """Engines by state, as of now."""
        ...

    async def sync(
        self,
        weights: WeightSource,
        *,
        version: PolicyVersion,
        probe: Probe | None,
        on_read: OnRead | None = None,
    ) -> SyncReport:
        """Give every engine the weights, and verify them with the probe where there is one.

        A fleet transfers them to every engine that it can reach. At the first call of an attempt it waits for
        all desired engines, or for at least one after a stated wait; later it takes those that it finds, and
        waits while there is none. Colocated engines load from their rank's policy, all at once. `on_read` is
        called once the weights may change.
        """
        ...

    async def rest(self) -> None:
        """Let engines that share the trainer's memory give it back: training follows without a `generate`.
        They serve again after the next `sync`."""
        ...

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        """Sample all requests, in the order given. With `stays_awake` another `generate` or `rest` follows;
        without it, engines that share the trainer's memory give it back.

        In a fleet, a request of an engine that is lost goes to another one; with the same seed and weights
        it gives the same tokens. An engine that joins meanwhile gets work only after a verified sync.
        """
        ...

    def generation(self) -> Generation | None:
        """How far the running call of `generate` has come. None when none runs, and where it cannot be
        told. May be called in another thread than `generate`."""
        ...

    def failed_syncs(self) -> Mapping[str, FailedSyncs]:
        """Engine -> its failed weight syncs, for engines that serve no more because of them. Empty in mode
        Colocated, where such a failure ends the attempt or the engine."""
        ...

    def take_idle_seconds(self) -> Mapping[str, float]:
        """Engine -> the seconds in which it could serve and had no request, or was paused, since they were
        last taken; one that had none is left out. Empty in mode Colocated, where engines and trainer take
        turns."""
        ...

    def take_recomputed(self) -> Recomputed | None:
        """What they have computed again since it was last taken; None in mode Colocated, where nobody
        counts it."""
        ...

    async def close(self) -> None:
        """Let go of every connection. Engines in pods stay as they are; those in ranks end with their
        rank."""
        ...


class RolloutLostError(KnownError):
    """No engine was left for longer than the stated wait."""

    exit_code = ExitCode.ROLLOUT_LOST


class EngineError(KnownError):
    """One engine failed one call; the message names the engine and what it said."""

    exit_code = ExitCode.TRANSIENT


class EngineGoneError(EngineError):
    """The engine cannot be reached, or another process answers at its address."""


class EngineTimeoutError(EngineError):
    """The engine was reached and did not answer before the deadline."""


class RequestRefusedError(UserError):
    """An engine refuses a request as wrong, as each other one would. `said` is its answer. It ends the job,
    unless the request was a call of an agent, which is told so."""

    def __init__(self, message: str, *, said: str) -> None:
        super().__init__(message)
        self.said = said


class FunctionFailedError(UserError):
    """A user's function or agent was late, raised, ended its process, or sampled nothing. Another try may
    succeed."""
