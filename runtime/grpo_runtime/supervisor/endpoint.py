"""The supervisor's HTTP endpoint: serves how far training is, from a process that training cannot block."""

import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler

from grpo_api.contract.endpoints import METRICS_PATH, POSITIONS_PATH, PROGRESS_PATH, TRAINER_HEALTH_PATH
from grpo_runtime.process.any_address import ANY_ADDRESS
from grpo_runtime.supervisor.one_thread_server import OneThreadServer

Serve = Callable[[], bytes | None]
"""The body of an answer; None while there is nothing to tell."""


class Endpoint:
    """Serves /progress, /metrics, /positions and /healthz until it is closed."""

    def __init__(
        self, *, progress: Serve, metrics: Serve, positions: Serve, port: int, host: str = ANY_ADDRESS
    ) -> None:
        """Listen on `port` of `host`, by default of every address; port 0 picks a free one."""
        self.asked_at: float | None = None
        """When somebody last asked for the progress, on the monotonic clock."""
        self._progress = progress
        served = {
            PROGRESS_PATH: (self._asked_for_progress, "application/json"),
            METRICS_PATH: (metrics, "text/plain; version=0.0.4; charset=utf-8"),
            POSITIONS_PATH: (positions, "application/json"),
            TRAINER_HEALTH_PATH: (lambda: b"ok\n", "text/plain"),
        }
        handler = type("Handler", (_Handler,), {"served": served})
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

    def _asked_for_progress(self) -> bytes | None:
        self.asked_at = time.monotonic()
        return self._progress()


class _Handler(BaseHTTPRequestHandler):
    """Answers one request, and closes: HTTP/1.0, the default of the base class, keeps no connection."""

    served: Mapping[str, tuple[Serve, str]]
    timeout = 1.0
    server_version = "grpo-runtime"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path not in self.served:
            self._answer(404, f"there is only {', '.join(self.served)}\n".encode(), "text/plain")
            return
        serve, content_type = self.served[self.path]
        content = serve()
        if content is None:
            self._answer(404, b"nothing yet: trainer pod 0 reports, once training began\n", "text/plain")
        else:
            self._answer(200, content, content_type)

    def _answer(self, status: int, content: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes and scrapes come every few seconds."""
