"""A trainer pod as the operator asks it for its progress."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from grpo_api.contract.endpoints import TRAINER_PORT


@dataclass
class FakeTrainer:
    """Answers on a trainer's port with `body`, and counts how often it was asked."""

    body: str = ""
    num_asked: int = 0


@contextmanager
def serving_trainer(address: str) -> Iterator[FakeTrainer]:
    """A trainer at an address of this machine."""
    trainer = FakeTrainer()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(trainer.body.encode())
            trainer.num_asked += 1

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer((address, TRAINER_PORT), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield trainer
    finally:
        server.shutdown()
        server.server_close()
