import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.report.metrics import completion_metrics
from grpo_runtime.report.position import OwnPosition
from grpo_runtime.rollouts.interface import AgentCalls, AgentTurn, Rollout, VersionSpan
from grpo_runtime.trainer.batch import Batch, make_batch, receive_batch, send_batch


def rollout(prompt: tuple[int, ...], completion: tuple[int, ...], logprobs: tuple[float, ...]) -> Rollout:
    return Rollout(prompt, completion, logprobs, (), True, "fake")


def test_the_mask_covers_the_positions_that_predict_a_completion_token() -> None:
    batch = make_batch(
        [rollout((5, 6), (7,), (-0.5,)), rollout((5,), (8, 9, 3), (-1.0, -2.0, -3.0))],
        group_sizes=[2],
        advantages=torch.tensor([1.0, -1.0]),
        pad_id=0,
    )
    assert batch.token_ids.tolist() == [[5, 6, 7, 0], [5, 8, 9, 3]]
    # column t is about token t + 1
    assert batch.loss_mask.tolist() == [[False, True, False], [True, True, True]]
    assert batch.rollout_logprobs.tolist() == [[0.0, -0.5, 0.0], [-1.0, -2.0, -3.0]]
    assert batch.token_ids[:, 1:][batch.loss_mask].tolist() == [7, 8, 9, 3]


def test_no_token_of_a_completion_that_was_cut_counts_where_the_job_says_so() -> None:
    cut = dataclasses.replace(rollout((5,), (8, 9), (-1.0, -2.0)), is_terminated=False)
    whole = rollout((5,), (7, 3), (-0.5, -0.5))
    for masks_truncated, expected in (
        (False, [[True, True], [True, True]]),
        (True, [[False, False], [True, True]]),
    ):
        batch = make_batch(
            [cut, whole],
            group_sizes=[2],
            advantages=torch.tensor([1.0, -1.0]),
            pad_id=0,
            masks_truncated=masks_truncated,
        )
        assert batch.loss_mask.tolist() == expected
        assert batch.advantages.tolist() == [1.0, -1.0]


def test_tokens_that_no_policy_sampled_do_not_count() -> None:
    of_turns = dataclasses.replace(rollout((5,), (8, 9, 3), (-1.0, 0.0, -3.0)), loss_mask=(True, False, True))
    batch = make_batch([of_turns], group_sizes=[1], advantages=torch.tensor([1.0]), pad_id=0)
    assert batch.token_ids.tolist() == [[5, 8, 9, 3]]
    assert batch.loss_mask.tolist() == [[True, False, True]]
    cut = dataclasses.replace(of_turns, is_terminated=False)
    masked = make_batch(
        [cut], group_sizes=[1], advantages=torch.tensor([1.0]), pad_id=0, masks_truncated=True
    )
    assert not masked.loss_mask.any()


def an_episode() -> Rollout:
    """The second sequence goes on from all of the first, and was cut at the token limit."""
    second = dataclasses.replace(rollout((5, 8, 9, 6), (4,), (-3.0,)), is_terminated=False)
    return dataclasses.replace(rollout((5,), (8, 9), (-1.0, -2.0)), branches=(second,))


def a_batch_of_episodes(*, masks_truncated: bool = False) -> Batch:
    samples = [rollout((5,), (7,), (-0.5,)), an_episode(), rollout((6,), (2, 3), (-0.1, -0.2))]
    return make_batch(
        samples,
        group_sizes=[len(samples)],
        advantages=torch.tensor([1.0, -1.0, 2.0]),
        pad_id=0,
        masks_truncated=masks_truncated,
    )


def test_each_sequence_of_an_episode_has_a_row_with_the_advantage_of_the_episode() -> None:
    batch = a_batch_of_episodes()
    assert batch.token_ids.tolist() == [[5, 7, 0, 0, 0], [5, 8, 9, 0, 0], [5, 8, 9, 6, 4], [6, 2, 3, 0, 0]]
    # what the first sequence has sampled is trained there, and not again in the second one's prompt
    assert batch.loss_mask.long().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1], [1, 1, 0, 0]]
    assert batch.rollout_logprobs[2].tolist() == [0.0, 0.0, 0.0, -3.0]
    assert batch.advantages.tolist() == [1.0, -1.0, -1.0, 2.0]
    assert batch.episodes.tolist() == [0, 1, 1, 2]
    assert batch.episode_sizes.tolist() == [1, 2, 2, 1]
    assert (batch.num_episodes, batch.rows_of([2, 1])) == (3, (3, 1, 2))


def test_a_part_knows_of_how_many_sequences_its_episodes_are_though_it_has_not_all() -> None:
    part = a_batch_of_episodes().part((3, 2))
    assert part.episodes.tolist() == [2, 1]
    assert part.episode_sizes.tolist() == [1, 2]
    assert part.num_episodes == 2
    assert a_batch_of_episodes().part(()).episode_sizes.tolist() == [1]


def test_no_token_of_an_episode_counts_whose_end_was_cut() -> None:
    batch = a_batch_of_episodes(masks_truncated=True)
    assert batch.loss_mask.any(1).tolist() == [True, False, False, True]


