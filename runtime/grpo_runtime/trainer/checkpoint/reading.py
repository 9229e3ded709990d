"""How far the reading of a checkpoint is: one thread reads, another one tells of it. Pure."""

_STEP_PERCENT = 10


class ReadProgress:
    """What is read at the moment, and how much of it has been. By default nothing."""

    def __init__(self) -> None:
        self.num_bytes = 0
        """Read so far, of everything. It stands still while a volume does not answer."""
        self._current = ("", 0, 0)
        """What, the bytes that were read before it, and those that it has. One value, as threads shard it."""

    def begin(self, what: str, *, total_bytes: int = 0) -> None:
        """From now on `what` is read, which has so many bytes; 0 where that is not known."""
        self._current = (what, self.num_bytes, total_bytes)

    def add(self, num_bytes: int) -> None:
        """So many bytes more have been read."""
        self.num_bytes += num_bytes

    @property
    def message(self) -> str:
        """What is read, with its size and, in steps of ten percent, how much of it has been: a status is
        written for each other message. Empty before anything is read."""
        what, begun_at, total_bytes = self._current
        if not total_bytes:
            return what
        percent = min(100 * (self.num_bytes - begun_at) // total_bytes, 100)
        return f"{what}: {percent // _STEP_PERCENT * _STEP_PERCENT}% of {total_bytes / 1e9:.1f} GB"
