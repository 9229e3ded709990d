"""The ASGI guard in front of a following server: the routes of the OpenAI API that sample, for who has the
token. Every answer says which weights it begins with.

vLLM loads it by name (`--middleware`), as the outermost layer. It logs no header and no token.
"""

import asyncio
import hmac
import os
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grpo_api.contract.endpoints import ROLLOUT_LIVE_PATH, ROLLOUT_READY_PATH
from grpo_runtime.engines.serve.http import bearer_token, send_error, send_json
from grpo_runtime.errors import UserError

TOKEN_FILE = "GRPO_FOLLOW_TOKEN_FILE"  # noqa: S105 - the name of a variable
VERSION_HEADER = b"x-grpo-weight-version"
ROUTES = frozenset(
    {
        ("GET", "/v1/models"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/metrics"),
    }
)
"""Routes that may be called with the token. All else that vLLM serves answers 404."""


class Served:
    """Which weights this process serves, and whether requests may begin; one object, which the follower
    writes and the guard reads."""

    def __init__(self) -> None:
        self.version = ""
        self.may_begin = asyncio.Event()
        """Not set while the weights change. A request that vLLM got then would be sampled with the new ones,
        and its answer would name the old ones."""
        self.may_begin.set()


SERVED = Served()


def read_token(path: Path) -> str:
    """The token that callers must send. Raises UserError where there is none: nobody, or everybody, could
    call the server."""
    token = path.read_text().strip() if path.is_file() else ""
    if not token:
        raise UserError(f"--token {path} is no file with a token: write one that callers send as Bearer")
    return token


class FollowGuard:
    """Middleware with the signature vLLM expects."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._token = read_token(Path(os.environ[TOKEN_FILE])).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, refuse or pass on one connection."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] in (ROLLOUT_LIVE_PATH, ROLLOUT_READY_PATH):
            is_dead = scope["app"].state.engine_client.errored
            await send_json(send, 503 if is_dead else 200, {"live": not is_dead, "version": SERVED.version})
        elif (scope["method"], scope["path"]) not in ROUTES:
            await send_error(send, 404, "there is nothing here")
        elif not hmac.compare_digest(bearer_token(scope).encode(), self._token):
            await send_error(send, 401, "send this server's token as Authorization: Bearer")
        else:
            await SERVED.may_begin.wait()
            await self._app(scope, receive, _with_version(send))


def _with_version(send: Send) -> Send:
    version = SERVED.version.encode()

    async def send_with_version(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), (VERSION_HEADER, version)]}
        await send(message)

    return send_with_version
