"""Metrics of the weight sync before a step."""

from grpo_runtime.report.sync_cost import ENGINES, PAUSED, RATE, SENT_BYTES, UPDATE_RATIO
from grpo_runtime.rollouts.interface import SyncReport


def sync_metrics(sync: SyncReport) -> dict[str, float]:
    """Seconds of each phase and of the pause for the slowest engine, bytes, engines, and the largest error of
    the probe.

    The rate is that at which weights reached the slowest engine: their size by the seconds of `transfer`. It
    is left out where nothing was sent. With `weightSync.sparse` there are also the bytes of what changed,
    with its index, and their share in all weights: 1 where all are sent.
    """
    metrics = {f"sync/{phase}_seconds": seconds for phase, seconds in sync.phase_seconds.items()}
    metrics |= {
        "sync/bytes": float(sync.num_bytes),
        SENT_BYTES: float(sync.num_bytes_sent),
        ENGINES: float(len(sync.synced)),
        "sync/failed_engines": float(len(sync.failed)),
        "sync/max_probe_error": sync.max_probe_error,
    }
    if sync.num_update_bytes is not None and sync.num_bytes > 0:
        metrics["sync/update_bytes"] = float(sync.num_update_bytes)
        metrics[UPDATE_RATIO] = min(1.0, sync.num_update_bytes / sync.num_bytes)
    transfer_seconds = sync.phase_seconds.get("transfer", 0.0)
    if sync.num_bytes_sent > 0 and transfer_seconds > 0:
        metrics[RATE] = sync.num_bytes / 1e9 / transfer_seconds
    if sync.paused_seconds is not None:
        metrics[PAUSED] = sync.paused_seconds
    return metrics
