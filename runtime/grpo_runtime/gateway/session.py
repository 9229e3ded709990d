"""A session: what one agent has asked and been answered, from its first call to its last."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from grpo_runtime.data.seeds import turn_seed
from grpo_runtime.gateway.chat_request import ChatRequest, TokenRequest, same_tools
from grpo_runtime.gateway.chat_template import ChatTemplate, Message, TemplateRefusesError
from grpo_runtime.gateway.history import Exchange, continued, essence
from grpo_runtime.gateway.record import Record
from grpo_runtime.gateway.refusals import BadFieldError, LimitReachedError
from grpo_runtime.gateway.replies import ReplyReader
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.rollouts.interface import AgentTurn, GenerateRequest, Rollout


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a session may use. None is no limit."""

    turns: int | None = None
    """Calls."""
    tokens: int | None = None
    """Sampled tokens of all calls."""
    prompt_tokens: int | None = None
    """Prompt of one call."""
    sequences: int | None = None
    """Sequences that are trained."""
    seconds: float | None = None
    """From the beginning of the session to its end. What is being sampled then is still answered."""


@dataclass(frozen=True, kw_only=True)
class ChatModel:
    """How chats become tokens and tokens replies, the same for all sessions of a run."""

    name: str
    template: ChatTemplate
    decoder: CompletionDecoder
    replies: ReplyReader
    vocab_size: int
    """Token ids are below it."""
    max_model_len: int
    max_tokens: int
    """Longest completion of a call."""
    extends: bool = True
    """Whether a chat that goes on keeps the tokens that were sampled. Otherwise its template writes it anew
    for every call, as a plain server of chats does."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A call that is being answered."""

    number: int
    asked: ChatRequest | TokenRequest
    request: GenerateRequest | None
    """What is sampled; None where there is no room for a token."""
    prompt_ids: tuple[int, ...]
    is_bound_by_limit: bool
    """Whether it comes to a limit where its completion ends with its length, as in `_Room`."""
    continues: Exchange | None = None
    """The call whose chat it goes on with."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A call that was answered."""

    turn: Turn
    message: Message
    """Empty where the call brought tokens."""
    finish_reason: str
    is_unreadable_call: bool = False
    """Whether the message was meant as a call of a tool that cannot be read. What was cut is not."""
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


class _Room(NamedTuple):
    """How many tokens may be sampled behind a prompt."""

    num_tokens: int
    is_bound_by_limit: bool
    """Whether limits.tokens, or the model's context, leaves no more, and not only what the job and the call
    say of the longest completion."""


class _Answered(NamedTuple):
    """A call that was answered, with seconds as in AgentTurn."""

    exchange: Exchange | None
    """None where it brought tokens."""
    seconds: float
    waited_seconds: float


