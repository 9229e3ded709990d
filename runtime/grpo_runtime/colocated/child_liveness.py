"""Whether the engine in a child process is frozen. Pure: `now` is a parameter.

A thread of the child says once a second how many steps its engine has taken. That it says anything shows that
the process runs, and that the number rises while it samples, that the engine does. Steps of an engine that
has sampled nothing yet may compile.
"""

from dataclasses import dataclass, replace

from grpo_runtime.fleet.liveness import Sign


@dataclass(frozen=True)
class ChildLimits:
    """How long a child may show no sign (s): usually, before its first step of sampling is done, in a call
    that moves memory or weights, and while it starts."""

    frozen_after_seconds: float = 10.0
    first_step_seconds: float = 120.0
    call_seconds: float = 300.0
    start_seconds: float = 1800.0

    def times(self, factor: float) -> "ChildLimits":
        """Those of a child with so many times the usual patience."""
        return replace(
            self,
            frozen_after_seconds=self.frozen_after_seconds * factor,
            first_step_seconds=self.first_step_seconds * factor,
        )


@dataclass(frozen=True)
class ChildSigns:
    """What is known of one child."""

    process: Sign
    steps: Sign
    num_steps: int = 0
    is_warm: bool = False
    """Whether it has taken a step of sampling."""


def first_signs(now: float) -> ChildSigns:
    """Those of a child that has just started."""
    return ChildSigns(process=Sign(now), steps=Sign(now))


def heard(signs: ChildSigns, num_steps: int, *, is_sampling: bool, now: float) -> ChildSigns:
    """The signs after the child has said how many steps its engine has taken."""
    has_moved = num_steps != signs.num_steps
    if has_moved:
        steps = signs.steps.seen(now)
    elif is_sampling:
        steps = signs.steps.missed()
    else:
        steps = signs.steps.from_now(now)
    return replace(
        signs,
        process=signs.process.seen(now),
        steps=steps,
        num_steps=num_steps,
        # a probe of new weights takes a step too, and compiles less
        is_warm=signs.is_warm or (has_moved and is_sampling),
    )


def asked(signs: ChildSigns, *, is_sampling: bool, now: float) -> ChildSigns:
    """The signs at the beginning of a call: there was nothing to do before."""
    signs = replace(signs, steps=signs.steps.from_now(now))
    if not is_sampling:
        return signs
    return replace(signs, process=signs.process.next_round(), steps=signs.steps.next_round())


def silent(signs: ChildSigns) -> ChildSigns:
    """The signs after a second in which the child said nothing."""
    return replace(signs, process=signs.process.missed())


def why_frozen(signs: ChildSigns, *, limits: ChildLimits, now: float) -> str:
    """What of the child stands still, as a sentence about it; empty when it is not frozen."""
    usual = limits.frozen_after_seconds
    if signs.process.is_overdue(now, limit_seconds=usual):
        return f"its process has stood still for {usual:g} s"
    limit = usual if signs.is_warm else max(usual, limits.first_step_seconds)
    if signs.steps.is_overdue(now, limit_seconds=limit):
        return f"it has samples to draw and has taken no step for {limit:g} s"
    return ""
