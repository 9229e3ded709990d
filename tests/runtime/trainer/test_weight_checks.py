"""The digest of weights on one rank. On several, with every strategy: test_journal_kills.py."""

from collections.abc import Iterable

import torch

from grpo_runtime.report.position import OwnPosition
from grpo_runtime.trainer.weight_checks import weight_digest


class OneRank:
    rank = 0
    world_size = 1
    position = OwnPosition()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class Held:
    """A strategy that holds these weights."""

    device = torch.device("cpu")

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = tensors

    def weight_shards(self) -> Iterable[torch.Tensor]:
        return iter(self._tensors)


def digest(*tensors: torch.Tensor) -> str:
    return weight_digest(Held(*tensors), ranks=OneRank())  # type: ignore[arg-type]


def some_weights() -> list[torch.Tensor]:
    return [torch.arange(12.0).view(3, 4), torch.arange(5.0), torch.zeros(0, 4)]


def test_the_same_weights_have_the_same_digest_and_the_last_bit_of_one_changes_it() -> None:
    other = some_weights()
    other[0][2, 3] = torch.nextafter(other[0][2, 3], torch.tensor(100.0))
    assert digest(*some_weights()) == digest(*some_weights())
    assert digest(*some_weights()) != digest(*other)
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


def test_weights_that_change_places_have_another_digest() -> None:
    first, second = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert digest(first, second) != digest(second, first)
    assert digest(first) != digest(first.flip(0))


def test_weights_that_do_not_lie_in_one_piece_are_read_as_they_are_seen() -> None:
    seen = torch.arange(12.0).view(3, 4).t()
    assert digest(seen) == digest(seen.contiguous())
