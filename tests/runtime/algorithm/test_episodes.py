"""What the sequences of an episode weigh in each loss.

An episode that is cut has one sequence up to the cut, and a second one whose prompt is all of the first: the
tokens are the same, and each is trained once.
"""

import dataclasses

import pytest
import torch
from loss_batch import batch, options, rows

from grpo_runtime.algorithm.entropy_bonus import EntropyBonus
from grpo_runtime.algorithm.geometric_mask import GeometricMask
from grpo_runtime.algorithm.kl import KLPenalty
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.registry import LOSSES
from grpo_runtime.algorithm.top_entropy import top_entropy_threshold
from grpo_runtime.algorithm.trust_region_mask import TrustRegionMask
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions

OF_TOKENS = ("bnpo", "cispo", "dapo", "dr_grpo", "luspo", "vespo")
"""Losses in which every sampled token counts once."""
OF_SEQUENCES = ("grpo", "sapo")
EXACT_WHEN_CUT = sorted(name for name, row in LOSSES.items() if not row.implementation.depends_on_cut)
CUTS = (2, 3)
"""Where the first two episodes are cut."""
LENGTHS = (7, 6, 4, 5)
"""Tokens of the episodes."""


def joined_batch() -> LossInputs:
    """Four episodes of one sequence each."""
    inputs = batch(num_sequences=4)
    return dataclasses.replace(inputs, loss_mask=torch.arange(7) < torch.tensor(LENGTHS).unsqueeze(1))


def cut_batch(joined: LossInputs) -> LossInputs:
    """The same with its first two episodes cut; the tensors of `joined` get the gradient."""
    columns = torch.arange(7)
    mask = joined.loss_mask
    parts = [(mask[row] & (columns < cut), mask[row] & (columns >= cut)) for row, cut in enumerate(CUTS)]
    return rows(
        joined,
        torch.tensor([0, 0, 1, 1, 2, 3]),
        loss_mask=torch.stack([*parts[0], *parts[1], mask[2], mask[3]]),
        episode_sizes=torch.tensor([2, 2, 2, 2, 1, 1]),
    )


def whole_step(inputs: LossInputs) -> Denominators:
    return Denominators.of_mask(inputs.loss_mask, num_sequences=4)


def gradient_of(inputs: LossInputs, leaf: torch.Tensor, chosen: LossOptions) -> tuple[float, torch.Tensor]:
    """The loss, and its gradient by the logprobs in `leaf`."""
    loss = compute_loss(inputs, options=chosen, denominators=whole_step(inputs)).loss
    [gradient] = torch.autograd.grad(loss, leaf, retain_graph=True)
    return loss.item(), gradient


