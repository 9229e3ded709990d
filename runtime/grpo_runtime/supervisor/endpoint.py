"""The supervisor's HTTP endpoint: serves how far training is, from a process that training cannot block.

Its server has one thread, which hundreds of idle or slow connections neither block nor make grow. A
connection costs nothing but its place until its whole request is in the kernel's buffer. Only then the
handler runs, which therefore never waits for a client.
"""

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from urllib.parse import parse_qs

from grpo_api.contract.endpoints import (
    ENGINES_PARAMETER,
    METRICS_PATH,
    POSITIONS_PATH,
    PROGRESS_PATH,
    TRAINER_HEALTH_PATH,
)
from grpo_runtime.process.network import ANY_ADDRESS
from grpo_runtime.supervisor.pages import PAGE_PATHS, PageRefusedError, Pages

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
"""How many may wait with an incomplete request. For a newer one the oldest is closed."""
MAX_REQUEST_BYTES = 16 * 1024
REQUEST_SECONDS = 5.0
"""How long a client may take to send its request."""
_ACCEPTED_AT_ONCE = 64
_ANSWER_BUFFER_BYTES = 256 * 1024
"""Larger than an answer, so that writing it does not wait for the client."""
_UNREAD_ANSWER_MS = 10_000
"""How long the kernel keeps an answer that the client does not read."""
_END_OF_REQUEST = b"\r\n\r\n"
_MOST_DIGITS = 6

Serve = Callable[[], bytes | None]
"""The body of an answer; None while there is nothing to report."""
ServeMetrics = Callable[[int | None], bytes]
"""The metrics, given how many engines the job asks for; None where nobody has said."""


