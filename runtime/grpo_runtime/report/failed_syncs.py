"""The sentence about engines that get no weights. Pure."""

from collections.abc import Mapping

from grpo_api.contract.progress import EngineCounts
from grpo_runtime.rollout.interface import FailedSyncs

_MAX_ENGINES = 2
_MAX_CHARACTERS = 300
"""Of a reason. A condition has 1,024 in all, and other sentences come before and after these."""


def failed_syncs_message(failed: Mapping[str, FailedSyncs], *, engines: EngineCounts) -> str:
    """Which engines get no weights and why; empty when there is nothing to tell.

    While other engines serve, one failure is not told of: the next try is mostly good. Those that have failed
    most often come first, and the rest is counted.
    """
    least = 2 if engines.current else 1
    told = sorted(
        ((label, syncs) for label, syncs in failed.items() if syncs.num >= least),
        key=lambda item: (-item[1].num, item[0]),
    )
    parts = [_sentence(label, syncs) for label, syncs in told[:_MAX_ENGINES]]
    num_others = len(told) - len(parts)
    if num_others:
        parts.append(
            f"{num_others} other {'engines get' if num_others > 1 else 'engine gets'} no weights either"
        )
    return "; ".join(parts)


def _sentence(label: str, syncs: FailedSyncs) -> str:
    # an engine's answer may have several lines
    why = " ".join(syncs.why.split())
    if len(why) > _MAX_CHARACTERS:
        why = f"{why[:_MAX_CHARACTERS]}..."
    if syncs.num == 1:
        return f"engine {label} did not get weights {syncs.version}: {why}"
    return (
        f"engine {label} has failed {syncs.num} weight syncs, the last one of weights {syncs.version}: {why}"
    )