@pytest.mark.parametrize(
    ("loss_type", "level", "weights"),
    [
        # an episode of two sequences with 1 and 3 tokens, and one of 2 tokens: N = 6, B = 2, L = 9
        ("grpo", "token", (1 / 4, 1 / 12, 1 / 4)),
        ("sapo", "token", (1 / 4, 1 / 12, 1 / 4)),
        ("grpo", "sequence", (1 / 4, 1 / 12, 1 / 4)),
        ("dapo", "token", (1 / 6,) * 3),
        ("bnpo", "token", (1 / 6,) * 3),
        ("cispo", "token", (1 / 6,) * 3),
        ("vespo", "token", (1 / 6,) * 3),
        ("dr_grpo", "token", (1 / 18,) * 3),
        ("luspo", "token", (1 / 2,) * 3),
        ("luspo", "sequence", (1 / 2,) * 3),
    ],
)
def test_by_hand_what_each_token_weighs(loss_type: str, level: str, weights: tuple[float, ...]) -> None:
    mask = torch.tensor([[True, False, False, False], [False, True, True, True], [True, True, False, False]])
    logprobs = torch.full((3, 4), -1.0, dtype=torch.float64, requires_grad=True)
    entropies = torch.ones((3, 4), dtype=torch.float64, requires_grad=True)
    inputs = LossInputs(
        trainer_logprobs=logprobs,
        advantages=torch.tensor([3.0, 3.0, -2.0], dtype=torch.float64),
        loss_mask=mask,
        ref_logprobs=torch.full((3, 4), -1.5),
        entropies=entropies,
        episode_sizes=torch.tensor([2, 2, 1]),
    )
    chosen = LossOptions(
        loss_type=loss_type,
        ratio_level=level,  # type: ignore[arg-type]
        clip_high=5.0,
        max_completion_length=9,
        kl=KLPenalty(beta=0.1, estimator="k1"),
        entropy=EntropyBonus(coefficient=0.3),
    )
    compute_loss(
        inputs, options=chosen, denominators=Denominators.of_mask(mask, num_sequences=2)
    ).loss.backward()
    weighed = mask * torch.tensor(weights, dtype=torch.float64).unsqueeze(1)
    # the first update: -A for each token, and the penalty's own gradient is beta
    expected = weighed * (0.1 - inputs.advantages.unsqueeze(1))
    torch.testing.assert_close(logprobs.grad, expected, atol=1e-12, rtol=0)
    # the bonus is the mean over all tokens for every loss
    torch.testing.assert_close(entropies.grad, -0.3 / 6 * mask.double(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("loss_type", [name for name in OF_TOKENS if name != "vespo"])
def test_an_episode_that_is_cut_has_the_gradient_of_the_whole_where_tokens_count(loss_type: str) -> None:
    joined = joined_batch()
    chosen = options(
        loss_type,
        top_entropy_quantile=0.7,
        trust_region_mask=TrustRegionMask(low=0.02, high=0.03),
        entropy=EntropyBonus(coefficient=0.3),
    )
    loss, gradient = gradient_of(joined, joined.trainer_logprobs, chosen)
    cut_loss, cut_gradient = gradient_of(cut_batch(joined), joined.trainer_logprobs, chosen)
    assert cut_loss == pytest.approx(loss, abs=1e-12)
    torch.testing.assert_close(cut_gradient, gradient, atol=1e-12, rtol=0)
    assert gradient.abs().max() > 0.01


@pytest.mark.parametrize(("loss_type", "level"), [("vespo", "token"), ("luspo", "sequence")])
def test_so_it_is_on_policy_where_a_ratio_is_of_one_sequence(loss_type: str, level: str) -> None:
    joined = joined_batch()
    chosen = options(loss_type, ratio_level=level, importance_correction=None)
    first = dataclasses.replace(joined, old_logprobs=None)
    _, gradient = gradient_of(first, joined.trainer_logprobs, chosen)
    _, cut_gradient = gradient_of(cut_batch(first), joined.trainer_logprobs, chosen)
    torch.testing.assert_close(cut_gradient, gradient, atol=1e-12, rtol=0)
    # off policy the ratios are those of the sequences, not that of the episode
    _, gradient = gradient_of(joined, joined.trainer_logprobs, chosen)
    _, cut_gradient = gradient_of(cut_batch(joined), joined.trainer_logprobs, chosen)
    assert (cut_gradient - gradient)[:2].abs().max() > 1e-3
    torch.testing.assert_close(cut_gradient[2:], gradient[2:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("loss_type", OF_SEQUENCES)
def test_by_hand_how_a_cut_shifts_the_weights_where_sequences_count(loss_type: str) -> None:
    joined = joined_batch()
    chosen = options(loss_type)
    _, gradient = gradient_of(joined, joined.trainer_logprobs, chosen)
    _, cut_gradient = gradient_of(cut_batch(joined), joined.trainer_logprobs, chosen)
    # |y| / (s |y_j|): cut at 2 of 7 tokens, and in the middle of 6
    shifts = torch.ones((4, 7), dtype=torch.float64)
    shifts[0, :2], shifts[0, 2:] = 7 / (2 * 2), 7 / (2 * 5)
    torch.testing.assert_close(cut_gradient, shifts * gradient, atol=1e-12, rtol=0)


def test_a_mask_of_sequences_looks_at_each_of_an_episode() -> None:
    """The first sequence is far from the sampler, and the second is not."""
    logprobs = torch.full((2, 2), -1.0, requires_grad=True)
    inputs = LossInputs(
        trainer_logprobs=logprobs,
        advantages=torch.tensor([1.0, 1.0]),
        loss_mask=torch.tensor([[True, False], [False, True]]),
        rollout_logprobs=torch.tensor([[-2.0, 0.0], [0.0, -1.0]]),
        episode_sizes=torch.tensor([2, 2]),
    )
    chosen = LossOptions(loss_type="grpo", geometric_mask=GeometricMask())
    compute_loss(
        inputs, options=chosen, denominators=Denominators.of_mask(inputs.loss_mask, num_sequences=1)
    ).loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.0, 0.0], [0.0, -0.5]]


@pytest.mark.parametrize("loss_type", EXACT_WHEN_CUT)
def test_the_sequences_of_an_episode_add_up_wherever_they_are_computed(loss_type: str) -> None:
    joined = joined_batch()
    whole = cut_batch(joined)
    chosen = options(loss_type, top_entropy_quantile=0.7, entropy=EntropyBonus(coefficient=0.3))
    threshold = top_entropy_threshold(whole.entropies, mask=whole.loss_mask, quantile=0.7)
    _, gradient = gradient_of(whole, joined.trainer_logprobs, chosen)
    loss = sum(
        compute_loss(
            rows(whole, torch.tensor(part), entropy_threshold=threshold),
            options=chosen,
            denominators=whole_step(whole),
        ).loss
        for part in ([1, 5], [0], [4, 2], [3])
    )
    [found] = torch.autograd.grad(loss, joined.trainer_logprobs)
    torch.testing.assert_close(found, gradient, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("loss_type", sorted(LOSSES))
def test_where_every_episode_is_one_sequence_no_bit_is_another(loss_type: str, dtype: torch.dtype) -> None:
    plain = batch()
    logprobs = plain.trainer_logprobs.detach().to(dtype).requires_grad_()
    plain = dataclasses.replace(plain, trainer_logprobs=logprobs)
    chosen = options(loss_type, entropy=EntropyBonus(coefficient=0.3))
    found = []
    for sizes in (None, torch.ones(8, dtype=torch.int64)):
        inputs = dataclasses.replace(plain, episode_sizes=sizes)
        denominators = Denominators.of_mask(plain.loss_mask, num_sequences=None if sizes is None else 8)
        loss = compute_loss(inputs, options=chosen, denominators=denominators).loss
        found.append((loss.detach(), *torch.autograd.grad(loss, logprobs)))
    (loss, gradient), (same_loss, same_gradient) = found
    assert loss.dtype == same_loss.dtype and loss.equal(same_loss)
    assert gradient.equal(same_gradient)
