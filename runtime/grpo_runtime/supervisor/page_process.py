"""The process that answers one request for a page of the run: standard output is the connection.

It runs beside training, so it is the last to get a core, and ends by itself after PAGE_SECONDS.
"""

import os
import signal
import sys
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qsl

from grpo_api.contract.endpoints import REPORT_PATH, SAMPLES_PATH
from grpo_api.contract.versions import SchemaSkewError
from grpo_runtime.errors import UserError
from grpo_runtime.process.free_memory import free_memory
from grpo_runtime.process.lifetime import die_with

PAGE_SECONDS = 60
"""How long making and sending it may take."""
MOST_BYTES = 64 * 1024 * 1024
"""Largest answer."""
FREE_BYTES = 512 * 1024 * 1024
"""Memory that must be free: the page of 5,000 steps takes half of it."""
MOST_GROUPS = 64
"""Most groups of completions in an answer."""


def main(arguments: Sequence[str]) -> None:
    """Answer the request for a path with its query about an output directory; dies with the process of the
    last argument."""
    path, query, output_dir, parent = arguments
    die_with(int(parent))
    signal.alarm(PAGE_SECONDS)
    os.nice(19)
    sys.stdout.buffer.write(answer(path, query, output_dir=Path(output_dir), free=free_memory()))
    sys.stdout.buffer.flush()


def answer(path: str, query: str, *, output_dir: Path, free: int) -> bytes:
    """The whole answer, as HTTP/1.0, where so many bytes of memory are `free`."""
    pages = {REPORT_PATH: (_report, "text/html"), SAMPLES_PATH: (_samples, "text/plain")}
    make, content_type = pages[path]
    try:
        _require_memory(free)
        status, content = HTTPStatus.OK, make(dict(parse_qsl(query)), output_dir).encode()
    except (UserError, SchemaSkewError) as error:
        status, content, content_type = HTTPStatus.NOT_FOUND, f"{error}\n".encode(), "text/plain"
    if len(content) > MOST_BYTES:
        message = f"it has {len(content) >> 20} MiB, more than the {MOST_BYTES >> 20} that a pod sends\n"
        status, content, content_type = HTTPStatus.INSUFFICIENT_STORAGE, message.encode(), "text/plain"
    head = (
        f"HTTP/1.0 {status.value} {status.phrase}\r\nContent-Type: {content_type}; charset=utf-8\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _require_memory(free: int) -> None:
    """A pod that runs out of memory would end with its training."""
    if free < FREE_BYTES:
        raise UserError(
            f"this pod has {free >> 20} MiB of memory left, and a page may take {FREE_BYTES >> 20}: raise "
            "trainer.resources.limits.memory in the next job, or read the files on its claim"
        )


def _report(options: dict[str, str], output_dir: Path) -> str:
    from grpo_runtime.report.page import render_page

    _require_known(options, ())
    return render_page(output_dir)


def _samples(options: dict[str, str], output_dir: Path) -> str:
    from grpo_runtime.report.samples_text import Order, describe_samples

    _require_known(options, ("step", "groups", "order", "eval"))
    order = options.get("order", Order.STEP)
    if order not in list(Order):
        raise UserError(f"order ({order}) must be one of {', '.join(Order)}")
    text = describe_samples(
        output_dir,
        step=_number(options, "step", highest=2**53) if "step" in options else None,
        num_groups=_number(options, "groups", highest=MOST_GROUPS, otherwise="3"),
        order=Order(order),
        is_evaluation=bool(options.get("eval")),
    )
    return f"{text}\n"


def _require_known(options: dict[str, str], known: Sequence[str]) -> None:
    if unknown := sorted(options.keys() - set(known)):
        raise UserError(f"unknown: {', '.join(unknown)}; known are: {', '.join(known) or 'no options'}")


def _number(options: dict[str, str], name: str, *, highest: int, otherwise: str = "") -> int:
    given = options.get(name, otherwise)
    if not (given.isascii() and given.isdigit() and len(given) < 20 and 1 <= int(given) <= highest):
        raise UserError(f"{name} ({given[:40]}) must be a number from 1 to {highest}")
    return int(given)


if __name__ == "__main__":
    main(sys.argv[1:])
