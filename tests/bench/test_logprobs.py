"""The bench of the trainer's logprobs beside dense ones."""

from dataclasses import replace

import pytest
import torch

from grpo_bench.errors import BenchError
from grpo_logprobs.cases import CASES
from grpo_logprobs.options import parse_options
from grpo_logprobs.passes import dense_and_chunked


def test_with_a_large_vocabulary_chunks_hold_less_than_all_logits() -> None:
    wide = replace(CASES["tiny"], vocabulary=4096, num_sequences=32)
    with dense_and_chunked(wide, device="cpu") as (dense, chunked):
        first, second = dense.run(0), chunked.run(0)
    all_logits = 4 * wide.num_tokens * wide.vocabulary / 2**20
    assert first["peak MiB"] - second["peak MiB"] > all_logits
    assert min(first["seconds"], second["seconds"]) > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_measure_on_one() -> None:
    with pytest.raises(BenchError, match="no NVIDIA GPU"), dense_and_chunked(CASES["tiny"], device="cuda"):
        pass


def test_the_options_name_cases_and_a_device() -> None:
    found = parse_options("", ["--pairs", "2", "--cases", "tiny", "--device", "cuda"])
    assert (found.num_pairs, found.cases, found.device) == (2, ("tiny",), "cuda")


@pytest.mark.parametrize("wrong", [["--pairs", "0"], ["--cases", "huge"], ["--json", "/nowhere/out.jsonl"]])
def test_a_wrong_option_is_reported_before_anything_is_measured(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options("", wrong)
