"""A reward service over real HTTP that does what a test tells it: a fake of what users run."""

import asyncio
import datetime
import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from skipping_clock import SkippingClock

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeRewardService:
    """Scores a completion by its length, unless the next of `script` says otherwise. `asked` are the JSON
    bodies, and `headers` what came with them."""

    def __init__(self) -> None:
        self.url = ""
        self.script: list[Answer] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.num_at_once = self.most_at_once = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.asked.append(asked)
        self.headers.append(dict(request.headers))
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        try:
            await asyncio.sleep(0)
            if self.script:
                return await self.script.pop(0)(request)
            return web.json_response({"rewards": [len(text) for text in asked["completions"]]})
        finally:
            self.num_at_once -= 1


def status(number: int, *, text: str = "") -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=number, text=text)

    return answer


def body(content: Any) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(content)

    return answer


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


TIMEOUT_SECONDS = 30.0
"""Of a function whose service is silent."""


def silence(clock: SkippingClock, *, of: int = 1) -> Answer:
    """Answers nothing. Once so many calls wait, their time is over."""
    numbers = itertools.count(1)

    async def answer(request: web.Request) -> web.StreamResponse:
        if next(numbers) % of == 0:
            # the client rounds up to whole seconds
            clock.skip(TIMEOUT_SECONDS + 1)
        return await hang(request)

    return answer


async def cut_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"rewards": [1')
    assert request.transport is not None
    request.transport.close()
    return response


def raw(content: bytes) -> Answer:
    """These bytes in place of an answer of HTTP, as from a proxy that is broken."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(content)
        request.transport.close()
        return web.Response()

    return answer


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(64):
        await response.write(b" " * (1 << 20))
    return response


@asynccontextmanager
async def serving(*, certificate: Path | None = None, port: int = 0) -> AsyncIterator[FakeRewardService]:
    """The service at 127.0.0.1; over TLS with the `certificate`, a PEM file with its key."""
    service, application = FakeRewardService(), web.Application(client_max_size=1 << 30)
    application.router.add_post("/score", service.answer)
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=context)
        await site.start()
        found = runner.addresses[0][1]
        service.url = f"{'http' if context is None else 'https'}://localhost:{found}/score"
        yield service
    finally:
        await runner.cleanup()


def write_certificate(folder: Path) -> tuple[Path, str]:
    """A file with a certificate for `localhost` with its key, and the certificate alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM).decode()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    path = folder / "server.pem"
    path.write_text(private + public)
    return path, public
