"""Sampling masks of an engine that cuts its distribution: how they are read, and what a trainer makes of
them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_runtime.algorithm.kept_tokens import KeptTokens, kept_tokens
from grpo_runtime.algorithm.logprobs import head_logprobs
from grpo_runtime.model.head import last_hidden_states
from grpo_runtime.model.load import load_policy
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.rollouts.sampling import read_sampling_mask

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures/truncated_samples.json").read_text())
CHOICES = [answer["choice"] for answer in RECORDED["answers"]]
MASKS = [[3, 7, 9], [8]]


def test_there_is_a_mask_for_every_token_and_the_token_is_in_it() -> None:
    assert read_sampling_mask(MASKS, completion_ids=[7, 8]) == ((3, 7, 9), (8,))
    for choice in CHOICES:
        masks = read_sampling_mask(choice["sampling_mask"], completion_ids=choice["token_ids"])
        assert [list(mask) for mask in masks] == choice["sampling_mask"]
        assert len({len(mask) for mask in masks}) > 1
        assert all(1 <= len(mask) <= RECORDED["sampling"]["top_k"] for mask in masks)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (None, "runs without --return-sampling-mask"),
        ([[3, 7]], "for 1 of 2 tokens"),
        ([[3, 7], [8], [9]], "for 3 of 2 tokens"),
        ([[3, 7], [9]], r"token 1 \(8\) is not in its own"),
        ([[3, 7], []], r"token 1 \(8\) is not in its own"),
        ([[3, 7, 3], [8]], "token 0 has a token twice"),
        ([[3, 7], [-1, 8]], "not a list of token ids"),
        ([["3", 7], [8]], "not a list of token ids"),
        ([3, 7], "not a list of token ids"),
    ],
)
def test_what_is_no_mask_of_these_tokens_is_refused(found: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_sampling_mask(found, completion_ids=[7, 8])


@torch.no_grad()
def trainer_logprobs(folder: Path, *, kept: KeptTokens | None) -> torch.Tensor:
    """Of all recorded tokens, completion by completion, in one padded batch."""
    write_tiny_model(folder)
    model = load_policy(folder, dtype="float32")
    rows = [[*answer["prompt_ids"], *answer["choice"]["token_ids"]] for answer in RECORDED["answers"]]
    width = max(len(row) for row in rows)
    token_ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    # position t predicts token t + 1, and the padding is no completion
    is_scored = torch.zeros_like(token_ids, dtype=torch.bool)
    for index, answer in enumerate(RECORDED["answers"]):
        start = len(answer["prompt_ids"]) - 1
        is_scored[index, start : start + len(answer["choice"]["token_ids"])] = True
    return head_logprobs(
        last_hidden_states(model, token_ids)[is_scored],
        weight=model.get_output_embeddings().weight,
        token_ids=token_ids.roll(-1, dims=1)[is_scored],
        temperature=RECORDED["sampling"]["temperature"],
        chunk_logits=3 * 99,
        kept=kept,
    ).logprobs


def test_over_the_kept_tokens_the_trainer_has_the_logprobs_of_the_engine(tmp_path: Path) -> None:
    engine = torch.tensor([entry["logprob"] for choice in CHOICES for entry in choice["logprobs"]["content"]])
    masks = [
        mask
        for choice in CHOICES
        for mask in read_sampling_mask(choice["sampling_mask"], completion_ids=choice["token_ids"])
    ]
    (tmp_path / "cut").mkdir()
    (tmp_path / "plain").mkdir()
    cut = trainer_logprobs(tmp_path / "cut", kept=kept_tokens(masks))
    plain = trainer_logprobs(tmp_path / "plain", kept=None)
    assert (cut - engine).abs().max() < 1e-5
    # what top-p and top-k cut off is missing in every one of them
    assert ((engine - plain) > 0.02).all()
