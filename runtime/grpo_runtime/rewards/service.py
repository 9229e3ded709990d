"""A reward function behind HTTP: chunks are posted to a service, within a deadline, and again after an
outage. docs/reference.md says for those who write a service what is posted and answered.
"""

import asyncio
import hashlib
import json
import logging
import ssl
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from grpo_runtime.errors import RewardServiceUnreachableError, UserError, first_line
from grpo_runtime.rewards.chunk import Column, column_of_reply, failed_column
from grpo_runtime.rewards.functions import clean_reward
from grpo_runtime.rewards.types import FailureKind, Outage, RewardFunction, RewardRequest, RewardService

_log = logging.getLogger(__name__)

PROTOCOL = 1
AUTHORITY = "ca.crt"
"""The key of a Secret that is no header."""
_FEWEST_SECRET_CHARACTERS = 4
MAX_ANSWER_BYTES = 1 << 24
_MAX_STEPS = 64
"""Of so many steps and evaluations it is remembered whether the service answers."""
_CONNECT_SECONDS = 10.0
_OUTAGES = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
"""Answers after which the same request is sent again. 500 is not among them: it is how a service says that
its own code raised."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long an outage is borne, in seconds. A request that is sent within it may take its time."""

    first_pause: float = 1.0
    longest_pause: float = 30.0
    """Pauses double up to this one."""
    total: float = 300.0
    """A service that is rolled out anew is back by then."""


