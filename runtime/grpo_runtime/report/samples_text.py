"""The completions of a step as text for the terminal."""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from grpo_runtime.errors import UserError
from grpo_runtime.report.samples import COMPLETIONS_FOLDER, Sample, read_groups, steps_with_samples


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


_KEYS: dict[Order, Callable[[Sequence[float]], float]] = {
    Order.STEP: lambda rewards: 0.0,
    Order.BEST: lambda rewards: -sum(rewards) / len(rewards),
    Order.WORST: lambda rewards: sum(rewards) / len(rewards),
    Order.MIXED: lambda rewards: min(rewards) - max(rewards),
}


def describe_samples(output_dir: Path, *, step: int | None, num_groups: int, order: Order) -> str:
    """So many groups of the completions of a step, of the newest that was kept if none is named.

    Raises UserError, which names the steps that there are, when the step was not kept.
    """
    steps = steps_with_samples(output_dir)
    if not steps:
        raise UserError(
            f"no completions are in {output_dir / COMPLETIONS_FOLDER}: report.samplesEverySteps says after "
            "how many steps they are kept"
        )
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        kept = ", ".join(map(str, steps if len(steps) <= 12 else [*steps[:5], "...", *steps[-5:]]))
        raise UserError(f"the completions of step {chosen} were not kept; those of these steps were: {kept}")
    groups = read_groups(output_dir, step=chosen)
    groups.sort(key=lambda group: _key(group, order=order))
    shown = groups[:num_groups]
    title = f"step {chosen}: {len(shown)} of {len(groups)} groups"
    return "\n\n".join([title, *("\n".join(_group_lines(group)) for group in shown)])


def _key(group: Sequence[Sample], *, order: Order) -> float:
    """Sort key of groups; a group without any reward comes last."""
    rewards = [sample.reward for sample in group if sample.reward is not None]
    return _KEYS[order](rewards) if rewards else float("inf")


def _group_lines(group: Sequence[Sample]) -> Iterator[str]:
    yield f"=== prompt {group[0].group + 1}"
    yield _printable(group[0].prompt)
    for sample in group:
        yield f"--- {_summary(sample)}"
        yield _printable(sample.completion)


def _summary(sample: Sample) -> str:
    """The rewards, the advantage and the length of a completion."""
    parts = [f"reward {_number(sample.reward)}"]
    if len(sample.rewards) > 1:
        parts[0] += f" ({', '.join(f'{name} {_number(value)}' for name, value in sample.rewards.items())})"
    parts.append(f"advantage {sample.advantage:+.3g}")
    parts.append(f"{sample.num_tokens} tokens" + ("" if sample.is_terminated else ", cut at maxTokens"))
    return ", ".join(parts)


def _printable(text: str) -> str:
    """What a model wrote without what would move the cursor or change colours of a terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
