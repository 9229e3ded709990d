"""What is told of single engines: that they get no weights, hang, or are started again. Pure."""

from collections.abc import Mapping, Sequence

from grpo_api.contract.progress import (
    LONGEST_ENGINE_NAME,
    LONGEST_ENGINE_NOTE,
    MAX_ENGINE_NOTES,
    EngineCounts,
    EngineNote,
)
from grpo_runtime.rollouts.interface import FailedSyncs, Generation

_MAX_FAILED = 2
_MAX_OTHERS = 4
"""How many engines a message names; the rest is counted."""
_MAX_CHARACTERS = 300
"""Of a reason. A condition has 1,024 in all, and other sentences come before and after these."""


def without_weights(failed: Mapping[str, FailedSyncs], *, engines: EngineCounts) -> tuple[EngineNote, ...]:
    """Engines that get no weights and why, those that have failed most often first.

    While other engines serve, one failure is not told of: the next try is mostly good.
    """
    least = 2 if engines.current else 1
    told = sorted(
        ((label, syncs) for label, syncs in failed.items() if syncs.num >= least),
        key=lambda item: (-item[1].num, item[0]),
    )
    return tuple(_note(label, _failed(label, syncs)) for label, syncs in told)


def without_weights_message(notes: Sequence[EngineNote]) -> str:
    """The first of these as a message, and how many others there are; empty where there is none."""
    parts = [note.text for note in notes[:_MAX_FAILED]]
    num_others = len(notes) - len(parts)
    if num_others:
        parts.append(
            f"{num_others} other {'engines get' if num_others > 1 else 'engine gets'} no weights either"
        )
    return "; ".join(parts)


def stopped(generation: Generation) -> tuple[EngineNote, ...]:
    """Engines that hang, with what of them does, and those that are started again."""
    hung = (_note(engine, f"engine {engine} hangs: {why}") for engine, why in sorted(generation.hung.items()))
    again = (_note(engine, f"engine {engine} is started again") for engine in generation.starting_again)
    return (*hung, *again)


def stopped_message(generation: Generation) -> str:
    """The same as the end of a sentence; empty when there is none."""
    notes = stopped(generation)
    hung, again = notes[: len(generation.hung)], notes[len(generation.hung) :]
    parts = [note.text for note in hung[:_MAX_OTHERS]]
    if len(hung) > _MAX_OTHERS:
        parts.append(f"{len(hung) - _MAX_OTHERS} other engines hang")
    if len(again) > _MAX_OTHERS:
        parts.append(f"{len(again)} engines are started again")
    else:
        parts += [note.text for note in again]
    return "".join(f"; {part}" for part in parts)


def with_notes(engines: EngineCounts, notes: Sequence[EngineNote]) -> EngineCounts:
    """The counts with what is told of single engines, as many as a report may name."""
    return engines.model_copy(update={"notes": tuple(notes[:MAX_ENGINE_NOTES]) or None})


def _note(engine: str, text: str) -> EngineNote:
    """As much of it as a report may hold."""
    return EngineNote(name=engine[:LONGEST_ENGINE_NAME], text=text[:LONGEST_ENGINE_NOTE])


def _failed(label: str, syncs: FailedSyncs) -> str:
    # an engine's answer may have several lines
    why = " ".join(syncs.why.split())
    if len(why) > _MAX_CHARACTERS:
        why = f"{why[:_MAX_CHARACTERS]}..."
    if syncs.num == 1:
        return f"engine {label} did not get weights {syncs.version}: {why}"
    return (
        f"engine {label} has failed {syncs.num} weight syncs, the last one of weights {syncs.version}: {why}"
    )
