"""Which rank writes which tensor of a checkpoint. Pure."""


class Shards:
    """Divides tensors over ranks by bytes. Each goes whole to the rank that has the fewest so far, the lowest
    of several, so every rank that asks in the same order gets the same answers."""

    def __init__(self, num_ranks: int) -> None:
        self._num_bytes = [0] * num_ranks

    def owner_of_next(self, num_bytes: int) -> int:
        """The rank that writes the next tensor."""
        owner = self._num_bytes.index(min(self._num_bytes))
        self._num_bytes[owner] += num_bytes
        return owner
