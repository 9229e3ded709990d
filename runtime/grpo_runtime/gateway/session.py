"""A session: what one agent has asked and been answered, from its first call to its last."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo_runtime.data.seeds import turn_seed
from grpo_runtime.gateway.chat_request import ChatRequest, TokenRequest, same_tools
from grpo_runtime.gateway.chat_template import ChatTemplate, Message, TemplateRefusesError
from grpo_runtime.gateway.history import Exchange, continued, essence
from grpo_runtime.gateway.record import Record
from grpo_runtime.gateway.refusals import BadFieldError, LimitReachedError
from grpo_runtime.gateway.replies import ReplyReader
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout


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
    continues: Exchange | None = None
    """The call whose chat it goes on with."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A call that was answered."""

    turn: Turn
    message: Message
    """Empty where the call brought tokens."""
    finish_reason: str
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


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
    is_cut: bool = False
    """Whether it came to a limit, of its own or of the model's context."""

    def __post_init__(self) -> None:
        self.record = Record(max_tokens=self.model.max_model_len)
        self._exchanges: list[Exchange] = []
        self._chats: dict[Exchange, list[Message]] = {}
        """Those that no later call goes on with."""
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
            max_tokens=room,
            num_group_tokens=min(self._num_group_tokens, len(prompt_ids)),
            stop=asked.stop,
            own_parameters=None if own is None else own.json,
        )
        return Turn(
            number=number,
            asked=asked,
            request=request if room > 0 else None,
            prompt_ids=prompt_ids,
            continues=found,
        )

    def take(self, turn: Turn, rollout: Rollout) -> Answer:
        """The answer of a turn whose completion was sampled; what is trained has grown by it."""
        finish_reason, message = "stop" if rollout.is_terminated else "length", {}
        if isinstance(turn.asked, ChatRequest):
            text = _before_stop(self.model.decoder.text(rollout.completion_ids), turn.asked.stop)
            reply = self.model.replies.read(text, token_ids=rollout.completion_ids, tools=turn.asked.tools)
            message = reply.message(number=turn.number)
            exchange = _exchange(turn.asked, message, rollout)
            self._exchanges.append(exchange)
            if turn.continues is not None:
                self._chats.pop(turn.continues, None)
            self._chats[exchange] = [*turn.asked.messages, message]
            if reply.calls and rollout.is_terminated:
                finish_reason = "tool_calls"
        # last: what could not be read is asked again, and must not be trained twice
        self.record.take(rollout)
        for name in turn.asked.overridden:
            self.overridden[name] = self.overridden.get(name, 0) + 1
        return Answer(
            turn=turn,
            message=message,
            finish_reason=finish_reason,
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
        """The chats as their clients had them, each with its last reply. One that goes on is there once."""
        return list(self._chats.values())

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

    def _room(self, prompt_ids: Sequence[int], asked: int | None) -> int:
        """Tokens that may be sampled behind a prompt. Raises LimitReachedError."""
        limits, record = self.limits, self.record
        is_full = self.is_trained and _is_reached(record.num_sequences, limits.sequences)
        if is_full and record.would_begin(prompt_ids):
            self.is_cut = True
            raise LimitReachedError("limits.sequences of this session is reached: go on with the same chat")
        if limits.prompt_tokens is not None and len(prompt_ids) > limits.prompt_tokens:
            return 0
        rooms = [self.model.max_model_len - len(prompt_ids)]
        if self.is_trained or asked is None:
            rooms.append(self.model.max_tokens)
        if asked is not None:
            rooms.append(asked)
        if limits.tokens is not None:
            rooms.append(limits.tokens - record.num_sampled)
        return max(0, min(rooms))


def _exchange(chat: ChatRequest, reply: Message, rollout: Rollout) -> Exchange:
    return Exchange(
        chat=tuple(essence(message, stop=chat.stop) for message in (*chat.messages, reply)),
        reply=reply,
        stop=chat.stop,
        tools=same_tools(chat.tools),
        token_ids=(*rollout.prompt_ids, *rollout.completion_ids),
    )


def _is_reached(found: int, limit: int | None) -> bool:
    return limit is not None and found >= limit


def _before_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to the first of the stop strings, as servers of chats give it."""
    places = [place for end in stop if (place := text.find(end)) >= 0]
    return text[: min(places)] if places else text
