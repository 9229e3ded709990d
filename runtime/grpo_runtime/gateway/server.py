"""The gateway's routes, for clients of OpenAI's API and for those that bring tokens."""

import asyncio
import hashlib
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from grpo_runtime.engines.serve.http import BadRequestError, bearer_token, read_json
from grpo_runtime.errors import KnownError
from grpo_runtime.gateway.answers import AnswerHead, chat_answer, chat_events, generate_answer
from grpo_runtime.gateway.chat_request import (
    ChatRequest,
    Terms,
    TokenRequest,
    canonical,
    read_chat_request,
    read_token_request,
)
from grpo_runtime.gateway.gateway import Gateway
from grpo_runtime.gateway.refusals import BadFieldError, LimitReachedError, UnknownKeyError
from grpo_runtime.gateway.session import Answer
from grpo_runtime.rollouts.interface import RequestRefusedError

CHAT_PATH, MODELS_PATH, GENERATE_PATH = "/v1/chat/completions", "/v1/models", "/inference/v1/generate"
_SERVED = f"this address serves {CHAT_PATH}, {MODELS_PATH} and {GENERATE_PATH}"
_MAX_BODY_BYTES = 64 << 20
_RETRIES_HEADER = "x-stainless-retry-count"
"""What OpenAI's clients count when they send a call again."""
_CLIENT_LEFT = 499


def application(gateway: Gateway, *, given: Mapping[str, float]) -> Starlette:
    """The ASGI application of a gateway. `given` are the job's values of what it decides."""
    template = gateway.model.template
    terms = Terms(
        given={**given, "chat_template_kwargs": template.arguments, "chat_template": template.template},
        vocab_size=gateway.model.vocab_size,
        end_ids=template.end_ids,
    )
    routes = _Routes(gateway, terms=terms)
    return Starlette(
        routes=[
            Route(CHAT_PATH, routes.chat, methods=["POST"]),
            Route(MODELS_PATH, routes.models, methods=["GET"]),
            Route(GENERATE_PATH, routes.generate, methods=["POST"]),
            Route("/{path:path}", _not_served, methods=["GET", "POST"]),
        ]
    )


class Read(Protocol):
    """Reads the request in a body."""

    def __call__(self, body: Mapping[str, Any], *, terms: Terms) -> ChatRequest | TokenRequest: ...


class _Routes:
    def __init__(self, gateway: Gateway, *, terms: Terms) -> None:
        self._gateway = gateway
        self._terms = terms
        self._numbers = itertools.count()

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""

        def write(answer: Answer) -> Response:
            asked = answer.turn.asked
            head = AnswerHead(f"chatcmpl-{next(self._numbers)}", created=int(time.time()))
            tokenizer = self._gateway.model.decoder.tokenizer
            if isinstance(asked, ChatRequest) and asked.is_streamed:
                events = chat_events(answer, head=head, tokenizer=tokenizer)
                return StreamingResponse(events, media_type="text/event-stream")
            return JSONResponse(chat_answer(answer, head=head, tokenizer=tokenizer))

        return await self._answered(request, read=read_chat_request, write=write)

    async def generate(self, request: Request) -> Response:
        """POST /inference/v1/generate."""

        def write(answer: Answer) -> Response:
            return JSONResponse(generate_answer(answer, answer_id=f"generate-{next(self._numbers)}"))

        return await self._answered(request, read=read_token_request, write=write)

    async def models(self, _: Request) -> Response:
        """GET /v1/models."""
        model = self._gateway.model
        card = {
            "id": model.name,
            "object": "model",
            "created": 0,
            "owned_by": "grpo",
            "max_model_len": model.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def _answered(
        self,
        request: Request,
        *,
        read: Read,
        write: Callable[[Answer], Response],
    ) -> Response:
        try:
            key = bearer_token(request.scope)
            terms = replace(self._terms, is_trained=self._gateway.session(key).is_trained)
            body = await read_json(request.receive, max_bytes=_MAX_BODY_BYTES)
            answer = await _while_connected(
                request,
                self._gateway.answer(
                    key,
                    await read_beside(read, body, terms=terms),
                    identity=_identity(body),
                    is_sent_again=request.headers.get(_RETRIES_HEADER, "0") != "0",
                ),
            )
        except BadRequestError as error:
            return _error(400, str(error), param=error.field if isinstance(error, BadFieldError) else "")
        except UnknownKeyError:
            return _error(401, "no open session has this key: it ends with its episode")
        except LimitReachedError as error:
            return _error(429, str(error))
        except RequestRefusedError as error:
            return _error(400, error.said)
        except KnownError as error:
            # of the engines: the agent is ended with it
            return _error(503, str(error))
        return write(answer) if answer is not None else Response(status_code=_CLIENT_LEFT)


async def read_beside(read: Read, body: Mapping[str, Any], *, terms: Terms) -> ChatRequest | TokenRequest:
    """The request in a body. One that is not trained is read beside the event loop: it may have a schema, at
    which it takes long to look."""
    if terms.is_trained:
        return read(body, terms=terms)
    return await asyncio.to_thread(read, body, terms=terms)


def _identity(body: Mapping[str, Any]) -> str:
    """The same for bodies that are equal. Raises BadRequestError for text that no tokenizer takes."""
    try:
        return hashlib.sha256(canonical(body).encode()).hexdigest()
    except (UnicodeEncodeError, RecursionError) as error:
        raise BadRequestError(f"the body has text that is not Unicode, or is too deep: {error}") from error


async def _while_connected(request: Request, answering: Awaitable[Answer]) -> Answer | None:
    """The answer; None where nobody waits for it any more, which gives it up."""
    answer = asyncio.ensure_future(answering)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return None if not answer.done() or answer.cancelled() else answer.result()
    finally:
        both = answer, leaving
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _not_served(_: Request) -> Response:
    return _error(404, _SERVED)


def _error(status: int, sentence: str, *, param: str = "") -> Response:
    """An error as OpenAI's clients read it, which do not send the call again."""
    error = {"message": sentence, "type": "invalid_request_error", "param": param or None, "code": status}
    return JSONResponse({"error": error}, status_code=status, headers={"x-should-retry": "false"})
