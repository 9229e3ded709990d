"""The ASGI guard in front of vLLM: who may call what, which attempt's trainer may, and whether the engine is
alive and may serve.

vLLM loads it by name (`--middleware`), as the outermost layer. It logs no header and no token.
"""

import asyncio
import hmac
import os
import re
import secrets
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

from grpo_api.contract.endpoints import ROLLOUT_LIVE_PATH, ROLLOUT_READY_PATH
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.routes import (
    ADMIT_PATH,
    ATTEMPT_HEADER,
    HAND_OVER_PATH,
    IDENTITY_PATH,
    INSTANCE_HEADER,
    LOGPROBS_PATH,
    OWN_ROUTES,
    REVOKE_PATH,
    ROUTES,
    SAMPLE_PATH,
    Access,
)
from grpo_runtime.engines.serve.http import (
    BadRequestError,
    bearer_token,
    header,
    read_json,
    send_error,
    send_json,
)
from grpo_runtime.engines.serve.sampling_routes import ServedEngine, answer_logprobs, answer_sample
from grpo_runtime.settings import Tokens, read_rollout_settings

_VERSION_TIMEOUT_SECONDS = 30.0


class Guard:
    """Middleware with the signature vLLM expects; it reads the pod's settings from the environment."""

    def __init__(self, app: ASGIApp) -> None:
        settings = read_rollout_settings(os.environ)
        self._app = app
        self._tokens = settings.tokens
        self._admission = EngineAdmission(instance=secrets.token_hex(8), name=settings.instance)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, refuse or pass on one connection."""
        if scope["type"] == "websocket":
            # closing before accepting is how ASGI says 403
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = (scope["method"], scope["path"])
        access = ROUTES.get(route)
        if access is None:
            await send_error(send, 404, "there is nothing here")
            return
        caller = _caller(bearer_token(scope), self._tokens)
        if access != Access.OPEN and caller is None:
            await send_error(send, 401, "send this job's token as Authorization: Bearer")
            return
        if access == Access.ADMIN and caller != Access.ADMIN:
            await send_error(send, 403, "the data token may sample; this call needs the admin token")
            return
        try:
            if access != Access.OPEN:
                self._check_caller(scope, access)
            if scope["path"] == SAMPLE_PATH and caller == Access.DATA and not self._admission.is_ready:
                await send_error(send, 503, f"engine {self._admission.name} is not admitted to a fleet yet")
            elif route in OWN_ROUTES:
                await self._own(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        except RefusedCallerError as error:
            await send_error(send, 409, str(error))
        except BadRequestError as error:
            await send_error(send, 400, str(error))

    def _check_caller(self, scope: Scope, access: Access) -> None:
        self._admission.require_instance(header(scope, INSTANCE_HEADER))
        if access == Access.ADMIN:
            self._admission.note_attempt(_attempt(scope))

    async def _own(self, scope: Scope, receive: Receive, send: Send) -> None:
        engine: ServedEngine = scope["app"].state.engine_client
        path = scope["path"]
        if path == ROLLOUT_LIVE_PATH:
            # a flag, not a call: the engine does not answer calls while it loads weights
            is_dead = engine.errored
            await send_json(send, 503 if is_dead else 200, {"live": not is_dead})
        elif path == ROLLOUT_READY_PATH:
            is_ready = self._admission.is_ready and not engine.errored
            await send_json(send, 200 if is_ready else 503, {"ready": is_ready})
        elif path == IDENTITY_PATH:
            await send_json(send, 200, self._identity(engine))
        elif path == SAMPLE_PATH:
            await answer_sample(engine, receive, send, name=self._admission.name)
        elif path == LOGPROBS_PATH:
            await answer_logprobs(engine, receive, send)
        elif path == HAND_OVER_PATH:
            await engine.hand_over()
            await send_json(send, 200, self._identity(engine))
        elif path == ADMIT_PATH:
            await self._admit(scope, receive, send, engine)
        elif path == REVOKE_PATH:
            self._admission.revoke()
            await send_json(send, 200, self._identity(engine))

    async def _admit(self, scope: Scope, receive: Receive, send: Send, engine: ServedEngine) -> None:
        version = _version(await read_json(receive), attempt=_attempt(scope))
        async with asyncio.timeout(_VERSION_TIMEOUT_SECONDS):
            found = await engine.get_weight_version()
        # checked again: another attempt may have called in the meantime
        self._admission.note_attempt(version.attempt)
        if found != str(version):
            await send_error(send, 409, f"engine {self._admission.name} holds weights {found}, not {version}")
            return
        self._admission.admit(version)
        await send_json(send, 200, self._identity(engine))

    def _identity(self, engine: ServedEngine) -> dict[str, str | int | bool]:
        admission = self._admission
        return {
            "instance": admission.instance,
            "name": admission.name,
            "attempt": admission.highest_attempt,
            "version": str(admission.admitted or ""),
            "state": "admitted" if admission.is_ready else "waiting",
            "live": not engine.errored,
        }


class RefusedCallerError(Exception):
    """The caller is of an attempt that is over, or means an earlier process of this engine."""


@dataclass
class EngineAdmission:
    """What one engine process remembers of its callers; a new process starts empty.

    `instance` is unique to the process. An engine is ready from its first admission until it is revoked
    or a higher attempt calls it: a weight update in between does not change that.
    """

    instance: str
    name: str
    highest_attempt: int = 0
    admitted: PolicyVersion | None = field(default=None)

    @property
    def is_ready(self) -> bool:
        """Whether a trainer has admitted this engine to its fleet."""
        return self.admitted is not None

    def note_attempt(self, attempt: int) -> None:
        """Note a call from a trainer of `attempt`.

        Raises RefusedCallerError when a later attempt has called before.
        """
        if attempt < self.highest_attempt:
            raise RefusedCallerError(
                f"attempt {attempt} is over: engine {self.name} belongs to attempt {self.highest_attempt}"
            )
        if attempt > self.highest_attempt:
            self.highest_attempt = attempt
            self.admitted = None

    def require_instance(self, expected: str | None) -> None:
        """Raises RefusedCallerError when the caller means another process than this one."""
        if expected is not None and expected != self.instance:
            raise RefusedCallerError(
                f"engine {self.name} was restarted: this is instance {self.instance}, not {expected}"
            )

    def admit(self, version: PolicyVersion) -> None:
        """Let the engine serve; its weights are those of `version`."""
        self.admitted = version

    def revoke(self) -> None:
        """Take the engine out of service until it is admitted again."""
        self.admitted = None


def _caller(token: str, tokens: Tokens) -> Access | None:
    """Whose token this is. Both are compared, each in constant time."""
    given = token.encode()
    is_admin = hmac.compare_digest(given, tokens.admin.encode())
    is_data = hmac.compare_digest(given, tokens.data.encode())
    if is_admin:
        return Access.ADMIN
    return Access.DATA if is_data else None


def _attempt(scope: Scope) -> int:
    text = header(scope, ATTEMPT_HEADER) or ""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise BadRequestError(f"the header {ATTEMPT_HEADER} must carry the trainer's attempt, from 1")
    return int(text)


def _version(body: object, *, attempt: int) -> PolicyVersion:
    text = body.get("version") if isinstance(body, dict) else None
    try:
        version = PolicyVersion.parse(str(text))
    except ValueError as error:
        raise BadRequestError(str(error)) from error
    if version.attempt != attempt:
        raise BadRequestError(f"version {version} is not of attempt {attempt}")
    return version
