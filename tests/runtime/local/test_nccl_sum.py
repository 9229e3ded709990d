"""What a process says that adds up a number with the others; how they do it: e2e/nullgpu."""

import pytest
import torch

from grpo_runtime.local import nccl_sum
from grpo_runtime.trainer.distributed import Ranks


class Fixed:
    """Ranks that add up to this."""

    def __init__(self, total: int) -> None:
        self._total = total

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.tensor([self._total])


@pytest.mark.parametrize(
    ("total", "code", "said"), [(6, 0, ""), (5, 1, "the sum of 3 ranks is 5 instead of 6\n")]
)
def test_a_wrong_sum_is_told_and_a_right_one_is_not(
    total: int, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "set_device", lambda rank: None)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    monkeypatch.setattr(Ranks, "meet", lambda **how: Fixed(total))
    assert nccl_sum.main(1, 3, 1) == code
    assert capsys.readouterr().out == said