class Endpoint:
    """Serves /progress, /metrics, /positions and /healthz until it is closed, and `pages` where there are
    any."""

    def __init__(
        self,
        *,
        progress: Serve,
        metrics: ServeMetrics,
        positions: Serve,
        port: int,
        pages: Pages | None = None,
        host: str = ANY_ADDRESS,
    ) -> None:
        """Listen on `port` of `host`, by default of every address; port 0 picks a free one."""
        self.asked_at: float | None = None
        """When somebody last asked for the progress, on the monotonic clock."""
        self._num_engines: int | None = None
        """How many engines the job asks for, as the operator said last."""
        served = {
            PROGRESS_PATH: (progress, "application/json"),
            METRICS_PATH: (lambda: metrics(self._num_engines), "text/plain; version=0.0.4; charset=utf-8"),
            POSITIONS_PATH: (positions, "application/json"),
            TRAINER_HEALTH_PATH: (lambda: b"ok\n", "text/plain"),
        }
        own = {"served": served, "on_progress": self._asked_for_progress, "pages": pages}
        handler = type("Handler", (_Handler,), own)
        self._server = OneThreadServer((host, port), handler)
        self._thread = threading.Thread(target=self._server.serve, name="endpoint", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        port: int = self._server.server_address[1]
        return port

    def close(self) -> None:
        """Stop listening."""
        self._server.stop()
        self._thread.join()

    def _asked_for_progress(self, query: str) -> None:
        self.asked_at = time.monotonic()
        said = parse_qs(query).get(ENGINES_PARAMETER, [""])[-1]
        if said.isdecimal() and len(said) <= _MOST_DIGITS:
            self._num_engines = int(said)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request, and closes: HTTP/1.0, the default of the base class, keeps no connection."""

    served: Mapping[str, tuple[Serve, str]]
    on_progress: Callable[[str], None]
    pages: Pages | None
    timeout = 1.0
    server_version = "grpo-runtime"
    sys_version = ""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if self.pages is not None and path in PAGE_PATHS:
            self._hand_over(self.pages, path, query)
            return
        if path not in self.served:
            self._answer(404, f"there is only {', '.join(self.served)}\n".encode(), "text/plain")
            return
        if path == PROGRESS_PATH:
            self.on_progress(query)
        serve, content_type = self.served[path]
        content = serve()
        if content is None:
            self._answer(404, b"nothing yet: trainer pod 0 reports, once training began\n", "text/plain")
        else:
            self._answer(200, content, content_type)

    def _hand_over(self, pages: Pages, path: str, query: str) -> None:
        """Let another process answer, and close the connection here only."""
        try:
            pages.answer(path, query, connection=self.connection, client=self.client_address[0])
        except PageRefusedError as error:
            self._answer(error.status, f"{error}\n".encode(), "text/plain")
        else:
            # the server would end it for the other process too
            os.close(self.connection.detach())

    def _answer(self, status: int, content: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes and scrapes come every few seconds."""


class OneThreadServer(TCPServer):
    """Answers one request of each connection, in the thread that calls `serve`."""

    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        """Listen on `address`. Raises OSError when its port is taken."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)
        self.socket.setblocking(False)
        # Connections inherit both.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ANSWER_BUFFER_BYTES)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_ANSWER_MS)
        self._stop = os.eventfd(0)
        self._epoll = select.epoll()
        self._epoll.register(self.socket, select.EPOLLIN)
        self._epoll.register(self._stop, select.EPOLLIN)
        self._waiting: dict[int, _Connection] = {}

    def server_bind(self) -> None:
        """Bind, with an IPv6 address also for connections of IPv4, where that is any address."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def serve(self) -> None:
        """Answer requests until `stop` is called, then close everything."""
        while self._stop not in (ready := self._ready()):
            for descriptor in ready:
                if connection := self._waiting.get(descriptor):
                    self._answer_if_complete(connection)
            if self.fileno() in ready:
                self._accept()
            self._close_late()
        while oldest := self._oldest:
            self._close(oldest)
        self.server_close()
        self._epoll.close()
        os.close(self._stop)

    def stop(self) -> None:
        """Let `serve` return."""
        os.eventfd_write(self._stop, 1)

    def _ready(self) -> set[int]:
        """The descriptors at which something arrived, at the latest when the oldest connection is late."""
        oldest = self._oldest
        timeout = None if oldest is None else max(0.0, oldest.until - time.monotonic())
        return {descriptor for descriptor, _ in self._epoll.poll(timeout)}

    @property
    def _oldest(self) -> "_Connection | None":
        return next(iter(self._waiting.values()), None)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = self.socket.accept()
            except OSError:  # nobody is left, or has gone again before we came
                return
            if len(self._waiting) == MAX_CONNECTIONS and (oldest := self._oldest):
                self._close(oldest)
            connection = _Connection(accepted, address)
            self._waiting[accepted.fileno()] = connection
            try:
                # Edge-triggered: half a request does not wake us again before more of it arrives.
                self._epoll.register(accepted, select.EPOLLIN | select.EPOLLET)
            except OSError:  # the kernel has no room: the thread must continue for the others
                logger.exception("a connection from %s could not be watched", address)
                self._close(connection)

    def _answer_if_complete(self, connection: "_Connection") -> None:
        """Answer a request that has arrived as a whole, and close connections from which none will come."""
        try:
            arrived = connection.socket.recv(MAX_REQUEST_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:  # the client broke it off
            arrived = b""
        if _END_OF_REQUEST in arrived:
            self._forget(connection)
            try:
                self.finish_request(connection.socket, connection.address)
            except (ConnectionError, TimeoutError) as error:
                logger.debug("%s went before it had its answer: %s", connection.address, error)
            except Exception:  # one request must not end the thread that answers all others
                logger.exception("a request from %s could not be answered", connection.address)
            finally:
                self.shutdown_request(connection.socket)
        elif not arrived or len(arrived) == MAX_REQUEST_BYTES:
            self._close(connection)

    def _close_late(self) -> None:
        now = time.monotonic()
        while (oldest := self._oldest) and oldest.until <= now:
            self._close(oldest)

    def _close(self, connection: "_Connection") -> None:
        self._forget(connection)
        connection.socket.close()

    def _forget(self, connection: "_Connection") -> None:
        self._epoll.unregister(connection.socket)
        del self._waiting[connection.socket.fileno()]


class _Connection:
    """A client whose request is not complete yet."""

    def __init__(self, accepted: socket.socket, address: tuple[str, int]) -> None:
        self.socket = accepted
        self.address = address
        self.until = time.monotonic() + REQUEST_SECONDS
