"""The memory of a receiver's model, into which weights are loaded."""

import hashlib
from collections.abc import Iterable, Iterator

import torch

_ALIGNMENT_BYTES = 16
_END_BYTES = 64


class ModelMemory:
    """Warm memory for all tensors of a model, one after the other."""

    def __init__(self, num_bytes: int, *, num_tensors: int, device: str = "cpu") -> None:
        # written to, so that no later write meets a page for the first time
        size = num_bytes + num_tensors * _ALIGNMENT_BYTES
        self.flat = torch.zeros(size, dtype=torch.uint8, device=device)
        self._ends = hashlib.sha256()

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy every tensor to its place."""
        start = 0
        self._ends = hashlib.sha256()
        for name, tensor in tensors:
            place = self.flat[start : start + tensor.numel() * tensor.itemsize]
            place.view(tensor.dtype).view(tensor.shape).copy_(tensor)
            add_ends(self._ends, name, place)
            start += -(-len(place) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if self.flat.is_cuda:
            torch.cuda.synchronize(self.flat.device)

    def ends(self) -> str:
        """See `digest_of_ends`, for what was loaded last."""
        return self._ends.hexdigest()


def digest_of_ends(tensors: Iterator[tuple[str, torch.Tensor]]) -> str:
    """Digest of the names and of the first and the last bytes of every tensor: cheap, and different when any
    is missing or at another place. Backends compare the rest themselves."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        add_ends(digest, name, tensor.contiguous().view(-1).view(torch.uint8))
    return digest.hexdigest()


def add_ends(digest: "hashlib._Hash", name: str, data: torch.Tensor) -> None:
    """Add one tensor, as uint8."""
    digest.update(name.encode())
    digest.update(data[:_END_BYTES].cpu().numpy().data)
    digest.update(data[-_END_BYTES:].cpu().numpy().data)