@dataclass(eq=False)
class Session:
    """What one agent has sampled. `seed` decides it, given the weights."""

    model: ChatModel
    seed: int
    limits: Limits = field(default_factory=Limits)
    is_evaluation: bool = False
    is_trained: bool = True
    """Whether its tokens are trained. Otherwise its calls say how they are sampled, and chats that go on are
    written anew, as a plain server of chats does."""
    overridden: dict[str, int] = field(default_factory=dict)
    """Parameter -> how many calls that were answered asked for another value than the job's."""
    num_unreadable_calls: int = 0
    """Answers that were meant as a call of a tool that cannot be read."""
    is_cut: bool = False
    """Whether a call of it was refused, or ended with its length, at a limit of its own or of the model's
    context, or its time was over."""

    def __post_init__(self) -> None:
        self.record = Record(max_tokens=self.model.max_model_len)
        self._exchanges: list[Exchange] = []
        self._answered: list[_Answered] = []
        self._is_late = False
        self._numbers: set[int] = set()
        """Of turns that are open or answered."""
        self._num_group_tokens: int | None = None

    def begin(self, asked: ChatRequest | TokenRequest) -> Turn:
        """The turn that answers a request. Every turn that begins must be taken, or given up.

        Raises LimitReachedError, and BadFieldError for a chat that the template refuses, or whose text has no
        token, or one that the model has not.
        """
        self._require_limits()
        found = self._continued(asked) if isinstance(asked, ChatRequest) else None
        prompt_ids = self._prompt(asked, found) if isinstance(asked, ChatRequest) else asked.prompt_ids
        self._require_known(prompt_ids)
        room = self._room(prompt_ids, asked.max_tokens)
        self._num_group_tokens = self._num_group_tokens or len(prompt_ids)
        # a call that is given up and sent again has the same seed
        number = next(number for number in itertools.count() if number not in self._numbers)
        self._numbers.add(number)
        own = asked.own
        request = GenerateRequest(
            prompt_ids,
            seed=turn_seed(self.seed, turn=number) if own is None or own.seed is None else own.seed,
            is_evaluation=self.is_evaluation,
            max_tokens=room.num_tokens,
            num_group_tokens=min(self._num_group_tokens, len(prompt_ids)),
            stop=asked.stop,
            own_parameters=None if own is None else own.json,
        )
        return Turn(
            number=number,
            asked=asked,
            request=request if room.num_tokens > 0 else None,
            prompt_ids=prompt_ids,
            is_bound_by_limit=room.is_bound_by_limit,
            continues=found,
        )

    def take(self, turn: Turn, rollout: Rollout, *, seconds: float) -> Answer:
        """The answer of a turn whose completion was sampled; what is trained has grown by it. `seconds` are
        those since it has begun."""
        finish_reason, message = "stop" if rollout.is_terminated else "length", {}
        exchange, is_unreadable_call = None, False
        if isinstance(turn.asked, ChatRequest):
            text = _before_stop(self.model.decoder.text(rollout.completion_ids), turn.asked.stop)
            reply = self.model.replies.read(text, token_ids=rollout.completion_ids, tools=turn.asked.tools)
            message = reply.message(number=turn.number)
            exchange = _exchange(turn.asked, message, rollout, continues=turn.continues)
            self._exchanges.append(exchange)
            if reply.calls and rollout.is_terminated:
                finish_reason = "tool_calls"
            is_unreadable_call = reply.is_unreadable_call and rollout.is_terminated
        # last: what could not be read is asked again, and must not be trained twice
        self.record.take(rollout)
        self.is_cut |= turn.is_bound_by_limit and not rollout.is_terminated
        sampling = seconds if rollout.sampling_seconds is None else rollout.sampling_seconds
        self._answered.append(_Answered(exchange, seconds, max(0.0, seconds - sampling)))
        for name in turn.asked.overridden:
            self.overridden[name] = self.overridden.get(name, 0) + 1
        self.num_unreadable_calls += is_unreadable_call
        return Answer(
            turn=turn,
            message=message,
            finish_reason=finish_reason,
            is_unreadable_call=is_unreadable_call,
            completion_ids=rollout.completion_ids,
            logprobs=rollout.rollout_logprobs,
        )

    def cut(self, turn: Turn) -> Answer:
        """The answer of a turn for which there is no room: it ends with its length, and so does the
        session."""
        self.is_cut = True
        return Answer(turn=turn, message={"role": "assistant", "content": ""}, finish_reason="length")

    @property
    def chats(self) -> list[list[Message]]:
        """The chats of their clients, with the replies as the policy gave them. One that goes on is there
        once."""
        return [list(exchange.messages) for exchange in self._last_of_chats()]

    @property
    def turns(self) -> list[AgentTurn]:
        """The calls that were answered by what was sampled."""
        # the first chat of a call that several go on from
        chats = reversed([*enumerate(self._last_of_chats())])
        chat_of = {before: chat for chat, last in chats for before in last.history()}
        return [
            AgentTurn(
                **place._asdict(),
                seconds=call.seconds,
                waited_seconds=call.waited_seconds,
                chat=None if call.exchange is None else chat_of[call.exchange],
                messages=(0, 0) if call.exchange is None else call.exchange.new_messages,
            )
            for place, call in zip(self.record.places, self._answered, strict=True)
        ]

    def _last_of_chats(self) -> list[Exchange]:
        """The calls that no later one goes on with."""
        continued = {exchange.continues for exchange in self._exchanges}
        return [exchange for exchange in self._exchanges if exchange not in continued]

    def end_late(self) -> None:
        """Its `limits.seconds` are over: it gets no other call."""
        self._is_late = self.is_cut = True

    def give_up(self, turn: Turn) -> None:
        """Nobody waits for the turn any more."""
        self._numbers.discard(turn.number)

    def _continued(self, chat: ChatRequest) -> Exchange | None:
        return continued(chat.messages, tools=same_tools(chat.tools), exchanges=self._exchanges)

    def _prompt(self, chat: ChatRequest, found: Exchange | None) -> tuple[int, ...]:
        template = self.model.template
        if found is not None and self.model.extends and self.is_trained:
            behind = template.behind_reply(
                found.reply, chat.messages[len(found.chat) :], sampled=found.token_ids, tools=chat.tools
            )
            if behind is not None:
                return (*found.token_ids, *behind)
        try:
            return tuple(template.prompt(chat.messages, tools=chat.tools))
        except TemplateRefusesError as error:
            raise BadFieldError("messages", f"the chat template refuses them ({error})") from error

    def _require_known(self, prompt_ids: Sequence[int]) -> None:
        """Raises BadFieldError for what an engine would refuse."""
        model = self.model
        if not prompt_ids:
            raise BadFieldError("messages", "they and the chat template make no token: send some text")
        if (largest := max(prompt_ids)) >= model.vocab_size:
            token = model.decoder.tokenizer.convert_ids_to_tokens(largest)
            raise BadFieldError(
                "messages",
                f"they have the token {token} ({largest}), but the model has only those below "
                f"{model.vocab_size}: leave it out of the text",
            )

    def _require_limits(self) -> None:
        limits = self.limits
        reached = {
            "turns": _is_reached(len(self._numbers), limits.turns),
            "tokens": _is_reached(self.record.num_sampled, limits.tokens),
            "seconds": self._is_late,
        }
        for name, is_reached in reached.items():
            if is_reached:
                self.is_cut = True
                raise LimitReachedError(f"limits.{name} of this session is reached: end it")

    def _room(self, prompt_ids: Sequence[int], asked: int | None) -> _Room:
        """What may be sampled behind a prompt. Raises LimitReachedError."""
        limits, record = self.limits, self.record
        is_full = self.is_trained and _is_reached(record.num_sequences, limits.sequences)
        if is_full and record.would_begin(prompt_ids):
            self.is_cut = True
            raise LimitReachedError("limits.sequences of this session is reached: go on with the same chat")
        if limits.prompt_tokens is not None and len(prompt_ids) > limits.prompt_tokens:
            return _Room(0, is_bound_by_limit=True)
        left = self.model.max_model_len - len(prompt_ids)
        if limits.tokens is not None:
            left = min(left, limits.tokens - record.num_sampled)
        longest = self.model.max_tokens if self.is_trained or asked is None else asked
        if asked is not None:
            longest = min(longest, asked)
        return _Room(max(0, min(left, longest)), is_bound_by_limit=left <= longest)


def _exchange(chat: ChatRequest, reply: Message, rollout: Rollout, *, continues: Exchange | None) -> Exchange:
    before = () if continues is None else continues.messages
    return Exchange(
        chat=tuple(essence(message, stop=chat.stop) for message in (*chat.messages, reply)),
        reply=reply,
        stop=chat.stop,
        tools=same_tools(chat.tools),
        token_ids=(*rollout.prompt_ids, *rollout.completion_ids),
        messages=(*before, *chat.messages[len(before) :], reply),
        continues=continues,
    )


def _is_reached(found: int, limit: int | None) -> bool:
    return limit is not None and found >= limit


def _before_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to the first of the stop strings, as servers of chats give it."""
    places = [place for end in stop if (place := text.find(end)) >= 0]
    return text[: min(places)] if places else text
