"""How a policy that rank 0 has read comes to the other ranks."""

from pathlib import Path

import pytest
from forks import run_ranks
from pod_builder import free_port

pytestmark = pytest.mark.processes


def test_ranks_get_the_values_of_rank_0_unless_their_models_have_other_tensors() -> None:
    printed = run_ranks(Path(__file__).with_name("placed_ranks.py"), str(free_port()))
    lines = sorted(printed.splitlines())
    assert len(lines) == 2
    for rank, line in enumerate(lines):
        assert line.startswith(f"rank {rank}: tied True, equal True, the model's config.json and its files")
        assert line.endswith("correct tie_word_embeddings")
