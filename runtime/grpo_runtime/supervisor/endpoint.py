"""The supervisor's HTTP endpoint: serves what rank 0 wrote, from a process that training cannot block."""

import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from grpo_api.contract.endpoints import METRICS_PATH, PROGRESS_PATH, TRAINER_HEALTH_PATH
from grpo_runtime.process.any_address import ANY_ADDRESS
from grpo_runtime.report.progress import PROGRESS_FILE
from grpo_runtime.report.prometheus import PROMETHEUS_FILE
from grpo_runtime.supervisor.one_thread_server import OneThreadServer

_FILES = {
    PROGRESS_PATH: (PROGRESS_FILE, "application/json"),
    METRICS_PATH: (PROMETHEUS_FILE, "text/plain; version=0.0.4; charset=utf-8"),
}


class Endpoint:
    """Serves /progress, /metrics and /healthz from the files in `run_dir` until it is closed."""

    def __init__(self, run_dir: Path, *, port: int, host: str = ANY_ADDRESS) -> None:
        """Listen on `port` of `host`, by default of every address; port 0 picks a free one."""
        handler = type("Handler", (_Handler,), {"run_dir": run_dir})
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


class _Handler(BaseHTTPRequestHandler):
    """Answers one request, and closes: HTTP/1.0, the default of the base class, keeps no connection."""

    run_dir: Path
    timeout = 1.0
    server_version = "grpo-runtime"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path == TRAINER_HEALTH_PATH:
            self._answer(200, b"ok\n", "text/plain")
        elif self.path in _FILES:
            name, content_type = _FILES[self.path]
            self._answer_file(self.run_dir / name, content_type)
        else:
            known = ", ".join([PROGRESS_PATH, METRICS_PATH, TRAINER_HEALTH_PATH])
            self._answer(404, f"there is only {known}\n".encode(), "text/plain")

    def _answer_file(self, path: Path, content_type: str) -> None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            self._answer(404, b"nothing yet: trainer pod 0 reports, once training began\n", "text/plain")
            return
        self._answer(200, content, content_type)

    def _answer(self, status: int, content: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes and scrapes come every few seconds."""
