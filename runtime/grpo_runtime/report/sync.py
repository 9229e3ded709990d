"""Metrics of the weight sync before a step."""

from grpo_runtime.rollout.interface import SyncReport


def sync_metrics(sync: SyncReport) -> dict[str, float]:
    """Seconds of each phase for the slowest engine, bytes, engines, and the largest error of the probe."""
    phases = {f"sync/{phase}_seconds": seconds for phase, seconds in sync.phase_seconds.items()}
    return {
        **phases,
        "sync/bytes": float(sync.num_bytes),
        "sync/engines": float(len(sync.synced)),
        "sync/failed_engines": float(len(sync.failed)),
        "sync/max_probe_error": sync.max_probe_error,
    }
