"""By hand, from the calls of an agent to the gradient of its group: tokens, masks, logprobs, advantages and
loss, with every sampled token against transformers in the context in which it was sampled.

The engine is a fake: it writes what a test says, in characters, so that no tokenizer makes the same ids of
its texts again, and reports transformers' logprobs of them. The other side of each comparison knows of no
sequence: it adds up what each call alone would give.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from chats import ADD, END, asked, chat_model, chat_tokenizer, session, tokens, written
from policy_builder import logprobs
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from grpo_api.v1alpha1.spec import Dtype
from grpo_runtime.algorithm.advantages import compute_advantages
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.types import AdvantageOptions, Denominators, LossInputs, LossOptions
from grpo_runtime.gateway.session import Session
from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.trainer.batch import Batch, make_batch
from grpo_runtime.trainer.policy import Policy

USER, LOW = {"role": "user", "content": "Guess."}, {"role": "user", "content": "low"}
CALL = '<tool_call>\n{"name":"add","arguments":{"b":2,"a":1}}\n</tool_call>' + END
THOUGHT = f"<think>\nthe number\n</think>\n 5 {END}"


@dataclass(frozen=True)
class Call:
    """A call of an agent, and what the policy says."""

    messages: Sequence[dict[str, Any]]
    says: str
    more: dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """An episode: its calls, and how long the sequences are that are trained, in sampled tokens by hand."""

    calls: Sequence[Call]
    lengths: tuple[int, ...]
    extends: bool = True


def call(*messages: dict[str, Any], says: str, **more: Any) -> Call:
    return Call(messages, says, more)


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


_TOOL_CALL = {
    "id": "t00000000",
    "type": "function",
    "function": {"name": "add", "arguments": '{ "a":1, "b":2 }'},
}
_RESULT = {"role": "tool", "tool_call_id": "t00000000", "content": "3"}
# each is as many characters as are written, and a token for each tag
CALL_LENGTH, THOUGHT_LENGTH = 45, 19
SHAPES = {
    "a tool": Shape(
        [
            call(USER, says=CALL, tools=[ADD]),
            call(USER, said("", tool_calls=[_TOOL_CALL]), _RESULT, says=f"It is 3.{END}", tools=[ADD]),
        ],
        lengths=(CALL_LENGTH + 9,),
    ),
    "a rewritten history": Shape(
        [call(USER, says=f"12{END}"), call(USER, said("12, I said"), LOW, says=f"3456{END}")],
        lengths=(3, 5),
    ),
    "thoughts that the client drops": Shape(
        [call(USER, says=THOUGHT), call(USER, said("5"), LOW, says=f"7{END}")],
        lengths=(THOUGHT_LENGTH + 2,),
    ),
    "thoughts that the template drops": Shape(
        [call(USER, says=THOUGHT), call(USER, said("5"), LOW, says=f"7{END}")],
        lengths=(THOUGHT_LENGTH, 2),
        extends=False,
    ),
    "a stop string": Shape(
        [
            call(USER, says=f"5\nObservation: x{END}", stop=["Observation:"]),
            call(USER, said("5"), LOW, says=f"7{END}", stop=["Observation:"]),
        ],
        lengths=(14 + 2,),
    ),
    "a turn that was cut": Shape(
        [call(USER, says=f"5678{END}", max_tokens=2), call(USER, said("56"), LOW, says=f"7{END}")],
        lengths=(2 + 2,),
    ),
    "two branches of one turn": Shape(
        [
            call(USER, says=f"5{END}"),
            call(USER, said("5"), LOW, says=f"71{END}"),
            call(USER, said("5"), LOW, says=f"8{END}"),
        ],
        lengths=(2 + 3, 2),
    ),
}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """Random, far from uniform, with the tokens of the chats."""
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=len(chat_tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    return Qwen2ForCausalLM(config).float().eval()


@dataclass(frozen=True)
class Played:
    """An episode as it is trained, and the answers of the engine that it came from."""

    episode: Rollout
    answers: Sequence[Rollout]


def played(shape: Shape, model: PreTrainedModel) -> Played:
    answers: list[Rollout] = []

    def score(rollout: Rollout) -> Rollout:
        ids = (*rollout.prompt_ids, *rollout.completion_ids)
        found = logprobs(model, ids)[len(rollout.prompt_ids) - 1 :]
        answers.append(replace(rollout, rollout_logprobs=tuple(found)))
        return answers[-1]

    found: Session = session(model=chat_model(extends=shape.extends))
    for each in shape.calls:
        asked(found, each.messages, each.says, score=score, **each.more)
    first, *branches = found.record.rollouts()
    return Played(replace(first, branches=tuple(branches)), answers)


OTHER = Shape([call(USER, says=f"9{END}")], lengths=(2,))
"""The other episode of the group."""
ADVANTAGE = 0.5 / (0.5**0.5 + 1e-4)
"""Of rewards 1 and 0: half a standard deviation of sqrt(1/2), with Bessel's correction."""


@dataclass(frozen=True)
class Step:
    """A group of two episodes, the first of which was right."""

    both: Sequence[Played]
    batch: Batch


@pytest.fixture(params=SHAPES, ids=str)
def shape(request: pytest.FixtureRequest) -> Shape:
    return SHAPES[request.param]


