"""A tokenizer with a chat template, and a policy that writes what a test says, token by token in characters:
so what it samples is never what a tokenizer makes of the same text. Both are fakes."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from grpo_api.contract.versions import PolicyVersion
from grpo_learning.chat_policy import END
from grpo_learning.chat_policy import chat_tokenizer as tokenizer_of_chats
from grpo_runtime.gateway.chat_request import Terms, read_chat_request
from grpo_runtime.gateway.chat_template import ChatTemplate
from grpo_runtime.gateway.replies import Call, Reply
from grpo_runtime.gateway.session import Answer, ChatModel, Limits, Session
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout, VersionSpan

MAX_MODEL_LEN = 2048
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


@cache
def chat_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with the template of the chat policy."""
    text = "the user guesses a number and the assistant says low or high, add one and two"
    return tokenizer_of_chats([text] * 9, vocab_size=340)


def template_over(
    text: str, *, begin: str, ends: Sequence[str], tags: Iterable[str], vocab_size: int
) -> ChatTemplate:
    """A template with a byte-level tokenizer that has these tags as tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=sorted({begin, *ends, *tags}),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["It is 3. And 4?\n\nassistant user"] * 9, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=begin, eos_token=ends[0])
    tokenizer.chat_template = text
    return ChatTemplate(tokenizer=tokenizer, end_ids=frozenset(tokenizer.convert_tokens_to_ids(ends)))


def tokens(text: str) -> tuple[int, ...]:
    """The ids of a text."""
    return tuple(chat_tokenizer()(text, add_special_tokens=False)["input_ids"])


def written(text: str) -> tuple[int, ...]:
    """The ids of a text in single characters, tags and the end aside."""
    ids: list[int] = []
    tags = (END, "<tool_call>", "</tool_call>", "<think>", "</think>")
    while text:
        part = next((tag for tag in tags if text.startswith(tag)), text[0])
        ids += tokens(part)
        text = text.removeprefix(part)
    return tuple(ids)


class HermesReplies:
    """Calls in the form that the template writes; by hand, where vLLM's parsers are not what is tested."""

    def read(self, text: str, *, token_ids: Sequence[int], tools: Sequence[Any]) -> Reply:
        content, *calls = text.split("<tool_call>")
        if not tools or not calls:
            return Reply(text)
        try:
            objects = [json.loads(call.split("</tool_call>")[0]) for call in calls]
        except ValueError:
            return Reply(text, is_unreadable_call=True)
        found = (Call(call["name"], json.dumps(call["arguments"])) for call in objects)
        return Reply(content.strip(), calls=tuple(found))


def chat_model(*, extends: bool = True, max_tokens: int = 256, vocab_size: int | None = None) -> ChatModel:
    tokenizer = chat_tokenizer()
    ends = frozenset({tokenizer.eos_token_id})
    return ChatModel(
        name="policy",
        template=ChatTemplate(tokenizer=tokenizer, end_ids=ends),
        decoder=CompletionDecoder.of(tokenizer),
        replies=HermesReplies(),
        vocab_size=vocab_size or len(tokenizer),
        max_model_len=MAX_MODEL_LEN,
        max_tokens=max_tokens,
        extends=extends,
    )


def session(*, model: ChatModel | None = None, limits: Limits | None = None, **more: Any) -> Session:
    return Session(model=model or chat_model(), seed=7, limits=limits or Limits(), **more)


def sampled(request: GenerateRequest, text: str, *, step: int = 0) -> Rollout:
    """What the policy answers to a request: a text, cut where the request says."""
    ids = written(text)[: request.max_tokens]
    is_terminated = ids == written(text)
    for length in range(1, len(ids) + 1):
        # as vLLM: the ids keep the stop string, and nothing follows it
        if any(stop in chat_tokenizer().decode(ids[:length]) for stop in request.stop):
            ids, is_terminated = ids[:length], True
            break
    return Rollout(
        prompt_ids=request.prompt_ids,
        completion_ids=ids,
        rollout_logprobs=tuple(-0.01 * (place + 1) for place in range(len(ids))),
        versions=(VersionSpan(PolicyVersion(1, step), 0, len(ids)),),
        is_terminated=is_terminated,
        engine="engine-0",
    )


TERMS = Terms(given={}, vocab_size=len(chat_tokenizer()))


def asked(
    found: Session,
    messages: Sequence[Any],
    says: str,
    *,
    score: Callable[[Rollout], Rollout] = lambda rollout: rollout,
    **body: Any,
) -> Answer:
    """A call of a session, and the policy's answer, to which `score` may give other logprobs."""
    turn = found.begin(read_chat_request({"messages": list(messages), **body}, terms=TERMS))
    if turn.request is None:
        return found.cut(turn)
    return found.take(turn, score(sampled(turn.request, says)), seconds=1.0)


class ScriptedPolicy:
    """Engines, which are a fake: each call is answered by what `says` makes of its prompt's text."""

    is_concurrent = True

    def __init__(self, says: Callable[[str], str]) -> None:
        self._says = says
        self.requests: list[GenerateRequest] = []

    async def generate(self, requests: Sequence[GenerateRequest], *, stays_awake: bool) -> list[Rollout]:
        assert stays_awake
        self.requests += requests
        return [sampled(each, self._says(chat_tokenizer().decode(each.prompt_ids))) for each in requests]
