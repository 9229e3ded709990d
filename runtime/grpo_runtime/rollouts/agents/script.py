"""A policy that says what a script has: for trying an agent without weights and engines."""

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from grpo_runtime.gateway.chat_request import ChatRequest, TokenRequest
from grpo_runtime.gateway.chat_template import Message
from grpo_runtime.gateway.gateway import Gateway
from grpo_runtime.gateway.session import Answer, ChatModel
from grpo_runtime.rewards.types import TRIAL_TEXT
from grpo_runtime.rollouts.agents.schema_values import NoValueError, arguments_of
from grpo_runtime.rollouts.function.turn_sampler import TurnSampler
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout

_NO_THOUGHTS = "<think>\n\n</think>\n\n"
_asked: ContextVar[ChatRequest | TokenRequest] = ContextVar("asked")
"""The call that is being answered: engines see nothing but its tokens."""


@dataclass
class Script:
    """What the policy says, in the order of its calls; then text. A call of a tool is said once that is
    offered."""

    model: ChatModel
    calls: list[str] = field(default_factory=list)
    """Names of the tools to call."""
    is_broken: bool = False
    """Whether the text of a call is cut off in its middle."""
    has_other_arguments: bool = False
    """Whether a call has no argument that its tool knows."""
    offered: dict[str, Message] = field(default_factory=dict)
    """The tools that were offered, by name."""
    called: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Those that were called, with their arguments."""
    not_called: dict[str, str] = field(default_factory=dict)
    """Those that cannot be called, and why."""
    answers: dict[str, str] = field(default_factory=dict)
    """What the agent said behind the call of a tool, where it said something."""
    num_turns: int = 0
    """Calls of the agent that were answered."""
    _last_called: str | None = None

    def says(self, asked: ChatRequest | TokenRequest, *, room: int) -> tuple[int, ...]:
        """The tokens of the reply, of at most so many."""
        self.num_turns += 1
        if self._last_called is not None and isinstance(asked, ChatRequest):
            self.answers[self._last_called] = str(asked.messages[-1].get("content"))
        self._last_called = None
        tools = asked.tools if isinstance(asked, ChatRequest) else ()
        self.offered |= {name: tool for tool in tools if (name := _name_of(tool))}
        while (name := next((name for name in self.calls if name in self.offered), None)) is not None:
            self.calls.remove(name)
            try:
                return self._call(name, tools, room=room)
            except NoValueError as error:
                self.not_called[name] = str(error)
        return self._tokens(self._readable(TRIAL_TEXT, tools))[:room]

    def _call(self, name: str, tools: Sequence[Message], *, room: int) -> tuple[int, ...]:
        """The tokens of a call. Raises NoValueError where there is none."""
        arguments = {"other": TRIAL_TEXT} if self.has_other_arguments else arguments_of(self.offered[name])
        text = self._text_of_call(name, arguments, tools)
        if self.is_broken:
            text = text[: text.rindex(name) + len(name) + 1]
        token_ids = self._tokens(text)
        if len(token_ids) > room:
            raise NoValueError(
                f"a call of it has {len(token_ids)} tokens, but only {room} may be sampled: raise "
                "sampling.maxTokens, or limits.tokens"
            )
        self.called[name], self._last_called = arguments, name
        return token_ids

    def _text_of_call(self, name: str, arguments: Mapping[str, Any], tools: Sequence[Message]) -> str:
        """A call as the model writes it: so that the job's parser reads it."""
        call = {"name": name, "arguments": arguments}
        forms = [
            self.model.template.reply_text(
                {"role": "assistant", "content": "", "tool_calls": [_as_sent(name, arguments)]}, tools=tools
            ),
            f"<tool_call>\n{json.dumps(call)}\n</tool_call>",
        ]
        for text in (f"{before}{form}" for form in forms if form for before in ("", _NO_THOUGHTS)):
            found = self._read(text, tools).calls
            if [(each.name, _parsed(each.arguments)) for each in found] == [(name, arguments)]:
                return text
        raise NoValueError(
            "the chat template, and the tokenizer, write no call that sampling.toolCallParser reads: set it "
            "to the parser of this model, or take another chatTemplate"
        )

    def _readable(self, text: str, tools: Sequence[Message]) -> str:
        """The text as it is sampled where it is read as `text`, which a parser of thoughts may not do."""
        forms = (text, f"{_NO_THOUGHTS}{text}")
        return next((form for form in forms if self._read(form, tools).content.strip() == text), text)

    def _read(self, text: str, tools: Sequence[Message]) -> Any:
        token_ids = self._tokens(text)
        return self.model.replies.read(self.model.decoder.text(token_ids), token_ids=token_ids, tools=tools)

    def _tokens(self, text: str) -> tuple[int, ...]:
        ids = self.model.decoder.tokenizer(text, add_special_tokens=False)["input_ids"]
        end = self.model.decoder.tokenizer.eos_token_id
        return (*ids, end) if end is not None else tuple(ids)


class ScriptedGateway(Gateway):
    """A gateway whose calls are answered by `script`."""

    def __init__(self, model: ChatModel) -> None:
        self.script = Script(model)
        super().__init__(model, TurnSampler(ScriptedEngines(self)))  # type: ignore[arg-type]

    async def answer(
        self, key: str, asked: ChatRequest | TokenRequest, *, identity: str, is_sent_again: bool = False
    ) -> Answer:
        """As there."""
        _asked.set(asked)
        return await super().answer(key, asked, identity=identity, is_sent_again=is_sent_again)


class ScriptedEngines:
    """What of engines an agent's calls need."""

    is_concurrent = True

    def __init__(self, gateway: ScriptedGateway) -> None:
        self._gateway = gateway

    async def generate(self, requests: Sequence[GenerateRequest], *, stays_awake: bool) -> list[Rollout]:
        """What the script says, each sampled with certainty."""
        return [self._rollout(request) for request in requests]

    async def rest(self) -> None:
        """Nothing is awake."""

    def _rollout(self, request: GenerateRequest) -> Rollout:
        assert request.max_tokens is not None
        token_ids = self._gateway.script.says(_asked.get(), room=request.max_tokens)
        return Rollout(
            prompt_ids=request.prompt_ids,
            completion_ids=token_ids,
            rollout_logprobs=(0.0,) * len(token_ids),
            versions=(),
            is_terminated=bool(token_ids) and token_ids[-1] in self._gateway.model.decoder.end_ids,
            engine="",
        )


def _name_of(tool: Message) -> str | None:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _as_sent(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": "t00000000", "type": "function", "function": function}


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return None