@pytest.mark.parametrize("cut", [0, 1])
def test_the_end_of_an_episode_is_its_last_call_though_another_sequence_began_later(cut: int) -> None:
    turns = [
        AgentTurn(sequence=sequence, start=start, end=start + 1, seconds=1.0, waited_seconds=0.0)
        for sequence, start in ((0, 0), (1, 0), (0, 1))
    ]
    helper = dataclasses.replace(rollout((6,), (4,), (-3.0,)), is_terminated=cut != 1)
    episode = dataclasses.replace(
        rollout((5,), (8, 9), (-1.0, -2.0)),
        is_terminated=cut != 0,
        branches=(helper,),
        calls=AgentCalls(environment="game", turns=turns),
    )
    batch = make_batch(
        [episode], group_sizes=[1], advantages=torch.tensor([1.0]), pad_id=0, masks_truncated=True
    )
    assert batch.loss_mask.any(1).tolist() == [cut != 0] * 2
    assert completion_metrics([episode])["completions/clipped_ratio"] == float(cut == 0)


def test_a_part_is_as_wide_as_its_own_longest_sequence() -> None:
    rollouts = [
        rollout((5, 6), (7,), (-0.5,)),
        rollout((5,), (8, 9, 3, 4), (-1.0, -2.0, -3.0, -4.0)),
        rollout((5,), (2,), (-6.0,)),
    ]
    batch = make_batch(
        rollouts, group_sizes=[len(rollouts)], advantages=torch.tensor([1.0, -1.0, 2.0]), pad_id=0
    )
    assert batch.lengths == [3, 5, 2]
    part = batch.part((0, 2))
    assert part.token_ids.tolist() == [[5, 6, 7], [5, 2, 0]]
    assert part.loss_mask.tolist() == [[False, True], [True, False]]
    assert part.rollout_logprobs.tolist() == [[0.0, -0.5], [-6.0, 0.0]]
    assert part.advantages.tolist() == [1.0, 2.0]


def test_a_part_without_sequences_is_a_row_in_which_nothing_counts() -> None:
    batch = make_batch(
        [rollout((5,), (8, 9), (-1.0, -2.0))], group_sizes=[1], advantages=torch.tensor([1.0]), pad_id=0
    )
    part = batch.part(())
    assert part.token_ids.shape == (1, 2)
    assert part.loss_mask.tolist() == [[False]]
    assert part.rollout_logprobs.shape == (1, 1)
    assert part.advantages.tolist() == [0.0]


def test_a_completion_without_tokens_takes_the_least_room() -> None:
    rollouts = [rollout((5, 6, 7), (), ()), rollout((5,), (8,), (-1.0,))]
    batch = make_batch(rollouts, group_sizes=[len(rollouts)], advantages=torch.tensor([1.0, -1.0]), pad_id=0)
    assert batch.lengths == [2, 2]
    assert batch.part((0,)).loss_mask.tolist() == [[False]]


def a_batch_of_versions() -> Batch:
    """The second completion was begun by the weights of step 3 and the third by those before; a tool said the
    third's second token."""
    versions = (
        (span(attempt=1, step=4, start=0, end=2),),
        (span(attempt=1, step=3, start=0, end=1), span(attempt=1, step=4, start=1, end=3)),
        (span(attempt=2, step=2, start=0, end=1), span(attempt=2, step=4, start=2, end=3)),
    )
    prompts = ((5, 6, 7), (5,), (5, 6))
    rollouts = [
        dataclasses.replace(
            rollout(prompt, (8, 9, 3)[: spans[-1].end], (-1.0,) * spans[-1].end), versions=spans
        )
        for prompt, spans in zip(prompts, versions, strict=True)
    ]
    rollouts[2] = dataclasses.replace(rollouts[2], loss_mask=(True, False, True))
    return make_batch(
        rollouts, group_sizes=[len(rollouts)], advantages=torch.tensor([1.0, -1.0, 2.0]), pad_id=0, step=4
    )


def span(*, attempt: int, step: int, start: int, end: int) -> VersionSpan:
    return VersionSpan(PolicyVersion(attempt=attempt, step=step), start=start, end=end)


def test_a_token_is_current_where_the_weights_that_the_step_begins_with_sampled_it() -> None:
    batch = a_batch_of_versions()
    assert batch.is_current.tolist() == [
        [True, True, True, True],
        [False, True, True, True],
        [True, False, True, True],
    ]
    part = batch.part((1,))
    assert part.is_current.tolist() == [[False, True, True]]
    assert batch.part(()).is_current.tolist() == [[True]]


def test_every_token_is_current_where_no_version_is_older() -> None:
    batch = make_batch(
        [rollout((5,), (8, 9), (-1.0, -2.0))],
        group_sizes=[1],
        advantages=torch.tensor([1.0]),
        pad_id=0,
        step=4,
    )
    assert batch.is_current.all()


@dataclasses.dataclass
class Wire:
    """Ranks of which one sends all that it broadcasts before another receives it."""

    position: OwnPosition
    sent: list[torch.Tensor] = dataclasses.field(default_factory=list)
    is_sender: bool = True

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.is_sender:
            self.sent.append(tensor.clone())
            return tensor
        received = self.sent.pop(0)
        assert (received.shape, received.dtype) == (tensor.shape, tensor.dtype)
        return received


@pytest.mark.parametrize("make", [a_batch_of_versions, a_batch_of_episodes])
def test_another_rank_receives_the_batch_that_rank_0_sends(make: Callable[[], Batch]) -> None:
    batch = make()
    wire: Any = Wire(OwnPosition())
    send_batch(batch, ranks=wire)
    wire.is_sender = False
    received = receive_batch(ranks=wire)
    assert wire.sent == []
    for field in dataclasses.fields(Batch):
        sent, got = getattr(batch, field.name), getattr(received, field.name)
        assert got.dtype == sent.dtype and torch.equal(got, sent), field.name