class ServiceClient:
    """Calls one reward service, for several chunks at a time."""

    def __init__(
        self, function: RewardFunction, service: RewardService, *, patience: Patience | None = None
    ) -> None:
        self._name = function.name
        self._service = service
        self._patience = patience or Patience()
        self._timeout = aiohttp.ClientTimeout(
            total=function.timeout_seconds, sock_connect=min(_CONNECT_SECONDS, function.timeout_seconds)
        )
        self._timeout_seconds = function.timeout_seconds
        self._is_free = asyncio.Semaphore(function.workers)
        self._silence = _Silence()
        self._out_since: float | None = None
        """Start of the outage on the event loop's clock; None while the service answers."""
        self._why_out = ""
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Read the Secret; the service itself may come later. Raises UserError when the Secret cannot be
        used."""
        service_headers(self._service)
        context = ssl.create_default_context()
        authority = authority_file(self._service)
        if authority is not None:
            try:
                context.load_verify_locations(authority)
            except ssl.SSLError as error:
                raise UserError(
                    f"rewards: the key {authority.name} of the Secret {self._service.secret} is no "
                    "certificate in PEM"
                ) from error
        connector = aiohttp.TCPConnector(ssl=context)
        # cookies would make one answer depend on another
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def score(self, request: RewardRequest) -> Column:
        """The rewards of a chunk. Its deadline is that of one request. A chunk that misses it has no rewards,
        unless the service answers nothing at all of the step or evaluation, nor of what is asked at the same
        time, which is an outage.

        Raises RewardServiceUnreachableError at the end of our patience with an outage, and UserError for a
        certificate that cannot be trusted.
        """
        try:
            body, key = request_body(request, name=self._name, job=self._service.job)
        except ValueError as error:
            reason = f"a column cannot be written as JSON: {error}"
            return failed_column(self._name, request, reason=reason, kind=FailureKind.RAISED)
        async with self._is_free:
            of = (request.step, request.is_evaluation)
            try:
                with self._silence.asks(key, of=of) as answers:
                    answer = await self._post_with_patience(body, key=key, answers=answers)
                values, refused = read_answer(answer, num_samples=len(request.completions))
            except BadServiceAnswerError as error:
                return failed_column(self._name, request, reason=str(error), kind=FailureKind.RAISED)
            except TimeoutError:
                reason = f"{self._service.url} did not answer within {self._timeout_seconds:g} s"
                return failed_column(self._name, request, reason=reason, kind=FailureKind.LOST)
        reply = {"rewards": values, "refused": refused, "metrics": {}, "is_misfit": False}
        return column_of_reply(self._name, request, reply)

    @property
    def outage(self) -> Outage | None:
        """Why requests are sent again now; None while the service answers. May be read in any thread."""
        out_since = self._out_since
        if out_since is None:
            return None
        seconds = time.monotonic() - out_since
        return Outage(url=self._service.url, why=self._why_out, seconds=seconds)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _post_with_patience(self, body: bytes, *, key: str, answers: "_Answers") -> bytes:
        began, pause = time.monotonic(), self._patience.first_pause
        while True:
            try:
                return await self._post(body, key=key, answers=answers)
            except _OutageError as error:
                self._out_since = began if self._out_since is None else self._out_since
                self._why_out = str(error)
                if time.monotonic() + pause - began > self._patience.total:
                    raise RewardServiceUnreachableError(
                        f"reward {self._name}: the service {self._service.url} was out of reach for "
                        f"{time.monotonic() - began:.0f} s: {error}"
                    ) from error
                _log.warning(
                    "reward %s: %s: %s; asking again in %g s", self._name, self._service.url, error, pause
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._patience.longest_pause)

    async def _post(self, body: bytes, *, key: str, answers: "_Answers") -> bytes:
        """The body of an answer 200. Raises TimeoutError, _OutageError and BadServiceAnswerError."""
        assert self._session is not None
        secrets = service_headers(self._service)
        headers = {**secrets, "Content-Type": "application/json", "Idempotency-Key": key}
        try:
            async with self._session.post(
                self._service.url,
                data=body,
                headers=headers,
                timeout=self._timeout,
                # a redirect would take the headers to another host
                allow_redirects=False,
            ) as response:
                answer = await _bounded(response)
        except aiohttp.ClientConnectorCertificateError as error:
            raise UserError(
                f"reward {self._name}: the certificate of {self._service.url} cannot be trusted: put the "
                "authority that signed it under ca.crt into the Secret of service.headersSecret"
            ) from error
        except aiohttp.ConnectionTimeoutError as error:
            raise _OutageError("no connection in time") from error
        except aiohttp.ClientConnectionError as error:
            raise _OutageError(without_secrets(first_line(error), headers=secrets)) from error
        except TimeoutError as error:
            if not answers.are_missing:
                raise
            raise _OutageError(f"no answer within timeoutSeconds, {self._timeout_seconds:g} s") from error
        except aiohttp.ClientPayloadError as error:
            raise _OutageError("the answer was cut off") from error
        except aiohttp.ClientResponseError:
            # it quotes the answer, of a broken proxy, which may have our headers in it
            raise _OutageError("its answer is not HTTP") from None
        if response.status in _OUTAGES:
            raise _OutageError(f"HTTP {response.status}")
        self._silence.ends()
        self._out_since = None
        if response.status != HTTPStatus.OK:
            said = without_secrets(answer[:2000].decode(errors="replace"), headers=secrets).strip()
            raise BadServiceAnswerError(
                f"HTTP {response.status} of {self._service.url}: {said[:300] or 'no text'}"
            )
        return answer


class BadServiceAnswerError(Exception):
    """The answer of a service is no list of rewards. The message says why."""


class _OutageError(Exception):
    """The service cannot be reached, or says that it is overloaded."""


@dataclass(eq=False)
class _Answers:
    """Whether a service answers what it is asked of a step, or of an evaluation."""

    is_answered: bool = False
    """A request of it was answered, or any other one while one of it was open."""
    keys: set[str] = field(default_factory=set)
    """Its requests, and those which were open at the same time."""

    @property
    def are_missing(self) -> bool:
        """Whether several requests have no answer and none has one. A single one may itself be the reason."""
        return not self.is_answered and len(self.keys) > 1


class _Silence:
    """Tells a service that hangs from a chunk that takes it too long.

    It looks at the chunks of a step, or of an evaluation, because an answer to one says little about a later
    one. Steps whose chunks are asked for at the same time, as in asynchronous training, count for each other
    while they are.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[int, bool], _Answers] = OrderedDict()
        """By step and whether it is an evaluation, those asked for last at the end."""
        self._open: list[tuple[str, _Answers]] = []

    @contextmanager
    def asks(self, key: str, *, of: tuple[int, bool]) -> Iterator[_Answers]:
        """While a request of a step is open, or of the evaluation before it."""
        answers = self._answers.setdefault(of, _Answers())
        self._answers.move_to_end(of)
        while len(self._answers) > _MAX_STEPS:
            self._answers.popitem(last=False)
        opened = (key, answers)
        self._open.append(opened)
        keys = {one for one, _ in self._open}
        for _, other in self._open:
            other.keys |= keys
        try:
            yield answers
        finally:
            self._open.remove(opened)

    def ends(self) -> None:
        """A request was answered, whatever the answer was."""
        for _, answers in self._open:
            answers.is_answered = True


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body. Raises BadServiceAnswerError when it is too long."""
    pieces, length = [], 0
    async for piece in response.content.iter_any():
        length += len(piece)
        if length > MAX_ANSWER_BYTES:
            raise BadServiceAnswerError(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def request_body(request: RewardRequest, *, name: str, job: str) -> tuple[bytes, str]:
    """The JSON that is posted for a chunk, and its idempotency key, which is the same for the same content.

    Raises ValueError for a column that holds NaN or an infinity, which JSON has not.
    """
    content = {
        "protocol": PROTOCOL,
        "job": job,
        "reward": name,
        "step": request.step,
        "totalSteps": request.total_steps,
        "groupIds": request.group_ids,
        "prompts": request.prompts,
        "completions": request.completions,
        "completionIds": request.completion_ids,
        "prefills": request.prefills,
        "columns": request.columns,
    }
    key = hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
    return json.dumps({**content, "idempotencyKey": key}, allow_nan=False).encode(), key


def read_answer(body: bytes, *, num_samples: int) -> tuple[list[float | None], list[tuple[int, str]]]:
    """The rewards of an answer, [num_samples], and which of them were refused and why.

    Raises BadServiceAnswerError when it holds no list of so many rewards.
    """
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise BadServiceAnswerError(f"its answer is no JSON: {error}") from error
    rewards = answer.get("rewards") if isinstance(answer, dict) else None
    if not isinstance(rewards, list):
        raise BadServiceAnswerError('its answer is no object with a list "rewards"')
    if len(rewards) != num_samples:
        raise BadServiceAnswerError(f"it answered {len(rewards)} rewards for {num_samples} completions")
    values: list[float | None] = []
    refused = []
    for index, reward in enumerate(rewards):
        try:
            values.append(clean_reward(reward))
        except ValueError as error:
            values.append(None)
            refused.append((index, str(error)))
    return values, refused


def service_headers(service: RewardService) -> dict[str, str]:
    """The headers that the Secret of a service holds now: its keys, without AUTHORITY, and their values.

    Raises UserError when the Secret is not there, or when a value is no header.
    """
    if service.folder is None:
        return {}
    if not service.folder.is_dir():
        raise UserError(f"rewards: the Secret {service.secret} of {service.url} is not mounted")
    headers = {}
    # a mounted Secret holds its keys as links, beside links of its own that begin with two dots
    for path in sorted(service.folder.glob("[!.]*")):
        value = path.read_text().strip()
        if path.name != AUTHORITY:
            if not value.isprintable() or not value:
                raise UserError(f"rewards: the key {path.name} of the Secret {service.secret} is no header")
            headers[path.name] = value
    return headers


def authority_file(service: RewardService) -> Path | None:
    """The authority that signs the certificate of the service, where the Secret names one."""
    path = None if service.folder is None else service.folder / AUTHORITY
    return path if path is not None and path.is_file() else None


def without_secrets(text: Any, *, headers: dict[str, str]) -> str:
    """`text` without any value of a header: a service may repeat what it was sent."""
    cleaned = str(text)
    for value in headers.values():
        for part in {value, *value.split()}:
            if len(part) >= _FEWEST_SECRET_CHARACTERS:
                cleaned = cleaned.replace(part, "***")
    return cleaned
