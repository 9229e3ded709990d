"""What rank 0 reports while it waits: which engines get no weights, are hung or start again, and how long no
sample was finished or no group scored. Pure.
"""

from collections.abc import Mapping, Sequence

from grpo_api.contract.progress import (
    LONGEST_ENGINE_NAME,
    LONGEST_ENGINE_NOTE,
    MAX_ENGINE_NOTES,
    EngineCounts,
    EngineNote,
)
from grpo_runtime.report.progress import STILL_SECONDS, rounded_down
from grpo_runtime.rewards.types import OpenCalls
from grpo_runtime.rollouts.interface import FailedSyncs, Generation

_MAX_FAILED, _MAX_STOPPED, _MAX_BUSY = 2, 4, 4
"""How many engines a message names: of those that get no weights, hang or start again, or have samples open.
The rest is counted."""
_MAX_FUNCTIONS = 3
"""The same of reward functions."""
_MAX_CHARACTERS = 300
"""Most characters of a reason. A condition has 1,024 in all, and other sentences come before and after
these."""


def without_weights(failed: Mapping[str, FailedSyncs], *, engines: EngineCounts) -> tuple[EngineNote, ...]:
    """Engines that get no weights and why, those that have failed most often first.

    While other engines serve, one failure is not reported: the next try is mostly good.
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
    parts = [note.text for note in hung[:_MAX_STOPPED]]
    if len(hung) > _MAX_STOPPED:
        parts.append(f"{len(hung) - _MAX_STOPPED} other engines hang")
    if len(again) > _MAX_STOPPED:
        parts.append(f"{len(again)} engines are started again")
    else:
        parts += [note.text for note in again]
    return "".join(f"; {part}" for part in parts)


def with_notes(engines: EngineCounts, notes: Sequence[EngineNote]) -> EngineCounts:
    """The counts with notes on single engines, as many as a report may have."""
    return engines.model_copy(update={"notes": tuple(notes[:MAX_ENGINE_NOTES]) or None})


def still_message(generation: Generation, *, step: int) -> str:
    """Which samples of `step` are open without progress, since when, and on which engines; empty while
    samples finish."""
    if generation.quiet_seconds < STILL_SECONDS:
        return ""
    seconds = rounded_down(generation.quiet_seconds)
    done = f"step {step}: {generation.num_done} of {generation.num_samples} samples are done"
    still = f"{done}, and none was finished in the last {seconds} s; open are {_places(generation)}"
    return still + stopped_message(generation)


def still_ahead_message(
    generation: Generation, *, step: int, num_finished: int, num_groups: int, num_running: int
) -> str:
    """The same where groups are begun ahead: `step` needs `num_groups`, of all groups `num_finished` are, and
    `num_running` are being sampled, for this step and for later ones."""
    if generation.quiet_seconds < STILL_SECONDS:
        return ""
    seconds = rounded_down(generation.quiet_seconds)
    finished = f"step {step}: {min(num_finished, num_groups)} of {num_groups} groups are finished"
    if num_finished >= num_groups:
        finished += ", but others would be too old after it"
    still = f"{num_running} are being sampled, and no sample was finished in the last {seconds} s"
    return f"{finished}; {still}; open are {_places(generation)}{stopped_message(generation)}"


def _places(generation: Generation) -> str:
    """Where open samples are."""
    given = sorted(generation.given.items(), key=lambda item: (-item[1], item[0]))
    places = [f"{number} on {engine}" for engine, number in given[:_MAX_BUSY]]
    if len(given) > _MAX_BUSY:
        rest = given[_MAX_BUSY:]
        places.append(f"{sum(number for _, number in rest)} on {len(rest)} other engines")
    if generation.num_waiting:
        places.append(f"{generation.num_waiting} not given to an engine yet")
    return ", ".join(places)


def unscored_message(
    of_what: str, *, num_scored: int, num_groups: int, quiet_seconds: float, open_calls: Sequence[OpenCalls]
) -> str:
    """How many groups `of_what` are scored, and which functions have not answered; empty while groups are
    scored. Those whose services are out of reach come first, then those with most open calls, and the rest is
    counted. The seconds are rounded down as those of a generation."""
    if quiet_seconds < STILL_SECONDS:
        return ""
    still = (
        f"{of_what}: {num_scored} of {num_groups} groups are scored, and none was in the last "
        f"{rounded_down(quiet_seconds)} s"
    )
    told = sorted(open_calls, key=lambda calls: (calls.outage is None, -calls.number, calls.name))
    rest = told[_MAX_FUNCTIONS:]
    others = f"open calls of {len(rest)} other {'rewards' if len(rest) > 1 else 'reward'}"
    counted = [f"{others}: {sum(calls.number for calls in rest)}"] if rest else []
    return "; ".join((still, *map(_of_function, told[:_MAX_FUNCTIONS]), *counted))


def _note(engine: str, text: str) -> EngineNote:
    """A note with as much of the text as a report may hold."""
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


def _of_function(calls: OpenCalls) -> str:
    sentence = f"open calls of reward {calls.name}: {calls.number}"
    if calls.outage is None:
        return sentence
    outage = calls.outage
    since = rounded_down(outage.seconds)
    return f"{sentence}, and {outage.url} is out of reach for {since} s: {outage.why}"
