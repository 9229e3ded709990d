"""The tags that a stream of weights may end with, by the name that the update carries."""

from collections.abc import Callable, Iterable, Mapping

from grpo_runtime.weight_sync.stream.digest import DescribedTensor, Digest, StreamDigest
from grpo_runtime.weight_sync.stream.row_digest import RowDigest

POLY1305 = "poly1305"
ROWS = "rows-poly1305"

_DIGESTS: Mapping[str, Callable[[bytes, Iterable[DescribedTensor]], Digest]] = {
    POLY1305: StreamDigest,
    ROWS: RowDigest,
}


def make_digest(algorithm: str, key: bytes, tensors: Iterable[DescribedTensor]) -> Digest:
    """What computes the tag. Raises LookupError for an algorithm that there is not."""
    if algorithm not in _DIGESTS:
        raise LookupError(f"no tag is called {algorithm}; there are {', '.join(_DIGESTS)}")
    return _DIGESTS[algorithm](key, tensors)
