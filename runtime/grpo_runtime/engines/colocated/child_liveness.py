"""Whether the engine in a child process hangs. Pure: `now` is a parameter.

A thread of the child reports once a second how many steps its engine has taken. That it reports at all shows
that the process runs, and that the number rises while it samples, that the engine does.

Until the child has finished its first generation, what it computes may compile: kernels and graphs, for
minutes and without a report. A limit of its own applies then, because a process that computes without a
report looks like one that hangs; only one that the kernel says is stopped is found as fast as ever. Later an
engine may take twice the longest step of this generation and the one before, because a long prefill is one
step.
"""

from dataclasses import dataclass, replace

from grpo_runtime.engines.fleet.liveness import Sign

LONGER_STEP_FACTOR = 2.0
"""How many times the longest step seen the next one may take."""


@dataclass(frozen=True)
class ChildLimits:
    """How long a child may show no sign (s): usually, in a call that moves memory or weights, while it
    starts, and while it may compile."""

    hung_after_seconds: float = 10.0
    call_seconds: float = 300.0
    start_seconds: float = 1800.0
    first_generation_seconds: float = 600.0
    """Well below the default of stallTimeoutSeconds, which runs at the same time and ends the attempt."""

    def times(self, factor: float) -> "ChildLimits":
        """The limits of a child with so many times the usual patience."""
        return replace(self, hung_after_seconds=self.hung_after_seconds * factor)


@dataclass(frozen=True)
class ChildSigns:
    """What is known of one child."""

    process: Sign
    running: Sign
    """Seen whenever the process is not stopped."""
    steps: Sign
    num_steps: int = 0
    is_sampling: bool = False
    """Whether the call under way samples, so that steps must be taken."""
    may_compile: bool = False
    """Whether the call under way computes, and no generation has been finished."""
    is_warm: bool = False
    """Whether it has finished a generation."""


def first_signs(now: float) -> ChildSigns:
    """The signs of a child that has just started."""
    return ChildSigns(process=Sign(now), running=Sign(now), steps=Sign(now))


def call_began(signs: ChildSigns, call: str, *, now: float) -> ChildSigns:
    """The signs at the beginning of a call: there was nothing to do before."""
    is_sampling = call == "sample"
    may_compile = not signs.is_warm and call in ("sample", "probe_logprobs")
    signs = replace(signs, steps=signs.steps.from_now(now), is_sampling=is_sampling, may_compile=may_compile)
    if not is_sampling:
        return signs
    return replace(signs, process=signs.process.next_round(), steps=signs.steps.next_round())


def call_ended(signs: ChildSigns, *, is_done: bool, now: float) -> ChildSigns:
    """The signs after an answer. `is_done` says that it is no error."""
    ended = replace(signs, is_sampling=False, may_compile=False)
    if not signs.is_sampling or not is_done or signs.is_warm:
        return ended
    # that the process was silent while it compiled does not make it more patient
    return replace(ended, is_warm=True, process=Sign(now))


def reported(signs: ChildSigns, num_steps: int, *, now: float) -> ChildSigns:
    """The signs after the child has said how many steps its engine has taken."""
    if num_steps != signs.num_steps:
        steps = signs.steps.seen(now)
    elif signs.is_sampling:
        steps = signs.steps.missed()
    else:
        steps = signs.steps.from_now(now)
    running = signs.running.from_now(now)
    return replace(signs, process=signs.process.seen(now), running=running, steps=steps, num_steps=num_steps)


def missed_report(signs: ChildSigns, *, is_stopped: bool, now: float) -> ChildSigns:
    """The signs after a second in which the child said nothing. `is_stopped` says that it could not."""
    running = signs.running.missed() if is_stopped else signs.running.from_now(now)
    return replace(signs, process=signs.process.missed(), running=running)


def why_hung(signs: ChildSigns, *, limits: ChildLimits, now: float) -> str:
    """Which part of the child is hung, as a sentence about it; empty when it is not hung."""
    if signs.running.is_overdue(now, limit_seconds=limits.hung_after_seconds):
        return f"its process has been hung for {limits.hung_after_seconds:g} s"
    usual = limits.first_generation_seconds if signs.may_compile else limits.hung_after_seconds
    if signs.process.is_overdue(now, limit_seconds=usual):
        return f"its process has been hung for {usual:g} s"
    limit = max(usual, LONGER_STEP_FACTOR * signs.steps.recent_gap)
    if signs.steps.is_overdue(now, limit_seconds=limit):
        return f"it has samples to draw and has taken no step for {limit:g} s"
    return ""
