"""What weight syncs cost, by the names of their metrics. No torch here: `grpo-runtime plot` reads them."""

import re
import statistics
from collections.abc import Mapping, Sequence

ENGINES = "sync/engines"
PAUSED = "sync/paused_seconds"
SENT_BYTES = "sync/sent_bytes"
UPDATE_RATIO = "sync/update_ratio"
RATE = "sync/gigabytes_per_second"
_TIME, _STEP_TIME = "time/sync_seconds", "step_time"
_PHASE = re.compile(r"sync/(?P<phase>\w+)_seconds")


def phase_of(metric: str) -> str | None:
    """The phase of a sync whose seconds a metric has; None for any other metric."""
    match = _PHASE.fullmatch(metric)
    return match["phase"] if match and metric != PAUSED else None


def describe_syncs(steps: Sequence[Mapping[str, float]]) -> str:
    """The medians of the metrics of these steps as a sentence; empty where no step tells them. Metrics that
    no step has are left out."""
    seconds, step_seconds = _median(steps, _TIME), _median(steps, _STEP_TIME)
    if seconds is None or not step_seconds:
        return ""
    parts = [f"weight sync: {seconds:.3g} s of {step_seconds:.3g} s a step at the median"]
    paused, sent, rate = (_median(steps, name) for name in (PAUSED, SENT_BYTES, RATE))
    if paused is not None:
        parts.append(f"engines paused for {paused:.3g} s")
    ratio = _median(steps, UPDATE_RATIO)
    if ratio is not None:
        parts.append(f"what changed is {ratio:.2%} of the bytes of all weights")
    if sent:
        at = "" if rate is None else f", {rate:.3g} GB/s to each engine"
        size = f"{sent / 1e9:.3g} GB" if sent >= 1e9 else f"{sent / 1e6:.3g} MB"
        parts.append(f"{size} sent{at}")
    return "; ".join(parts)


def _median(steps: Sequence[Mapping[str, float]], name: str) -> float | None:
    values = [step[name] for step in steps if name in step]
    return statistics.median(values) if values else None
