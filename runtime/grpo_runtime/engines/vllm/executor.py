"""vLLM's executor of an engine of several workers, kept usable after a call that a worker refuses.

vLLM raises the first error that it reads and leaves the answers of the other workers in their queues, where
the next calls take them for their own (vllm-project/vllm#49972). After one refused weight update no call
would be answered by all workers any more, and a failed one would look like a good one.
"""

from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

from grpo_runtime.weight_sync.interface import GroupBrokenError, WeightSyncError


class AllAnswersExecutor(MultiprocExecutor):
    """Reads the answers of all workers before it raises the error of one."""

    def _post_init_executor(self) -> None:
        self.response_mqs = [_CountedQueue(queue) for queue in self.response_mqs]

    def collective_rpc(  # type: ignore[override] # as in vLLM's own executor
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Does what vLLM does, once all workers have answered. Of their errors, one that says that others are
        to blame is raised only where there is no other."""
        queues: list[_CountedQueue] = self.response_mqs
        num_read = [queue.num_read for queue in queues]
        try:
            return super().collective_rpc(method, timeout, args, kwargs, **options)
        except RuntimeError as error:
            if self.is_failed or options.get("unique_reply_rank") is not None:
                raise
            left = [queue for queue, before in zip(queues, num_read, strict=True) if queue.num_read == before]
            answers = [queue.dequeue() for queue in left]
            errors = [
                RuntimeError(f"Worker failed with error '{what}'") for how, what in answers if how != _OK
            ]
            raise error_to_raise((error, *errors)) from None


def error_to_raise(errors: Sequence[Exception]) -> Exception:
    """The first error of one call that does not say that others are to blame, or else the first."""
    return next((error for error in errors if not _blames_others(error)), errors[0])


def _blames_others(error: Exception) -> bool:
    return isinstance(WeightSyncError.told_in(str(error)), GroupBrokenError)


_OK = WorkerProc.ResponseStatus.SUCCESS


class _CountedQueue:
    """The answers of one worker."""

    def __init__(self, queue: Any) -> None:
        self.num_read = 0
        self._queue = queue

    def dequeue(self, timeout: float | None = None) -> Any:
        """The next answer. Raises TimeoutError."""
        answer = self._queue.dequeue(timeout=timeout)
        self.num_read += 1
        return answer

    def shutdown(self) -> None:
        """End a call that waits."""
        self._queue.shutdown()
