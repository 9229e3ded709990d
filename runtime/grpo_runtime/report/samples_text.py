"""The completions of a step, or of an evaluation, as text for the terminal."""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from grpo_runtime.errors import UserError
from grpo_runtime.report.episodes import Episode
from grpo_runtime.report.samples import (
    COMPLETIONS_FOLDER,
    EVALUATIONS_FOLDER,
    Sample,
    read_groups,
    steps_with_samples,
)


class Order(StrEnum):
    """Which groups come first."""

    STEP = "step"
    """Groups in the order of the step."""
    BEST = "best"
    """Groups with the highest mean reward."""
    WORST = "worst"
    """Groups with the lowest mean reward."""
    MIXED = "mixed"
    """Groups whose rewards differ most: what the policy learns from."""
    FAILED = "failed"
    """Groups of which most was given up."""


_KEYS: dict[Order, Callable[[Sequence[float]], float]] = {
    Order.STEP: lambda rewards: 0.0,
    Order.BEST: lambda rewards: -sum(rewards) / len(rewards),
    Order.WORST: lambda rewards: sum(rewards) / len(rewards),
    Order.MIXED: lambda rewards: min(rewards) - max(rewards),
}
"""Sort keys of the orders that go by rewards."""


def describe_samples(
    output_dir: Path, *, step: int | None, num_groups: int, order: Order, is_evaluation: bool = False
) -> str:
    """So many groups of the completions of a step, or of the evaluation after it; of the newest that was kept
    if none is named.

    Raises UserError, which names the steps that there are, when the step was not kept.
    """
    folder = EVALUATIONS_FOLDER if is_evaluation else COMPLETIONS_FOLDER
    steps = steps_with_samples(output_dir, folder=folder)
    if not steps and is_evaluation:
        raise UserError(
            f"no completions are in {output_dir / folder}: those of each evaluation of dataset.eval are kept "
            "unless report.samplesEverySteps is 0"
        )
    if not steps:
        raise UserError(
            f"no completions are in {output_dir / folder}: report.samplesEverySteps says after "
            "how many steps they are kept"
        )
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        kept = ", ".join(map(str, steps if len(steps) <= 12 else [*steps[:5], "...", *steps[-5:]]))
        raise UserError(f"the completions of step {chosen} were not kept; those of these steps were: {kept}")
    groups = read_groups(output_dir, step=chosen, folder=folder)
    groups.sort(key=lambda group: _key(group, order=order))
    shown = groups[:num_groups]
    what = f"evaluation after step {chosen}" if is_evaluation else f"step {chosen}"
    title = f"{what}: {len(shown)} of {len(groups)} groups"
    if num_given_up := sum(map(_num_given_up, groups)):
        title += f", {num_given_up} completions given up (--order {Order.FAILED} begins with their groups)"
    return "\n\n".join([title, *("\n".join(_group_lines(group)) for group in shown)])


def _key(group: Sequence[Sample], *, order: Order) -> float:
    """Sort key of groups; by rewards, a group without any comes last."""
    if order is Order.FAILED:
        return -_num_given_up(group)
    rewards = [sample.reward for sample in group if sample.reward is not None]
    return _KEYS[order](rewards) if rewards else float("inf")


def _num_given_up(group: Sequence[Sample]) -> int:
    return sum(bool(sample.given_up) for sample in group)


def _group_lines(group: Sequence[Sample]) -> Iterator[str]:
    yield f"=== prompt {group[0].group + 1}"
    if not any(sample.episode for sample in group):
        yield _printable(group[0].prompt)
    for sample in group:
        if sample.given_up:
            yield "--- given up:"
            yield from _indented(sample.given_up)
            continue
        yield f"--- {_summary(sample)}"
        if sample.episode:
            yield from _episode_lines(sample.episode)
        else:
            yield _printable(sample.completion)


def _episode_lines(episode: Episode) -> Iterator[str]:
    """Who said what, and what of it was trained, each with its text below."""
    for turn in episode.turns:
        for said in turn.said:
            yield _printable(f"{' '.join(said.role.split())}:")
            yield from _indented(said.text)
        where = f", sequence {turn.sequence}" if episode.num_sequences > 1 else ""
        yield f"{turn.summary}{where}:"
        yield from _indented(turn.completion)
    if episode.state is not None:
        yield "state:"
        yield from _indented(episode.state_text)
    if episode.output:
        yield "its program wrote:"
        yield from _indented(episode.output)


def _indented(text: str) -> Iterator[str]:
    for line in _printable(text).split("\n"):
        yield f"  {line}"


def _summary(sample: Sample) -> str:
    """The rewards, the advantage and the length of a completion."""
    parts = [f"reward {_number(sample.reward)}"]
    if len(sample.rewards) > 1:
        parts[0] += f" ({', '.join(f'{name} {_number(value)}' for name, value in sample.rewards.items())})"
    if sample.advantage is not None:
        parts.append(f"advantage {sample.advantage:+.3g}")
    parts.append(f"{sample.num_tokens} tokens" + ("" if sample.is_terminated else f", {sample.cut_at}"))
    if sample.segments:
        parts.append(f"handed over ({sample.segments})")
    if sample.episode:
        parts.append(sample.episode.summary)
    return ", ".join(parts)


def _printable(text: str) -> str:
    """What a model wrote without what would move the cursor or change colours of a terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
