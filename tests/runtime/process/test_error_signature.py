"""Which errors mean that trying again does not help, and what is the same about them."""

import json
import subprocess
from concurrent.futures import BrokenExecutor

import pytest
import torch

from grpo_runtime.errors import PeerLostError
from grpo_runtime.process.error_signature import error_signature
from grpo_runtime.process.line_worker import WorkerFailedError


def raised(error: Exception, *, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


def test_a_bug_is_told_by_its_type_and_its_place() -> None:
    signatures = []
    for text in ("{", "[1,"):
        try:
            json.loads(text)
        except ValueError as error:
            signatures.append(error_signature(error, step=3))
    first = signatures[0]
    assert first is not None and first == signatures[1]  # whatever its text says
    assert (first.type, first.step) == ("json.decoder.JSONDecodeError", 3)
    place, _, line = first.where.partition(":")
    assert place.endswith(f"test_error_signature.{test_a_bug_is_told_by_its_type_and_its_place.__name__}")
    assert line.isdigit()


def test_another_step_and_another_line_are_another_error() -> None:
    error = raised(TypeError("x"))
    assert error_signature(error, step=3) != error_signature(error, step=4)
    try:
        raise TypeError("x")
    except TypeError as other:
        assert error_signature(error, step=3) != error_signature(other, step=3)


@pytest.mark.parametrize(
    "error",
    [
        OSError("I/O error"),
        TimeoutError(),
        ConnectionResetError(),
        MemoryError(),
        BrokenExecutor(),
        subprocess.CalledProcessError(1, "x"),
        torch.OutOfMemoryError("x"),
        torch.AcceleratorError("x"),
        torch.distributed.DistBackendError("x"),
        torch.distributed.DistNetworkError("x"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:77"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
        RuntimeError("[enforce fail] out of memory"),
        RuntimeError("Detected mismatch between collectives on ranks"),
        PeerLostError("rank 1"),
        WorkerFailedError("ended"),
        ExceptionGroup("tasks", [TypeError("x"), TimeoutError()]),
    ],
    ids=repr,
)
def test_what_may_pass_never_counts_also_as_a_cause(error: Exception) -> None:
    assert error_signature(raised(error), step=3) is None
    assert error_signature(raised(ValueError("wrong"), cause=error), step=3) is None


def test_a_request_to_end_is_no_error() -> None:
    assert error_signature(KeyboardInterrupt(), step=3) is None


def test_an_error_while_another_one_was_handled_may_pass_as_that_one_may() -> None:
    try:
        try:
            raise ConnectionResetError
        except ConnectionResetError:
            raise ValueError("wrong")  # noqa: B904 - without `from`, as much code has it
    except ValueError as error:
        assert error.__cause__ is None
        assert error_signature(error, step=3) is None
