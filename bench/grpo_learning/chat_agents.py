"""One task in the ways in which code of users makes completions: by tokens, and by clients of OpenAI's API.

A question, a call of the calculator or a guess, and behind a call one more reply.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_learning.chat_policy import CALCULATOR, behind_call

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def right(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 where the last reply is the answer."""
    texts = [found if isinstance(found, str) else found[-1]["content"] for found in completions]
    replies = [text.rpartition("<|im_start|>assistant\n")[2].strip() for text in texts]
    return [float(reply == wanted) for reply, wanted in zip(replies, answer, strict=True)]


def compute(expression: object) -> str:
    """A product of two digits; a question mark for all else."""
    factors = re.fullmatch(r"(\d)\*(\d)", str(expression))
    return str(int(factors[1]) * int(factors[2])) if factors else "?"


def _result_of(arguments: str) -> str:
    try:
        found = json.loads(arguments)
    except ValueError:
        found = None
    return compute(found.get("expression") if isinstance(found, dict) else None)


async def by_tokens(conversation: Any) -> None:
    """A rollout function."""
    turn = await conversation.sample()
    found = _CALL.search(turn.text)
    if found is None or not turn.is_terminated:
        return
    try:
        arguments = json.loads(found[1])["arguments"]
    except (ValueError, LookupError, TypeError):
        return
    conversation.add(behind_call(_result_of(json.dumps(arguments))))
    await conversation.sample()


async def by_openai(client: Any, prompt: Any) -> None:
    """As users write it: messages go back as the client gives them."""
    messages: list[Any] = prompt[-1:]
    answer = await client.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR])
    message = answer.choices[0].message
    if message.tool_calls:
        messages = [*messages, message, *map(_answered, message.tool_calls)]
        await client.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR])


async def by_verifiers_0_3(client: Any, prompt: Any) -> None:
    """The requests of verifiers 0.3.1's plain client of chats: it asks for tokens, and writes messages and
    arguments of calls anew."""
    messages: list[Any] = prompt[-1:]
    for _ in range(2):
        answer = await client.chat.completions.create(
            model="policy",
            messages=messages,
            tools=[CALCULATOR],
            temperature=1.0,
            max_completion_tokens=200,
            logprobs=True,
            extra_body={"return_token_ids": True},
        )
        message = answer.choices[0].message
        if not message.tool_calls:
            return
        calls = [call.model_dump() for call in message.tool_calls]
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"))
        said = {"role": "assistant", "content": message.content or "", "tool_calls": calls}
        messages = [*messages, said, *map(_answered, message.tool_calls)]


async def by_verifiers_0_4(client: Any, task: Any) -> None:
    """The requests that verifiers 0.4's evaluation client relays: streamed, with the usage, and the trace's
    id in a header."""
    messages: list[Any] = task.prompt[-1:]
    for _ in range(2):
        stream = await client.chat.completions.create(
            model="policy",
            messages=messages,
            tools=[CALCULATOR],
            temperature=1.0,
            max_tokens=200,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"X-Session-ID": f"{task.seed}"},
        )
        text = ""
        calls: list[Any] = []
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                calls += choice.delta.tool_calls or []
        if not calls:
            return
        written = [call.model_dump(exclude={"index"}) for call in calls]
        said = {"role": "assistant", "content": text or None, "tool_calls": written}
        messages = [*messages, said, *map(_answered, calls)]


def _answered(call: Any) -> Mapping[str, str]:
    return {"role": "tool", "tool_call_id": call.id, "content": _result_of(call.function.arguments)}
