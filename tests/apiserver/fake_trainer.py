"""A trainer pod as the operator asks it for its progress."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from grpo_api.contract.endpoints import TRAINER_PORT


@dataclass
class FakeTrainer:
    """Answers on a trainer's port with `body`, whatever it is asked."""

    body: str = ""
    paths: list[str] = field(default_factory=list)
    """What it was asked for, the newest last."""


@contextmanager
def serving_trainer(address: str) -> Iterator[FakeTrainer]:
    """A trainer at an address of this machine."""
    trainer = FakeTrainer()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(trainer.body.encode())
            trainer.paths.append(self.path)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer((address, TRAINER_PORT), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield trainer
    finally:
        server.shutdown()
        server.server_close()
