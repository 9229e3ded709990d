"""A run as text: the curve of its reward, and what its weight syncs cost."""

from pathlib import Path

from grpo_runtime.report.curve import plot
from grpo_runtime.report.metrics import METRICS_FILE, read_metrics
from grpo_runtime.report.sync_cost import describe_syncs


def plot_run(path: Path, *, width: int = 72) -> str:
    """The reward of each step of the run whose metrics are at `path`, as text of `width` columns, and below
    it a line about its weight syncs."""
    records = read_metrics(path / METRICS_FILE if path.is_dir() else path)
    rewards = {record.step: record.values["reward"] for record in records if "reward" in record.values}
    if not rewards:
        return f"no reward in any of {len(records)} steps" if records else "no step is finished yet"
    title = f"reward, steps {min(rewards)} to {max(rewards)}"
    curve = plot(list(rewards.values()), title=title, width=width)
    return "\n".join(filter(None, [curve, describe_syncs([record.values for record in records])]))