@pytest.fixture
def step(shape: Shape, model: PreTrainedModel) -> Step:
    both = [played(each, model) for each in (shape, OTHER)]
    options = AdvantageOptions(group_size=2, weights=(1.0,))
    advantages = compute_advantages(torch.tensor([[1.0], [0.0]]), options=options).advantages
    batch = make_batch(
        [each.episode for each in both], group_sizes=[len(both)], advantages=advantages, pad_id=0
    )
    return Step(both, batch)


def test_every_token_is_trained_once_in_the_context_in_which_it_was_sampled(
    step: Step, shape: Shape, model: PreTrainedModel
) -> None:
    batch = step.batch
    trained: Counter[tuple[tuple[int, ...], int, float]] = Counter()
    for row, place in batch.loss_mask.nonzero().tolist():
        ids = batch.token_ids[row, : place + 2].tolist()
        trained[tuple(ids[:-1]), ids[-1], batch.rollout_logprobs[row, place].item()] += 1
    sampled: Counter[tuple[tuple[int, ...], int, float]] = Counter()
    for answer in (answer for each in step.both for answer in each.answers):
        for place, token in enumerate(answer.completion_ids):
            context = (*answer.prompt_ids, *answer.completion_ids[:place])
            expected = logprobs(model, (*context, token))[-1]
            reported = answer.rollout_logprobs[place]
            assert reported == pytest.approx(expected, abs=1e-5)
            sampled[context, token, torch.tensor(reported).item()] += 1
    assert trained == sampled
    assert max(trained.values()) == 1
    assert batch.loss_mask.sum(1).tolist() == [*shape.lengths, 2]


def test_advantages_are_of_episodes(step: Step, shape: Shape) -> None:
    expected = [ADVANTAGE] * len(shape.lengths) + [-ADVANTAGE]
    assert step.batch.advantages.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_loss_and_gradient_are_those_of_the_calls_alone(
    step: Step, shape: Shape, model: PreTrainedModel, loss_type: str
) -> None:
    batch, parameters = step.batch, list(model.parameters())
    policy = Policy(model, temperature=1.0, dtype=Dtype.FLOAT32)
    found, _ = policy(batch.token_ids, batch.loss_mask)
    torch.testing.assert_close(
        found.detach()[batch.loss_mask], batch.rollout_logprobs[batch.loss_mask], atol=2e-5, rtol=0
    )
    loss = compute_loss(
        LossInputs(
            trainer_logprobs=found,
            advantages=batch.advantages,
            loss_mask=batch.loss_mask,
            rollout_logprobs=batch.rollout_logprobs,
            episode_sizes=batch.episode_sizes,
        ),
        options=LossOptions(loss_type=loss_type, importance_correction=ImportanceCorrection(cap=2.0)),
        denominators=Denominators.of_mask(batch.loss_mask, num_sequences=2),
    ).loss
    gradient = torch.autograd.grad(loss, parameters)

    lengths = [*shape.lengths, 2]
    num_tokens = sum(lengths)
    weights = {"dapo": [1 / num_tokens] * len(lengths)}
    # B of 2 episodes, each of so many sequences
    weights["grpo"] = [1 / (2 * len(shape.lengths) * length) for length in shape.lengths] + [1 / (2 * 2)]
    by_hand = torch.zeros(())
    # on policy every ratio is 1
    total = 0.0
    sequence_of = sequences_by_answer(step, batch)
    for sign, each in zip((1.0, -1.0), step.both, strict=True):
        for answer in each.answers:
            weight = sign * ADVANTAGE * weights[loss_type][sequence_of[answer.completion_ids]]
            by_hand = by_hand - weight * logprobs_with_gradient(model, answer).sum()
            total -= weight * len(answer.completion_ids)
    expected = torch.autograd.grad(by_hand, parameters)
    assert loss.item() == pytest.approx(total, abs=1e-5)
    for one, other in zip(gradient, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    assert max(each.abs().max() for each in expected) > 0.01


def sequences_by_answer(step: Step, batch: Batch) -> dict[tuple[int, ...], int]:
    """The row in which an answer is trained, found by its tokens alone."""
    rows: dict[tuple[int, ...], int] = {}
    for answer in (answer for each in step.both for answer in each.answers):
        whole = [*answer.prompt_ids, *answer.completion_ids]
        [row] = [
            row
            for row, ids in enumerate(batch.token_ids.tolist())
            if ids[: len(whole)] == whole and batch.loss_mask[row, len(whole) - 2]
        ]
        rows[answer.completion_ids] = row
    return rows


def logprobs_with_gradient(model: PreTrainedModel, answer: Rollout) -> torch.Tensor:
    """Of the completion of one call, by transformers."""
    ids = torch.tensor([[*answer.prompt_ids, *answer.completion_ids]])
    scores = model(ids).logits[0, len(answer.prompt_ids) - 1 : -1].log_softmax(-1)
    return scores.gather(-1, torch.tensor(answer.completion_ids)[:, None])[:, 0]


def test_the_policy_writes_what_no_tokenizer_makes_of_its_texts() -> None:
    for text, length in ((CALL, CALL_LENGTH), (THOUGHT, THOUGHT_LENGTH)):
        assert len(written(text)) == length
        # and no tokenizer makes these ids of them
        assert len(tokens(text)) < length and chat_tokenizer().decode(written(text)) == text
